/** What ops need beside their operands while they run, as far as a plan tells before a device compiles it. */
import { operandsOf } from "./operands.ts";
import type { Op } from "./ops.ts";
import { type Limits, type Plan, tensorBytes } from "./plan.ts";
import type { Tensor } from "./tensor.ts";

/** Bytes of scratch that the CPU device takes for a plan, at most. */
export interface CpuScratch {
  /** of all threads together */ shared: number;
  /** of each thread */ thread: number;
}

/** Bytes of a thread whatever the plan: scores and sums of attention, a tile of plain numbers, its products. */
const THREAD_BYTES = 2 ** 20;
/**
 * Bytes that a column of the weight adds to a tile of 32 rows: codes, a scale and a bias of 16 columns, and the numbers that AMX takes;
 * and to the rows that are gathered for an expert.
 */
const TILE_BYTES = 32 * (1 + 8 / 16 + 2);
const GATHERED_BYTES = 32 * 4;
/** Most bytes of products of all rows with a tile of their experts, before they are added up; and those of each row and slot. */
const SUMMED_BYTES = 4 * 2 ** 20;
const PAIR_BYTES = 64 * 4;
/** Of the bytes of an op's activations, what it needs beside a copy of them: maxima of blocks, scales and sums of codes. */
const BESIDE = 1 / 32;

/**
 * What the CPU device takes for a plan. Ops share it, and none holds more than its activations once more: logits with adjustments,
 * activations after their norm, queries, codes.
 */
export function cpuScratch(plan: Plan): CpuScratch {
  let shared = 0, thread = 0;
  for (const op of plan.ops) {
    const activations = new Set(operandsOf(op).filter((tensor) => tensor?.buffer === 0));
    let bytes = 0;
    for (const tensor of activations) bytes += tensorBytes(tensor!, plan.limits);
    shared = Math.max(shared, bytes);
    thread = Math.max(thread, productBytes(op, plan.limits));
  }
  return { shared: Math.ceil(shared * (1 + BESIDE)), thread: THREAD_BYTES + thread };
}

/** Bytes of a thread for a product: tiles of weights, two where gate and up are taken together, and what it holds of experts' rows. */
function productBytes(op: Op, limits: Limits): number {
  switch (op.kind) {
    case "linear":
      return columnsOf(op.weights[0]) * TILE_BYTES * (op.epilogue.kind === "geglu" ? 2 : 1);
    case "expert_gate_up":
      return columnsOf(op.weights[0]) * (2 * TILE_BYTES + GATHERED_BYTES);
    case "expert_linear":
      return columnsOf(op.weight) * (TILE_BYTES + GATHERED_BYTES);
    case "expert_down": {
      const pairs = tensorBytes(op.experts, limits) / 4; // ids of 32 bits
      const summed = Math.min(pairs * PAIR_BYTES, Math.max(SUMMED_BYTES, pairs * 16));
      return columnsOf(op.weight) * (TILE_BYTES + GATHERED_BYTES) + summed;
    }
    default:
      return 0;
  }
}

function columnsOf(weight: Tensor): number {
  return weight.shape.at(-1) as number;
}
