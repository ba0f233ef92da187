/** Run by ownership_test.ts with --v8-flags=--expose-gc: prints "collected" when no memory is freed too early or never. */
import { Device } from "../../ffi/device.ts";
import { fusedSample, sampleBlock, sampleBuffers } from "./sample.ts";

declare const gc: () => void;

/** Allocates and collects, so that freed memory would be reused. */
async function churn(milliseconds: number): Promise<void> {
  for (const end = performance.now() + milliseconds; performance.now() < end;) {
    const waste = Array.from({ length: 50 }, () => new Uint8Array(4096).fill(0xff));
    gc();
    await new Promise((resolve) => setTimeout(resolve, waste.length % 2));
  }
}

/** A call of at least 200 ms whose buffers nobody but the call refers to. Resolves to the seconds of each repetition. */
function longRun(device: Device): Promise<Float64Array> {
  return (async () => {
    const sample = fusedSample();
    const pass = await device.compile(sample.plan, sampleBuffers(device, sample));
    const one = Math.min(...await pass.time(sampleBlock(), 10));
    return await pass.time(sampleBlock(), Math.ceil(0.25 / one));
  })();
}

const device = await Device.open("cpu", { threads: 1 });
const running = longRun(device);
await churn(150);
const seconds = await running;
if (!seconds.every((value) => value > 0)) throw new Error("a repetition left no time behind");

for (let i = 0; i < 20; i++) device.createBuffer(1000); // forgotten
for (let i = 0; i < 50 && device.memory().liveBuffers + device.memory().livePasses > 0; i++) await churn(20);
const { liveBuffers, livePasses } = device.memory();
if (liveBuffers + livePasses > 0) {
  throw new Error(`${liveBuffers} buffers and ${livePasses} passes were never released`);
}
device.close();
console.log("collected");
