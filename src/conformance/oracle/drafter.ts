/** The two ends of a drafter. */
import { largestOf } from "./moe.ts";
import { rmsNorm } from "./norm.ts";

/** [scale · table[token] | state] for each token; state [r, B] → [r, 2·B]. */
export function draftInput(
  row: (token: number) => Float64Array,
  state: Float64Array,
  tokens: readonly number[],
  scale: number,
): Float64Array {
  const B = state.length / tokens.length;
  const y = new Float64Array(2 * state.length);
  tokens.forEach((token, r) => {
    y.set(row(token).map((value) => value * scale), 2 * r * B);
    y.set(state.subarray(r * B, (r + 1) * B), (2 * r + 1) * B);
  });
  return y;
}

/** Logits [r, V] of the tokens of the topK best centroids; all others get the least of those - 1. */
export function centroidHead(
  x: Float64Array,
  norm: Float64Array | undefined,
  scores: Float64Array,
  ordering: Float64Array,
  table: Float64Array,
  { H, centroids, topK, eps }: { H: number; centroids: number; topK: number; eps: number },
): Float64Array {
  const u = norm ? rmsNorm(x, norm, H, eps) : x;
  const [rows, V, each] = [x.length / H, table.length / H, ordering.length / centroids];
  const y = new Float64Array(rows * V);
  largestOf(scores, centroids, topK).forEach((best, r) => {
    const tokens = best.flatMap((c) => [...ordering.subarray(c * each, (c + 1) * each)]).filter((id) =>
      id < V
    );
    const logits = tokens.map((id) => {
      let sum = 0;
      for (let i = 0; i < H; i++) sum += u[r * H + i] * table[id * H + i];
      return sum;
    });
    y.fill((logits.length > 0 ? Math.min(...logits) : 0) - 1, r * V, (r + 1) * V);
    tokens.forEach((id, i) => y[r * V + id] = logits[i]);
  });
  return y;
}
