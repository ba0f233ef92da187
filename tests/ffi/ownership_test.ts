import { assert, assertEquals, assertRejects, assertThrows } from "@std/assert";
import { Device } from "../../ffi/device.ts";
import type { Pass } from "../../ffi/pass.ts";
import { DeviceError, Disposed, InvalidArgument } from "../../src/errors.ts";
import { Holder } from "./holder.ts";
import {
  elementarySample,
  expertSample,
  fusedSample,
  outputBytes,
  sampleBlock,
  sampleBuffers,
  towerSample,
} from "./sample.ts";

const LONG = 1e6; // repetitions: far longer than any test waits

async function compiled(device: Device): Promise<Pass> {
  const sample = fusedSample();
  const buffers = sampleBuffers(device, sample);
  const pass = await device.compile(sample.plan, buffers);
  for (const buffer of buffers) buffer.close(); // the pass keeps them
  return pass;
}

Deno.test("a device, buffer or pass that was closed throws Disposed from every method", async () => {
  const device = await Device.open("cpu");
  const buffer = device.createBuffer(16);
  const pass = await compiled(device);
  pass.close();
  assertThrows(() => pass.info(), Disposed);
  assertThrows(() => pass.cancel(), Disposed);
  assertThrows(() => pass.runSync(sampleBlock()), Disposed);
  await assertRejects(() => pass.run(sampleBlock()), Disposed);
  await assertRejects(() => pass.time(sampleBlock(), 1), Disposed);
  buffer.close();
  const bytes = new Uint8Array(4);
  const other = device.createBuffer(16);
  assertThrows(() => buffer.read(0, bytes), Disposed);
  assertThrows(() => buffer.write(0, bytes), Disposed);
  assertThrows(() => buffer.fill(0, 1, 0), Disposed);
  assertThrows(() => buffer.copy(0, other, 0, 1), Disposed);
  assertThrows(() => other.copy(0, buffer, 0, 1), Disposed);
  await assertRejects(() => buffer.readAsync(0, bytes), Disposed);
  await assertRejects(() => buffer.writeAsync(0, bytes), Disposed);
  await assertRejects(() => device.compile(fusedSample().plan, [buffer]), Disposed);
  other.close();
  device.close();
  assertThrows(() => device.info(), Disposed);
  assertThrows(() => device.memory(), Disposed);
  assertThrows(() => device.createBuffer(1), Disposed);
  await assertRejects(() => device.mapFile("/", 0, 1), Disposed);
  await assertRejects(() => device.compile(new Uint8Array(48), []), Disposed);
});

Deno.test("closing twice throws Disposed, disposing twice is harmless", async () => {
  const device = await Device.open("cpu");
  const buffer = device.createBuffer(16);
  const pass = await compiled(device);
  for (const object of [pass, buffer, device]) {
    object.close();
    assertThrows(() => object.close(), Disposed);
    object[Symbol.dispose]();
    await object[Symbol.asyncDispose]();
  }
});

Deno.test("using releases everything, in whatever order", async () => {
  using watch = await Device.open("cpu");
  {
    using pass = await compiled(watch);
    assertEquals(watch.memory().livePasses, 1);
    assertEquals(watch.memory().liveBuffers, 3, "the pass keeps the buffers that were closed");
    const bytes = new Uint8Array(outputBytes(fusedSample()));
    await pass.run(sampleBlock(), bytes);
    assert(bytes.some((byte) => byte !== 0));
  }
  const { buffers, scratch, repacked, liveBuffers, livePasses, peak } = watch.memory();
  assertEquals({ buffers, scratch, repacked, liveBuffers, livePasses }, {
    buffers: 0,
    scratch: 0,
    repacked: 0,
    liveBuffers: 0,
    livePasses: 0,
  });
  assert(peak > 0);
  const device = await Device.open("cpu");
  const pass = await compiled(device);
  device.close();
  await pass.run(sampleBlock(), new Uint8Array(outputBytes(fusedSample()))); // the pass keeps the device
  pass.close();
});

Deno.test("disposing a pass during a run cancels it: the call rejects with Disposed and all is released", async () => {
  using device = await Device.open("cpu");
  const pass = await compiled(device);
  const running = pass.time(sampleBlock(), LONG);
  const queued = pass.run(sampleBlock());
  await sleep(20);
  pass[Symbol.dispose]();
  assertEquals(device.memory().livePasses, 1, "released only after the run");
  const outcomes = await Promise.allSettled([running, queued]);
  for (const outcome of outcomes) assert(outcome.status === "rejected" && outcome.reason instanceof Disposed);
  assertEquals(device.memory().livePasses, 0);
});

Deno.test("asynchronous disposal waits for the run under way", async () => {
  using device = await Device.open("cpu");
  const pass = await compiled(device);
  const running = pass.time(sampleBlock(), LONG).catch((error) => error);
  await sleep(20);
  await pass[Symbol.asyncDispose]();
  assertEquals(device.memory().livePasses, 0);
  assert(await running instanceof Disposed);
});

Deno.test("buffers and a device that are closed while a plan compiles are released after it", async () => {
  using watch = await Device.open("cpu");
  const sample = fusedSample();
  for (let round = 0; round < 20; round++) {
    const buffers = sampleBuffers(watch, sample);
    const compiling = watch.compile(sample.plan, buffers);
    for (const buffer of buffers) buffer.close();
    assertThrows(() => buffers[0].read(0, new Uint8Array(1)), Disposed);
    using pass = await compiling;
    await pass.run(sampleBlock(), new Uint8Array(outputBytes(sample)));
  }
  assertEquals(watch.memory().liveBuffers, 0);
  const device = await Device.open("cpu");
  const buffers = sampleBuffers(device, sample);
  const compiling = device.compile(sample.plan, buffers);
  device.close();
  using pass = await compiling;
  for (const buffer of buffers) buffer.close();
  await pass.run(sampleBlock(), new Uint8Array(outputBytes(sample)));
});

Deno.test("a cancelled run rejects with a cancelled error, and the next one works", async () => {
  using device = await Device.open("cpu");
  using pass = await compiled(device);
  const running = assertRejects(() => pass.time(sampleBlock(), LONG), DeviceError);
  const queued = assertRejects(() => pass.time(sampleBlock(), LONG), DeviceError);
  await sleep(20);
  pass.cancel();
  assertEquals([(await running).code, (await queued).code], ["cancelled", "cancelled"]);
  pass.cancel(); // nothing runs: nothing to cancel later either
  await pass.time(sampleBlock(), 1);
});

Deno.test("an aborted run rejects with the signal's own reason, and only that run", async () => {
  using device = await Device.open("cpu");
  using pass = await compiled(device);
  const controller = new AbortController();
  const reason = new Error("the user pressed Ctrl-C");
  const running = assertRejects(() => pass.time(sampleBlock(), LONG, { signal: controller.signal }));
  const next = pass.time(sampleBlock(), 1);
  await sleep(20);
  controller.abort(reason);
  assertEquals(await running, reason);
  await next;
  assertEquals(
    await assertRejects(() => pass.run(sampleBlock(), undefined, { signal: controller.signal })),
    reason,
  );
  for (let i = 0; i < 50; i++) { // aborts that come about when the run ends
    const late = new AbortController();
    const run = pass.time(sampleBlock(), 1, { signal: late.signal }).catch((error) => error);
    await sleep(0);
    late.abort(reason);
    await run;
    await pass.time(sampleBlock(), 1);
  }
});

Deno.test("buffers that could move are refused by every call", async () => {
  using device = await Device.open("cpu");
  using pass = await compiled(device);
  using buffer = device.createBuffer(64);
  const shared = new Uint8Array(new SharedArrayBuffer(8));
  const resizable = new Uint8Array(new ArrayBuffer(8, { maxByteLength: 16 }));
  for (const bytes of [shared, resizable]) {
    assertThrows(() => buffer.read(0, bytes), InvalidArgument);
    assertThrows(() => buffer.write(0, bytes), InvalidArgument);
    await assertRejects(() => buffer.readAsync(0, bytes), InvalidArgument);
    await assertRejects(() => buffer.writeAsync(0, bytes), InvalidArgument);
    assertThrows(() => pass.runSync(bytes), InvalidArgument);
    await assertRejects(() => pass.run(bytes), InvalidArgument);
    await assertRejects(() => pass.run(sampleBlock(), bytes), InvalidArgument);
    await assertRejects(() => pass.time(bytes, 1), InvalidArgument);
    await assertRejects(() => device.compile(bytes, [buffer]), InvalidArgument);
  }
});

Deno.test("blocking and nonblocking runs give the same bytes; a blocking one is refused during another", async () => {
  using device = await Device.open("cpu");
  for (const sample of [fusedSample(), elementarySample(), expertSample(), towerSample()]) {
    using pass = await device.compile(sample.plan, sampleBuffers(device, sample));
    const [a, b] = [new Uint8Array(outputBytes(sample)), new Uint8Array(outputBytes(sample))];
    const statistics = await pass.run(sampleBlock(), a);
    assert(statistics.wallNs > 0 && statistics.deviceNs > 0);
    pass.runSync(sampleBlock(), b);
    assertEquals(a, b);
    assert(a.some((byte) => byte !== 0));
    const running = pass.time(sampleBlock(), LONG).catch(() => {});
    await sleep(5);
    assertThrows(() => pass.runSync(sampleBlock(), b), InvalidArgument, "under way");
    pass.cancel();
    await running;
  }
});

for (const foreseen of ["look", "block"] as const) {
  Deno.test(`a foreseen run (${foreseen}) gives the same bytes and errors, however well its end was foreseen`, async () => {
    using device = await Device.open("cpu");
    const sample = fusedSample();
    using pass = await device.compile(sample.plan, sampleBuffers(device, sample));
    const [a, b] = [new Uint8Array(outputBytes(sample)), new Uint8Array(outputBytes(sample))];
    const plain = await pass.run(sampleBlock(), a);
    for (let i = 0; i < 20; i++) {
      b.fill(0);
      const statistics = await pass.run(sampleBlock(), b, { foreseen });
      assertEquals(b, a);
      assert(statistics.wallNs > 0 && statistics.dispatches === plain.dispatches);
    }
    // The bytes are there before the call of the library has returned, so the next run may begin before that too.
    await Promise.all(Array.from({ length: 20 }, () => pass.run(sampleBlock(), b, { foreseen })));
    const wrong = await assertRejects(() => pass.run(sampleBlock(), new Uint8Array(1), { foreseen }));
    assert(wrong instanceof InvalidArgument, String(wrong));
    const block = sampleBlock();
    block[0]++; // its magic
    const error = await assertRejects(() => pass.run(block, b, { foreseen }), DeviceError);
    assertEquals(error.code, "invalid_input");
    assertEquals(pass.runSync(sampleBlock(), b).dispatches, plain.dispatches);
    assertEquals(b, a);
  });
}

for (const foreseen of ["look", "block"] as const) {
  Deno.test(`a foreseen run (${foreseen}) is waited for like any other when it comes late or early`, async () => {
    using device = await Device.open("cpu");
    using pass = await compiled(device);
    const output = new Uint8Array(outputBytes(fusedSample()));
    using holder = await Holder.open(device);
    await pass.run(sampleBlock(), output);
    const expected = output.slice();
    for (let round = 0; round < 2; round++) {
      // This makes the run late, and the next foreseen as long.
      const letGo = await holder.hold();
      const late = pass.run(sampleBlock(), output, { foreseen });
      await sleep(20);
      await letGo();
      assert((await late).wallNs > 10e6);
      assertEquals(output, expected);
      assert((await pass.run(sampleBlock(), output, { foreseen })).wallNs > 0);
      assertEquals(output, expected);
    }
  });
}

for (const foreseen of ["look", "block"] as const) {
  Deno.test(`a foreseen run (${foreseen}) ends with the signal's reason or with Disposed, and nothing is kept`, async () => {
    using device = await Device.open("cpu");
    const pass = await compiled(device);
    using holder = await Holder.open(device);
    await pass.run(sampleBlock(), new Uint8Array(outputBytes(fusedSample())));
    const stop = async (end: (controller: AbortController) => void): Promise<unknown> => {
      const controller = new AbortController();
      const letGo = await holder.hold();
      const run = pass.run(sampleBlock(), new Uint8Array(outputBytes(fusedSample())), {
        foreseen,
        signal: controller.signal,
      }).catch((error) => error);
      await sleep(0);
      end(controller);
      await letGo();
      return await run;
    };
    const reason = new Error("enough");
    assertEquals(await stop((controller) => controller.abort(reason)), reason);
    await pass.run(sampleBlock(), new Uint8Array(outputBytes(fusedSample())), { foreseen });
    assert(await stop(() => pass[Symbol.dispose]()) instanceof Disposed);
    await pass[Symbol.asyncDispose]();
    assertEquals(device.memory().livePasses, 1, "the holder's");
  });
}

Deno.test("a Worker that is ended during runs does no harm to what runs elsewhere", async () => {
  using device = await Device.open("cpu");
  using pass = await compiled(device);
  const [a, b] = [1, 2].map(() => new Uint8Array(outputBytes(fusedSample())));
  await pass.run(sampleBlock(), a);
  for (let round = 0; round < 4; round++) {
    const worker = new Worker(new URL("./ended_worker.ts", import.meta.url), { type: "module" });
    await new Promise<void>((resolve, reject) => {
      worker.onmessage = () => resolve();
      worker.onerror = (event) => reject(new Error(event.message));
    });
    worker.terminate();
    await pass.run(sampleBlock(), b, { foreseen: "look" });
    assertEquals(b, a);
  }
});

Deno.test("forgotten objects are collected, and buffers in use are not", async () => {
  const script = new URL("./collect.ts", import.meta.url);
  const { success, stdout, stderr } = await new Deno.Command(Deno.execPath(), {
    args: ["run", "-A", "--v8-flags=--expose-gc", script.href],
    stdout: "piped",
    stderr: "piped",
  }).output();
  assert(success, new TextDecoder().decode(stderr));
  assertEquals(new TextDecoder().decode(stdout).trim(), "collected");
});

function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
