/** The CUDA executor on a driver that notes every call. Kernels do nothing there; bench/device.ts runs them on a real GPU. */
import { assert, assertEquals, assertRejects, assertStringIncludes, assertThrows } from "@std/assert";
import type { Buffer } from "../../ffi/buffer.ts";
import { Device } from "../../ffi/device.ts";
import type { Pass } from "../../ffi/pass.ts";
import { encodeInput } from "../../src/engine/input.ts";
import { DeviceError } from "../../src/errors.ts";
import type { Op } from "../../src/schedule/ops.ts";
import type { Plan } from "../../src/schedule/plan.ts";
import type { Tensor } from "../../src/schedule/tensor.ts";
import { withEnvironment } from "../support/environment.ts";
import { checkAttention, checkDispatches } from "./dispatches.ts";
import { FakeDriver, noPtx } from "./fake.ts";

Deno.test("without an NVIDIA driver the cuda device says so and names what is missing", async () => {
  const error = await withEnvironment(
    { MARKBASE_LIBCUDA: "/nowhere/libcuda.so.1" },
    () => assertRejects(() => Device.open("cuda"), DeviceError),
  );
  assertEquals(error.code, "no_device");
  assertStringIncludes(error.message, "/nowhere/libcuda.so.1");
});

const lacking = await noPtx();
const ignore = lacking !== undefined;
if (ignore) console.log(`tests of the CUDA executor are skipped: ${lacking}`);
const fake = await FakeDriver.build();

Deno.test({
  name: "the stand-in driver is this file's alone: processes that other tests start do not find it",
  ignore,
  async fn() {
    const before = Deno.env.get("MARKBASE_LIBCUDA");
    using _device = await fake.open();
    assertEquals(Deno.env.get("MARKBASE_LIBCUDA"), before);
    assert(before !== fake.path);
  },
});

const WIDTH = 64;
const ROWS = 40;

/** Activations in one arena: `count` tensors of `ROWS` rows. */
function activations(count: number): Tensor[] {
  return Array.from({ length: count }, (_, i) => ({
    name: `t${i}`,
    format: { kind: "f32" },
    shape: ["rows", WIDTH],
    buffer: 0,
    offset: i * ROWS * WIDTH * 4,
  }));
}

function plan(ops: Op[], tensors: Tensor[], options: Partial<Plan> = {}): Plan {
  return {
    limits: { rows: ROWS, out_rows: 1, sequences: 1, pages: 1 },
    buffers: [{ name: "arena", bytes: tensors.length * ROWS * WIDTH * 4, writable: true }],
    ops,
    outputs: tensors.slice(-1),
    groups: 0,
    vocabularySize: 10,
    exact: false,
    checkFinite: false,
    ...options,
  };
}

const add = (a: Tensor, b: Tensor, y: Tensor): Op => ({ kind: "add", a, b, y, aScale: 1, bScale: 1 });

function input(
  rows: number,
  outputMask = 0,
  rowClass: "decode" | "prefill" = "decode",
): Uint8Array<ArrayBuffer> {
  return encodeInput({
    rows: Array.from(
      { length: rows },
      (_, position) => ({ token: 1, position, sequence: 0, rowClass }),
    ),
    outputs: [],
    sequences: [[]],
    groups: 0,
    vocabularySize: 10,
    outputMask,
  });
}

/** A compiled plan with its device. */
async function compiled(
  make: (tensors: Tensor[]) => Op[],
  count: number,
  options: { plan?: Partial<Plan>; timeKernels?: boolean; earlyStart?: boolean } = {},
): Promise<{ device: Device; arena: Buffer; pass: Pass } & Disposable> {
  using scope = new DisposableStack();
  const device = scope.use(
    await fake.open({ timeKernels: options.timeKernels, earlyStart: options.earlyStart }),
  );
  const tensors = activations(count);
  const made = plan(make(tensors), tensors, options.plan);
  const arena = scope.use(device.createBuffer(made.buffers[0].bytes));
  const pass = scope.use(await device.compile(made, [arena]));
  const kept = scope.move();
  return { device, arena, pass, [Symbol.dispose]: () => kept.dispose() };
}

/** Runs a test with a fresh count of calls; after it nothing may be left alive in the driver. */
function test(name: string, run: () => Promise<void>) {
  Deno.test({
    name,
    ignore,
    async fn() {
      fake.reset();
      await run();
      for (
        const kind of [
          "allocations",
          "streams",
          "events",
          "modules",
          "graphs",
          "executables",
          "contexts",
        ] as const
      ) {
        assertEquals(fake.live(kind), 0, `${kind} are left`);
      }
    },
  });
}

test("the device tells what the GPU is", async () => {
  using device = await fake.open();
  const info = device.info();
  assertEquals([info.kind, info.name, info.level], ["cuda", "Fake GPU", "sm_90"]);
  assertEquals([info.memoryBytes, info.unifiedMemory, info.multiprocessors], [8 * 2 ** 30, false, 100]);
  assertEquals(info.system, "CUDA 13.0");
});

test("a GPU that is not there is refused by number", async () => {
  const error = await assertRejects(() => fake.open({ ordinal: 3 }), DeviceError);
  assertEquals(error.code, "no_device");
  assertStringIncludes(error.message, "GPU 3");
});

test("buffers are zero at first and keep what is written, filled and copied", async () => {
  using device = await fake.open();
  using a = device.createBuffer(1000);
  using b = device.createBuffer(500);
  const read = new Uint8Array(1000);
  a.read(0, read);
  assert(read.every((byte) => byte === 0));
  a.write(10, Uint8Array.from([1, 2, 3]));
  a.fill(20, 5, 7);
  b.copy(100, a, 8, 20);
  const copied = new Uint8Array(20);
  b.read(100, copied);
  assertEquals([...copied], [0, 0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 7, 0, 0, 0]);
});

/** A mapped file with these bytes, from `offset` on. */
async function mapped(
  device: Device,
  bytes: Uint8Array<ArrayBuffer>,
  offset = 0,
): Promise<{ file: Buffer; path: string } & AsyncDisposable> {
  const path = await Deno.makeTempFile();
  await Deno.writeFile(path, bytes);
  const file = await device.mapFile(path, offset, bytes.length - offset);
  return {
    file,
    path,
    [Symbol.asyncDispose]: async () => {
      file[Symbol.dispose]();
      await Deno.remove(path);
    },
  };
}

const weight = (format: Tensor["format"], shape: number[], offset: number): Tensor => ({
  name: "weight",
  format,
  shape,
  buffer: 1,
  offset,
});

test("a file is copied to the GPU when a kernel is to read it, in parts through two staging buffers", async () => {
  using device = await fake.open();
  const bytes = new Uint8Array(100_000_003);
  for (let i = 0; i < bytes.length; i++) bytes[i] = (i * 2654435761) >>> 24;
  const offset = 12_345, length = bytes.length - offset;
  fake.reset();
  await using place = await mapped(device, bytes, offset);
  const { file, path } = place;
  const differs = () => {
    const read = new Uint8Array(length);
    file.read(0, read);
    return read.findIndex((byte, i) => byte !== bytes[offset + i]);
  };
  assertEquals(differs(), -1);
  assertEquals(device.memory().mapped, length);
  assertThrows(() => file.write(0, new Uint8Array(1)));
  using copy = device.createBuffer(1000);
  copy.copy(100, file, 7, 800);
  const copied = new Uint8Array(800);
  copy.read(100, copied);
  assertEquals(copied, bytes.subarray(offset + 7, offset + 807));
  assertEquals(fake.live("allocations"), 1, "the copy alone");

  const [x, y] = activations(2);
  const norm: Op = {
    kind: "rms_norm",
    x,
    y,
    weight: weight({ kind: "f32" }, [WIDTH], 1600),
    group: WIDTH,
    eps: 1e-6,
    inScale: 1,
  };
  const arena = { name: "arena", bytes: 2 * ROWS * WIDTH * 4, writable: true };
  const buffers = [arena, { name: "weights", bytes: length, writable: false }];
  using room = device.createBuffer(arena.bytes);
  fake.reset();
  using _first = await device.compile(plan([norm], [x, y], { buffers }), [room, file]);
  assertEquals(fake.count("cuMemcpyHtoDAsync"), 3);
  assertEquals(fake.count("cuMemHostAlloc"), 2);
  using _second = await device.compile(plan([norm], [x, y], { buffers }), [room, file]);
  assertEquals(fake.count("cuMemcpyHtoDAsync"), 3, "once for all passes");
  await Deno.truncate(path, 0);
  assertEquals(differs(), -1, "the GPU has all of it");
});

test("a file with blocks of GGUF is on the GPU once: repacked, and what is no block copied beside it", async () => {
  using device = await fake.open();
  const [blocks, norms] = [10 * WIDTH / 32 * 18, WIDTH * 4];
  const at = Math.ceil(blocks / 32) * 32;
  const bytes = Uint8Array.from({ length: 1 << 20 }, (_, i) => i * 7 % 60);
  await using place = await mapped(device, bytes);
  const [x, y] = activations(2);
  const ops: Op[] = [
    { kind: "embed", table: weight({ kind: "gguf", type: "q4_0" }, [10, WIDTH], 0), y: x, scale: 1 },
    {
      kind: "rms_norm",
      x,
      y,
      weight: weight({ kind: "f32" }, [WIDTH], at),
      group: WIDTH,
      eps: 1e-6,
      inScale: 1,
    },
  ];
  const arena = { name: "arena", bytes: 2 * ROWS * WIDTH * 4, writable: true };
  const buffers = [arena, { name: "weights", bytes: bytes.length, writable: false }];
  using room = device.createBuffer(arena.bytes);
  fake.reset();
  using pass = await device.compile(plan(ops, [x, y], { buffers }), [room, place.file]);
  assertEquals(fake.count("cuMemHostAlloc"), 0, "no staging of an upload");
  const { repackedBytes } = pass.info();
  assert(
    repackedBytes >= blocks + norms && repackedBytes < blocks + norms + 3 * 256,
    `${repackedBytes} bytes`,
  );
  assertEquals(device.memory().repacked, repackedBytes);
});

test("a run is one copy, one graph and one wait, with its outputs copied along", async () => {
  using scope = await compiled(([a, b, y]) => [add(a, b, y)], 3);
  const { pass, arena } = scope;
  const values = Float32Array.from({ length: WIDTH * 2 }, (_, i) => i + 1);
  arena.write(2 * ROWS * WIDTH * 4, values);
  const output = new Float32Array(WIDTH * 2);
  await pass.run(input(2, 1), output);
  fake.reset();
  const { commandBuffers, waits, dispatches } = await pass.run(input(2, 1), output);
  assertEquals([commandBuffers, waits, dispatches], [1, 1, 1]);
  assertEquals(fake.count("cuMemcpyHtoDAsync"), 1);
  assertEquals(fake.count("cuGraphLaunch"), 1);
  assertEquals(fake.count("cuMemcpyDtoHAsync"), 1);
  assertEquals(fake.count("cuStreamSynchronize"), 1);
  assertEquals(fake.count("cuGraphInstantiate"), 0);
  assertEquals(output, values);
});

test("independent ops may run at once, dependent ones follow those that they need and no others", async () => {
  using scope = await compiled(
    ([a, b, c, d, e, f, g]) => [
      add(a, b, c), // 1
      add(a, b, d), // 2
      add(c, d, e), // 3, after both
      add(a, e, f), // 4, after 3
      add(d, f, g), // 5, after 4, which follows 2
      add(a, b, c), // 6 writes what 3 reads
    ],
    7,
  );
  await scope.pass.run(input(3));
  const nodes = fake.nodes();
  assertEquals(nodes.map(({ after }) => after), [[], [0], [0], [1, 2], [3], [4], [3], [5, 6]]);
  // The next one may start while the latest of those that it follows ends; for the others it waits until they are over.
  assertEquals(nodes.map(({ early }) => early), [[], [], [], [2], [3], [4], [3], []]);
  assertEquals([nodes[0].name, nodes[7].name], ["event", "event"]);
  for (const { name } of nodes.slice(1, 7)) assert(name.startsWith("k_"), name);
});

test("kernels of a prompt start when those that they follow are over", async () => {
  using scope = await compiled(([a, b, c, d]) => [add(a, b, c), add(a, c, d)], 4);
  await scope.pass.run(input(2, 0, "prefill"));
  assertEquals(fake.nodes().map(({ after }) => after), [[], [0], [1], [2]]);
  assertEquals(fake.nodes().flatMap(({ early }) => early), []);
});

test("no kernel starts early where the option says so", async () => {
  using scope = await compiled(([a, b, c, d]) => [add(a, b, c), add(a, c, d)], 4, { earlyStart: false });
  await scope.pass.run(input(2));
  const nodes = fake.nodes();
  assertEquals(nodes.map(({ after }) => after), [[], [0], [1], [2]]);
  assertEquals(nodes.flatMap(({ early }) => early), []);
});

test("a graph is built once for each shape and the least recently used ones are given up", async () => {
  using scope = await compiled(([a, b, y]) => [add(a, b, y)], 3);
  const { pass } = scope;
  for (const rows of [1, 2, 1, 2, 1]) await pass.run(input(rows));
  assertEquals(fake.count("cuGraphInstantiate"), 2);
  for (let rows = 3; rows <= ROWS; rows++) await pass.run(input(rows));
  assertEquals(fake.count("cuGraphInstantiate"), ROWS);
  assertEquals(fake.live("executables"), 32);
  await pass.run(input(1));
  assertEquals(fake.count("cuGraphInstantiate"), ROWS + 1);
});

test("the same shape gives the same arguments, another number of rows others", async () => {
  using scope = await compiled(([a, b, y]) => [add(a, b, y)], 3);
  const detail = async (rows: number) => {
    await scope.pass.run(input(rows));
    return fake.nodes()[1].detail;
  };
  const one = await detail(1), two = await detail(20);
  assert(one !== two, one);
});

test("where kernels are timed they run one after another, and the pass tells the time of each op", async () => {
  using scope = await compiled(([a, b, c, d]) => [add(a, b, c), add(a, b, d)], 4, { timeKernels: true });
  const { pass } = scope;
  assertEquals(pass.info().kernels[0].seconds, undefined);
  await pass.run(input(2));
  assertEquals(fake.nodes().map(({ after }) => after), [[], [0], [1], [2], [3]]);
  for (const { seconds } of pass.info().kernels) assert(seconds !== undefined && seconds > 0);
});

test("the check for NaN runs each op alone and names the first that breaks", async () => {
  using scope = await compiled(([a, b, c, d]) => [add(a, b, c), add(a, b, d)], 4, {
    plan: { checkFinite: true },
  });
  const { pass, arena } = scope;
  await pass.run(input(2));
  assertEquals(fake.count("cuGraphLaunch"), 2);
  arena.write(3 * ROWS * WIDTH * 4, Float32Array.of(NaN));
  const error = await assertRejects(() => pass.run(input(2)), DeviceError);
  assertEquals(error.code, "not_finite");
});

test("a cancelled pass does not reach the GPU", async () => {
  using scope = await compiled(([a, b, y]) => [add(a, b, y)], 3);
  const aborted = AbortSignal.abort(new Error("enough"));
  await assertRejects(
    () => scope.pass.run(input(1), new Uint8Array(0), { signal: aborted }),
    Error,
    "enough",
  );
  assertEquals(fake.count("cuGraphLaunch"), 0);
});

test("a kernel that the driver does not compile is an unsupported one, with the driver's log", async () => {
  fake.fail("cuModuleLoadDataEx", 218);
  const error = await assertRejects(() => compiled(([a, b, y]) => [add(a, b, y)], 3), DeviceError);
  assertEquals(error.code, "unsupported");
  assertStringIncludes(error.message, "line 7; error: planted");
});

test("memory that the GPU does not have is an out_of_memory with the free bytes", async () => {
  using device = await fake.open();
  const error = assertThrows(() => device.createBuffer(9 * 2 ** 30), DeviceError);
  assertEquals(error.code, "out_of_memory");
  assertStringIncludes(error.message, "123 of its");
  using small = device.createBuffer(10);
  assertEquals(small.size, 10);
});

test("a graph that cannot be made leaves the device usable", async () => {
  using scope = await compiled(([a, b, y]) => [add(a, b, y)], 3);
  fake.fail("cuGraphAddKernelNode", 2);
  assertEquals((await assertRejects(() => scope.pass.run(input(1)), DeviceError)).code, "out_of_memory");
  await scope.pass.run(input(1));
});

test("a memory fault loses the device for good, and later calls tell why", async () => {
  using scope = await compiled(([a, b, y]) => [add(a, b, y)], 3);
  await scope.pass.run(input(1));
  fake.fail("cuStreamSynchronize", 700);
  const first = await assertRejects(() => scope.pass.run(input(1)), DeviceError);
  assertEquals(first.code, "device_lost");
  assertStringIncludes(first.message, "FAKE_ERROR_700");
  const second = await assertRejects(() => scope.pass.run(input(1)), DeviceError);
  assertEquals(second.code, "device_lost");
  assertStringIncludes(second.message, "since an earlier failure");
  assertThrows(() => scope.device.createBuffer(10), DeviceError, "FAKE_ERROR_700");
});

test("a launch that takes too long is a timeout", async () => {
  using scope = await compiled(([a, b, y]) => [add(a, b, y)], 3);
  fake.fail("cuStreamSynchronize", 702);
  assertEquals((await assertRejects(() => scope.pass.run(input(1)), DeviceError)).code, "timeout");
});

test("calls from several threads at once each have the context", async () => {
  using scope = await compiled(([a, b, y]) => [add(a, b, y)], 3);
  const { pass, arena } = scope;
  const jobs = Array.from({ length: 40 }, async (_, i) => {
    if (i % 2 === 0) await pass.run(input(1 + i % 5));
    else await arena.readAsync(0, new Uint8Array(4096));
  });
  await Promise.all(jobs);
});

test("explain counts the dispatches of decode rows on an H200's matrix units as the library makes them", async () => {
  using device = await fake.open({ matrixUnits: true });
  await checkDispatches(device);
});

test("explain counts the dispatches of attention on an H200 as the library makes them", async () => {
  for (const matrixUnits of [false, true]) {
    using device = await fake.open({ matrixUnits });
    await checkAttention(device, matrixUnits);
  }
});
