/** The best tokens of a row. */
import type { OutputRow } from "../../engine/input.ts";

/** Candidates that a row returns. */
export const CANDIDATES = 256;
/** Id where a row has fewer allowed tokens than candidates. */
export const NO_TOKEN = 0xffffffff;

/** One row's candidates: ids and values [256] (padding: NO_TOKEN and -Infinity), stats [4]. */
export interface RowCandidates {
  ids: Uint32Array;
  values: Float64Array;
  stats: Float64Array;
}

/** The best 256 of logits [V] after adjustments and mask, descending, ties by lower id. */
export function candidates(logits: Float64Array, output: OutputRow): RowCandidates {
  const { adjustments = [], temperature = 1, mask } = output;
  const adjusted = logits.slice();
  for (const { id, multiply, add } of adjustments) {
    const logit = logits[id];
    adjusted[id] = (logit > 0 ? logit * multiply : logit / multiply) + add;
  }
  const allowed: number[] = [];
  for (let id = 0; id < logits.length; id++) if (!mask || mask[id >> 5] >>> (id & 31) & 1) allowed.push(id);
  const best = allowed.toSorted((a, b) => adjusted[b] - adjusted[a] || a - b).slice(0, CANDIDATES);
  const ids = new Uint32Array(CANDIDATES).fill(NO_TOKEN);
  const values = new Float64Array(CANDIDATES).fill(-Infinity);
  best.forEach((id, i) => {
    ids[i] = id;
    values[i] = adjusted[id];
  });
  const scaled = Float64Array.from(allowed, (id) => adjusted[id] / temperature);
  return { ids, values, stats: Float64Array.of(logSumExp(logits), logSumExp(scaled), values[0], 0) };
}

/** ln Σ exp(x). */
export function logSumExp(x: Float64Array): number {
  const largest = x.reduce((a, b) => Math.max(a, b), -Infinity);
  if (largest === -Infinity) return -Infinity;
  return largest + Math.log(x.reduce((sum, value) => sum + Math.exp(value - largest), 0));
}
