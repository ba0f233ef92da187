import { assert, assertEquals, assertThrows } from "@std/assert";
import { fromFileUrl } from "./generator/paths.ts";
import { constantString, Gpu, host, HostError, misuseOf, softmetal, withOptions, words, z } from "./host.ts";

const BUGS = Deno.readTextFileSync(fromFileUrl(new URL("kernels/bugs.metal", import.meta.url)));
const SPIKE = Deno.readTextFileSync(fromFileUrl(new URL("kernels/spike.metal", import.meta.url)));
const ones = () => new Float32Array(64).fill(1);

function addTo(gpu: Gpu, a: Deno.PointerValue, c: Deno.PointerValue): void {
  gpu.dispatch(gpu.pipeline("add"), [a, a, c, words(64)], [1, 1, 1], [64, 1, 1]);
}

Deno.test("structs and strings cross the message send unharmed", () => {
  using gpu = new Gpu(BUGS);
  assertEquals(host.host_device_sizes(gpu.handle), 3072n);
  assertEquals(constantString(), "a constant string");
  assertEquals(host.host_can_capture(), 0);
});

Deno.test("misuse that Metal's debug layer stops is reported", async (t) => {
  const cases: [string, RegExp, (gpu: Gpu) => void][] = [
    [
      "a dispatch over the pipeline's limit",
      /at most maxTotalThreadsPerThreadgroup 128 \('at_most_128'\)/,
      (g) => g.run(g.pipeline("at_most_128"), [g.buffer(1024)], [1, 1, 1], [256, 1, 1]),
    ],
    [
      "2048 threads",
      /maxTotalThreadsPerThreadgroup 1024/,
      (g) => g.run(g.pipeline("write_past_end"), [g.buffer(9000)], [1, 1, 1], [2048, 1, 1]),
    ],
    [
      "an unbound buffer",
      /missing buffer binding at index 1 for 'add' \('b'\)/,
      (g) => g.run(g.pipeline("add"), [g.buffer(256), null, g.buffer(256), words(4)], [1, 1, 1], [64, 1, 1]),
    ],
    [
      "bytes shorter than the struct",
      /argument 'n' of 'add' at buffer\(3\) needs 4 bytes, has 2/,
      (g) =>
        g.run(
          g.pipeline("add"),
          [g.buffer(256), g.buffer(256), g.buffer(256), new Uint8Array(2)],
          [1, 1, 1],
          [64, 1, 1],
        ),
    ],
    [
      "bytes bound to a writable argument",
      /setBytes bound to the writable argument 'c'/,
      (g) =>
        g.run(g.pipeline("add"), [g.buffer(256), g.buffer(256), words(0, 0), words(2)], [1, 1, 1], [
          64,
          1,
          1,
        ]),
    ],
    [
      "5000 bytes by setBytes",
      /length 5000 is not from 1 to 4096/,
      (g) =>
        g.run(g.pipeline("add"), [new Uint8Array(5000), g.buffer(256), g.buffer(256), words(4)], [1, 1, 1], [
          64,
          1,
          1,
        ]),
    ],
    [
      "an offset beyond the buffer",
      /offset 256 is not inside the buffer of 256 bytes/,
      (g) =>
        g.run(
          g.pipeline("add"),
          [{ buffer: g.buffer(256), offset: 256 }, g.buffer(256), g.buffer(256), words(4)],
          [1, 1, 1],
          [64, 1, 1],
        ),
    ],
    [
      "an offset that the type does not allow",
      /offset 2 of buffer\(0\) is not a multiple of 4/,
      (g) =>
        g.run(
          g.pipeline("add"),
          [{ buffer: g.buffer(256), offset: 2 }, g.buffer(256), g.buffer(256), words(4)],
          [1, 1, 1],
          [64, 1, 1],
        ),
    ],
    [
      "an empty grid",
      /'add' with a dimension of 0/,
      (g) =>
        g.run(g.pipeline("add"), [g.buffer(256), g.buffer(256), g.buffer(256), words(4)], [0, 1, 1], [
          64,
          1,
          1,
        ]),
    ],
    [
      "threadgroup memory of 40 KB",
      /threadgroup memory of 40960 bytes exceeds 32768/,
      (g) => g.run(g.pipeline("dynamic_threadgroup"), [g.buffer(256)], [1, 1, 1], [64, 1, 1], 40960),
    ],
    [
      "threadgroup memory not set",
      /threadgroup memory length not set at index 0/,
      (g) => g.run(g.pipeline("dynamic_threadgroup"), [g.buffer(256)], [1, 1, 1], [64, 1, 1]),
    ],
    [
      "threadgroup memory of an odd length",
      /length 100 is not a multiple of 16/,
      (g) => g.run(g.pipeline("dynamic_threadgroup"), [g.buffer(256)], [1, 1, 1], [64, 1, 1], 100),
    ],
    ["no pipeline", /without a compute pipeline state/, (g) => {
      g.begin();
      host.host_groups(g.handle, 1, 1, 1, 1, 1, 1);
      g.finish();
    }],
    ["two encoders at once", /second encoder while one is encoding/, (g) => {
      g.begin();
      host.host_compute_twice(g.handle);
      g.finish();
    }],
    ["commit while encoding", /endEncoding is missing/, (g) => {
      g.begin();
      host.host_commit(g.handle);
      g.finish();
    }],
    ["commit twice", /committed already/, (g) => {
      g.begin();
      host.host_end(g.handle);
      host.host_commit(g.handle);
      g.commitAndWait();
    }],
    ["a buffer of 0 bytes", /length is 0/, (g) => void g.buffer(0)],
    [
      "contents of private storage",
      /private storage/,
      (g) => void assertThrows(() => g.read(g.buffer(64, true)), HostError),
    ],
    [
      "a no-copy buffer off its page",
      /must be multiples of the page size/,
      (g) => void g.noCopy(g.pages(32768), 20000),
    ],
    [
      "a message to a dead object",
      /'length' sent to a deallocated object/,
      (g) => host.host_use_after_release(g.handle),
    ],
    [
      "a blit outside its buffer",
      /128 bytes at 192 are outside the buffer of 256/,
      (g) => g.blit(() => host.host_fill(g.handle, g.buffer(256), 192n, 128n, 1)),
    ],
    [
      "a blit of an odd size",
      /must be multiples of 4/,
      (g) => g.blit(() => host.host_fill(g.handle, g.buffer(256), 0n, 3n, 1)),
    ],
    ["a blit onto itself", /source and destination overlap/, (g) => {
      const b = g.buffer(256);
      g.blit(() => host.host_copy(g.handle, b, 0n, b, 64n, 128n));
    }],
    [
      "an uncommitted residency set",
      /changes are not committed/,
      (g) => host.host_release(host.host_residency(g.handle, g.buffer(64), 0)),
    ],
  ];
  for (const [name, pattern, f] of cases) {
    await t.step(name, () => {
      using gpu = new Gpu(BUGS);
      const report = misuseOf(() => f(gpu));
      assert(pattern.test(report), `reported: "${report}"`);
    });
  }
});

Deno.test("misuse ends the process unless the option strict is off", async () => {
  const code = `import { Gpu } from ${JSON.stringify(new URL("./host.ts", import.meta.url).href)};
    new Gpu(${JSON.stringify(BUGS)}).buffer(0);`;
  const r = await new Deno.Command(Deno.execPath(), {
    args: ["eval", "--quiet", code],
    stderr: "piped",
    stdout: "null",
  }).output();
  assert(!r.success);
  assert(new TextDecoder().decode(r.stderr).includes("softmetal: API misuse: newBuffer: length is 0"));
});

Deno.test("options and an injected error can come from the environment", async () => {
  const code = `import { Gpu, host, words } from ${
    JSON.stringify(new URL("./host.ts", import.meta.url).href)
  };
    const gpu = new Gpu(${JSON.stringify(BUGS)}), b = gpu.buffer(256), p = gpu.pipeline("add");
    for (let i = 0; i < 3; i++) {
      try {
        gpu.run(p, [b, b, b, words(64)], [1, 1, 1], [64, 1, 1]);
        console.log("ok", gpu.maxThreads(p), host.host_os(14));
      } catch (e) { console.log(e.message); }
    }`;
  const env = { SOFTMETAL_INJECT: "2:8", SOFTMETAL_MAX_THREADS: "64", SOFTMETAL_OS: "14" };
  const r = await new Deno.Command(Deno.execPath(), { args: ["eval", "--quiet", code], env }).output();
  const lines = new TextDecoder().decode(r.stdout).trim().split("\n");
  assertEquals(lines[0], "ok 64 14");
  assert(lines[1].startsWith("Insufficient Memory"), lines[1]);
  assertEquals(lines[2], "ok 64 14");
});

Deno.test("an object autoreleased without a pool is reported when asked", () => {
  using gpu = new Gpu(BUGS);
  const report = withOptions(
    { pool_strict: 1 },
    () => misuseOf(() => host.host_autorelease_without_pool(gpu.handle)),
  );
  assert(report.includes("autoreleased with no pool"), report);
});

Deno.test("counters tell command buffers, commits, waits, dispatches, barriers and blits", () => {
  using gpu = new Gpu(BUGS);
  const [a, b, c] = [gpu.buffer(ones()), gpu.buffer(256), gpu.buffer(256)];
  softmetal.reset();
  gpu.begin(true);
  addTo(gpu, a, b);
  gpu.barrier(b);
  addTo(gpu, b, c);
  gpu.finish();
  gpu.blit(() => host.host_copy(gpu.handle, c, 0n, a, 0n, 256n));
  const counts = ["command_buffers", "commits", "waits", "encoders", "dispatches", "barriers", "blits"].map(
    softmetal.counter,
  );
  assertEquals(counts, [2, 2, 2, 2, 2, 1, 1]);
  assertEquals(softmetal.counter("nonsense"), -1);
  assertEquals(new Float32Array(gpu.read(a))[7], 4);
});

Deno.test("an injected error ends the chosen command buffer, with its code, and no other", () => {
  using gpu = new Gpu(BUGS);
  const a = gpu.buffer(ones()), c = gpu.buffer(256);
  const once = () => {
    gpu.begin();
    addTo(gpu, a, c);
    host.host_end(gpu.handle);
    host.host_commit(gpu.handle);
  };
  softmetal.injectError(2, 2);
  once();
  assert(gpu.wait() >= 0);
  once();
  assert([2, 3].includes(host.host_status(gpu.handle)), "status is read before the wait");
  assertEquals(gpu.error().code, 0);
  const e = assertThrows(() => gpu.wait(), HostError);
  assert(e.message.includes("kIOGPUCommandBufferCallbackErrorTimeout"), e.message);
  once();
  gpu.wait();
});

Deno.test("results are not there before the wait, and a host that polls the status gets them in the end", () => {
  using gpu = new Gpu(BUGS);
  const a = gpu.buffer(ones()), c = gpu.buffer(new Float32Array(64));
  gpu.begin();
  addTo(gpu, a, c);
  host.host_end(gpu.handle);
  host.host_commit(gpu.handle);
  assertEquals(new Float32Array(gpu.read(c))[0], 0);
  let polls = 0;
  while (host.host_status(gpu.handle) !== 4) assert(polls++ < 1000);
  assert(polls > 10);
  assertEquals(new Float32Array(gpu.read(c))[0], 2);
  gpu.wait();
});

Deno.test("a completed handler is called without a wait", () => {
  using gpu = new Gpu(BUGS);
  const a = gpu.buffer(ones()), c = gpu.buffer(256);
  gpu.begin();
  addTo(gpu, a, c);
  host.host_end(gpu.handle);
  assertEquals(host.host_handler(gpu.handle), 4);
  host.host_drop(gpu.handle);
  assertEquals(new Float32Array(gpu.read(c))[0], 2);
});

Deno.test("a nonblocking wait runs on a thread of Deno's and returns a fault as an error", async () => {
  using gpu = new Gpu(BUGS);
  const p = gpu.pipeline("null_write"), q = gpu.pipeline("add"), a = gpu.buffer(ones()), c = gpu.buffer(256);
  for (
    const [pipeline, args] of [[q, [a, a, c, words(64)]], [p, [c, words(16, 0)]], [q, [
      a,
      a,
      c,
      words(64),
    ]]] as const
  ) {
    gpu.begin();
    gpu.dispatch(pipeline, [...args], [1, 1, 1], [64, 1, 1]);
    host.host_end(gpu.handle);
    host.host_commit(gpu.handle);
    const failed = await gpu.waitNonblocking().then(
      () => false,
      (e) => e instanceof HostError && e.message.includes("null pointer"),
    );
    assertEquals(failed, pipeline === p);
  }
});

Deno.test("events order command buffers, and one that nothing signals is an error", () => {
  using gpu = new Gpu(BUGS), other = new Gpu(BUGS);
  const event = host.host_event(gpu.handle), a = gpu.buffer(ones()), b = gpu.buffer(256), c = gpu.buffer(256);
  host.host_begin(gpu.handle);
  host.host_await(gpu.handle, event, 1n);
  host.host_compute(gpu.handle, 0);
  addTo(gpu, b, c);
  host.host_end(gpu.handle);
  host.host_commit(gpu.handle);
  host.host_begin(other.handle);
  host.host_compute(other.handle, 0);
  addTo(other, a, b);
  host.host_end(other.handle);
  host.host_signal(other.handle, event, 1n);
  host.host_commit(other.handle);
  gpu.wait();
  assertEquals(host.host_event_value(event), 1n);
  assertEquals(new Float32Array(gpu.read(c))[0], 4);
  other.wait();
  host.host_begin(gpu.handle);
  host.host_await(gpu.handle, event, 9n);
  host.host_commit(gpu.handle);
  assert(
    assertThrows(() => gpu.wait(), HostError).message.includes("wait for event value 9 that nothing signals"),
  );
  host.host_release(event);
});

Deno.test("an indirect dispatch takes its grid from the buffer when it runs", () => {
  using gpu = new Gpu(BUGS);
  const grid = gpu.buffer(new Uint32Array([0, 0, 0, 2, 1, 1])),
    a = gpu.buffer(new Float32Array(128).fill(1)),
    c = gpu.buffer(new Float32Array(128));
  gpu.begin();
  gpu.bind(gpu.pipeline("add"), [a, a, c, words(128)]);
  host.host_indirect(gpu.handle, grid, 12n, 64);
  gpu.finish();
  assertEquals(new Float32Array(gpu.read(c)), new Float32Array(128).fill(2));
});

Deno.test("a function constant without a value, and an unknown function, are errors that name it", () => {
  using gpu = new Gpu(SPIKE);
  assert(
    assertThrows(() => gpu.pipeline("rms_norm"), HostError).message.includes(
      "function constant 0, which has no value",
    ),
  );
  assertThrows(() => gpu.pipeline("nonsense"), HostError);
  const e = assertThrows(
    () =>
      new Gpu("#include <metal_stdlib>\nkernel void k(device float* o [[buffer(0)]]) { o[0] = nonsense; }"),
    HostError,
  );
  assert(e.message.includes("nonsense"), e.message);
});

Deno.test("the simulated macOS decides what exists", () => {
  assertEquals([13, 14, 15].map((os) => withOptions({ os }, () => host.host_os(14))), [-1, 14, 15]);
  using gpu = new Gpu(BUGS);
  const b = gpu.buffer(64),
    residency = () => {
      const s = host.host_residency(gpu.handle, b, 1);
      if (s) host.host_release(s);
    };
  assertEquals(misuseOf(residency), "");
  assert(
    withOptions({ os: 14 }, () => misuseOf(residency)).includes(
      "unrecognized selector on macOS 14 (it came with 15)",
    ),
  );
  const newer = () => new Gpu(BUGS, { version: 0x30001 });
  assert(
    withOptions({ os: 13 }, () => assertThrows(newer, HostError)).message.includes("needs a newer macOS"),
  );
});

Deno.test("libraries compile in parallel, and two requests for one source share its compilation", async () => {
  const cache = Deno.makeTempDirSync();
  const source = (name: string) =>
    `#include <metal_stdlib>\nusing namespace metal;\nkernel void ${name}(device float* o [[buffer(0)]]) { o[0] = 1; }\n`;
  softmetal.set("cache", cache);
  softmetal.reset();
  try {
    const opened = await Promise.all(
      ["one", "two", "one"].map((n) => host.open_nonblocking(z(source(n)), 0, 0, new Uint8Array(64), 64n)),
    );
    assert(opened.every((h) => h !== null));
    assertEquals(softmetal.counter("kernel_compiles"), 2);
    opened.forEach((h) => host.host_close(h));
  } finally {
    softmetal.set("cache", "");
    Deno.removeSync(cache, { recursive: true });
  }
});

Deno.test("a binary archive keeps a function for the next run, and a stale or broken one is told apart", () => {
  using gpu = new Gpu(BUGS), other = new Gpu(SPIKE);
  const path = Deno.makeTempFileSync();
  assertEquals(gpu.archive(path, "add", true), null);
  softmetal.reset();
  assertEquals(gpu.archive(path, "add", false), null);
  assertEquals(softmetal.counter("archive_hits"), 1);
  assert(other.archive(path, "scale_add_f32", false)!.includes("in none of the binary archives"));
  Deno.writeTextFileSync(path, "something else");
  assert(gpu.archive(path, "add", false)!.includes("no binary archive"));
  Deno.removeSync(path);
});

Deno.test("nothing is left alive when its owners are gone", () => {
  const names = [
    "MTLBuffer",
    "MTLCommandBuffer",
    "MTLComputeCommandEncoder",
    "MTLLibrary",
    "MTLComputePipelineState",
    "MTLCommandQueue",
  ];
  const before = names.map(softmetal.live);
  {
    using gpu = new Gpu(BUGS);
    const a = gpu.buffer(ones()), c = gpu.buffer(256);
    gpu.begin();
    addTo(gpu, a, c);
    gpu.finish();
  }
  assertEquals(names.map(softmetal.live), before);
});
