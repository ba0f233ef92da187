/** What ops need beside their operands while they run, as far as a plan tells before a device compiles it. */
import { operandsOf } from "./operands.ts";
import { type Plan, tensorBytes } from "./plan.ts";

/** Bytes of scratch that a thread of the CPU device takes at most: a tile of weights as numbers, scores and sums of attention. */
export const CPU_THREAD_BYTES: number = 2 ** 20;
/** Of the bytes of an op's activations, what it needs beside a copy of them: maxima of blocks, scales and sums of codes. */
const BESIDE = 1 / 32;

/**
 * Bytes of scratch that the CPU device takes for a plan on so many threads at most. Ops share it, and none holds more than its
 * activations once more: logits with adjustments, activations after their norm, queries, codes.
 */
export function cpuScratchBytes(plan: Plan, threads: number): number {
  let most = 0;
  for (const op of plan.ops) {
    const activations = new Set(operandsOf(op).filter((tensor) => tensor?.buffer === 0));
    let bytes = 0;
    for (const tensor of activations) bytes += tensorBytes(tensor!, plan.limits);
    most = Math.max(most, bytes);
  }
  return Math.ceil(most * (1 + BESIDE)) + threads * CPU_THREAD_BYTES;
}
