/**
 * Run by hostile_test.ts in a process of its own, since a crash is what it looks for. Changes each 32-bit word of a good plan, then
 * of a good input block, to hostile values, and tries the result. Prints how often it was accepted and refused as JSON.
 */
import { encodePlan } from "../../src/schedule/plan.ts";
import { MarkbaseError } from "../../src/errors.ts";
import { Device } from "../../ffi/device.ts";
import type { Buffer } from "../../ffi/buffer.ts";
import {
  elementarySample,
  expertSample,
  fusedSample,
  outputBytes,
  type Sample,
  sampleBlock,
  sampleBuffers,
  towerSample,
} from "./sample.ts";

const REFUSALS = ["invalid_plan", "invalid_input", "invalid_argument", "unsupported"];
const counts: Record<string, number> = {};

/** Values that break what is not checked: borders of types, neighbours, small numbers, floats that are no numbers. */
function hostileValues(value: number): number[] {
  const borders = [0, 1, 2, 3, 31, 32, 255, 256, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff];
  const floats = [0x7f800000, 0xff800000, 0x7fc00000, 0x3f800000, 0xbf800000, 0x00000001];
  const near = [value + 1, value - 1, value * 2, value >>> 1, ~value, value ^ 0x10000, value + 64];
  return [...new Set([...borders, ...floats, ...near].map((v) => v >>> 0))].filter((v) => v !== value);
}

function count(outcome: string): void {
  counts[outcome] = (counts[outcome] ?? 0) + 1;
}

/** Counts an accepted attempt or a typed refusal; anything else ends the process. */
async function attempt(what: string, body: () => Promise<void>): Promise<void> {
  try {
    await body();
    count(`${what} accepted`);
  } catch (error) {
    if (!(error instanceof MarkbaseError) || !REFUSALS.includes(error.code)) throw error;
    count(`${what} ${error.code}`);
  }
}

async function tryPlan(
  device: Device,
  buffers: Buffer[],
  plan: Uint8Array,
  block: Uint8Array,
  bytes: number,
) {
  await attempt("plan", async () => {
    using pass = await device.compile(plan, buffers);
    await attempt("run", () => Promise.resolve(void pass.runSync(block, new Uint8Array(bytes))));
  });
}

async function mutatePlan(device: Device, sample: Sample): Promise<void> {
  const buffers = sampleBuffers(device, sample);
  const plan = encodePlan(sample.plan);
  const block = sampleBlock();
  const words = new Uint32Array(plan.buffer);
  for (let at = 0; at < words.length; at++) {
    const value = words[at];
    for (const hostile of hostileValues(value)) {
      words[at] = hostile;
      await tryPlan(device, buffers, plan, block, outputBytes(sample));
    }
    words[at] = value;
  }
  let seed = 1;
  const random = (below: number) => (seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0) % below;
  for (let i = 0; i < 5000; i++) { // two or three at once: words copied from elsewhere in the plan
    const changed = plan.slice();
    const view = new Uint32Array(changed.buffer);
    for (let n = 2 + random(2); n > 0; n--) view[random(words.length)] = words[random(words.length)];
    await tryPlan(device, buffers, changed, block, outputBytes(sample));
  }
  for (let length = 0; length < plan.length; length += 4) {
    await tryPlan(device, buffers, plan.slice(0, length), block, outputBytes(sample));
  }
}

async function mutateInput(device: Device, sample: Sample): Promise<void> {
  using pass = await device.compile(sample.plan, sampleBuffers(device, sample));
  const block = sampleBlock();
  const words = new Uint32Array(block.buffer);
  const output = new Uint8Array(outputBytes(sample));
  const run = (bytes: Uint8Array) =>
    attempt("input", () => Promise.resolve(void pass.runSync(bytes, output)));
  for (let at = 0; at < words.length; at++) {
    const value = words[at];
    for (const hostile of hostileValues(value)) {
      words[at] = hostile;
      await run(block);
    }
    words[at] = value;
  }
  for (let length = 0; length < block.length; length++) await run(block.slice(0, length));
  const odd = new Uint8Array(block.length + 1);
  odd.set(block, 1);
  await run(odd.subarray(1));
  pass.runSync(block, output); // still works
  count("good");
}

const device = await Device.open("cpu", { threads: 2 });
for (const sample of [fusedSample(), elementarySample(), expertSample(), towerSample()]) {
  await mutatePlan(device, sample);
  await mutateInput(device, sample);
}
console.log(JSON.stringify(counts));
