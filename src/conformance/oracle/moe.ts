/** Routed experts. Pair s of row r is slot s of the row's K experts. */
import { geluTanh } from "./activation.ts";
import { rmsNorm } from "./norm.ts";

/** The choice of each row: experts [r, K] in descending order of their logits, and their shares [r, K]. */
export interface Choice {
  experts: Float64Array;
  shares: Float64Array;
}

/** Indices of the K largest of each row of values [r, n]: ties by lower index, NaN last. */
export function largestOf(values: Float64Array, n: number, K: number): number[][] {
  return Array.from({ length: values.length / n }, (_, r) => {
    const row = values.subarray(r * n, (r + 1) * n);
    const rank = (value: number) => Number.isNaN(value) ? -Infinity : value;
    return [...row.keys()].sort((a, b) =>
      rank(row[b]) - rank(row[a]) || Number(Number.isNaN(row[a])) - Number(Number.isNaN(row[b])) || a - b
    ).slice(0, K);
  });
}

/** The K best of logits [r, E]; shares are the softmax over the chosen, times the scale of each expert [E]. */
export function topK(logits: Float64Array, perExpertScale: Float64Array, K: number): Choice {
  const E = perExpertScale.length;
  const chosen = largestOf(logits, E, K);
  const shares = chosen.flatMap((ids, r) => {
    const weights = ids.map((id) => Math.exp(logits[r * E + id] - logits[r * E + ids[0]]));
    const sum = weights.reduce((a, b) => a + b, 0);
    return weights.map((weight, s) => weight / sum * perExpertScale[ids[s]]);
  });
  return { experts: Float64Array.from(chosen.flat()), shares: Float64Array.from(shares) };
}

/** projection [E, H] · (rms_norm(x) · scale · inScale) for x [r, H] → [r, E]. */
export function routerLogits(
  x: Float64Array,
  scale: Float64Array,
  projection: Float64Array,
  { eps, inScale }: { eps: number; inScale: number },
): Float64Array {
  const H = scale.length;
  const E = projection.length / H;
  const u = rmsNorm(x, scale, H, eps).map((value) => value * inScale);
  const logits = new Float64Array(x.length / H * E);
  for (let r = 0; r < x.length / H; r++) {
    for (let e = 0; e < E; e++) logits[r * E + e] = dot(u, r * H, projection, e * H, H);
  }
  return logits;
}

/** Weights of all experts, [E, rows, n]. */
export interface ExpertMatrix {
  values: Float64Array;
  rows: number;
  n: number;
}

/** Rows [first, first + N) of each pair's expert times its part of x; x [r, n] or [r, K·n] → [r, K·N]. */
export function expertLinear(
  x: Float64Array,
  experts: Float64Array,
  K: number,
  { values, rows, n }: ExpertMatrix,
  first: number,
  N: number,
): Float64Array {
  const eachSlot = x.length === experts.length * n;
  const count = values.length / (rows * n);
  const y = new Float64Array(experts.length * N);
  experts.forEach((expert, pair) => {
    if (expert >= count) return;
    const from = (eachSlot ? pair : Math.floor(pair / K)) * n;
    for (let i = 0; i < N; i++) {
      y[pair * N + i] = dot(x, from, values, (expert * rows + first + i) * n, n);
    }
  });
  return y;
}

/** gelu_tanh(gate) · up of each pair's expert; x [r, H] → [r, K·I]. One matrix holds gate rows, then up rows. */
export function expertGateUp(
  x: Float64Array,
  preNorm: Float64Array | undefined,
  experts: Float64Array,
  K: number,
  matrices: readonly ExpertMatrix[],
  eps: number,
): Float64Array {
  const [gate, up = gate] = matrices;
  const I = matrices.length === 1 ? gate.rows / 2 : gate.rows;
  const u = preNorm ? rmsNorm(x, preNorm, gate.n, eps) : x;
  const a = expertLinear(u, experts, K, gate, 0, I);
  const b = expertLinear(u, experts, K, up, matrices.length === 1 ? I : 0, I);
  return a.map((value, i) => geluTanh(value) * b[i]);
}

/** Σ over slots of shares [r, K] · x [r, K·n] → [r, n]. */
export function expertSum(x: Float64Array, shares: Float64Array, K: number): Float64Array {
  const n = x.length / shares.length;
  const y = new Float64Array(x.length / K);
  shares.forEach((share, pair) => {
    const to = Math.floor(pair / K) * n;
    for (let i = 0; i < n; i++) y[to + i] += share * x[pair * n + i];
  });
  return y;
}

function dot(a: Float64Array, atA: number, b: Float64Array, atB: number, n: number): number {
  let sum = 0;
  for (let i = 0; i < n; i++) sum += a[atA + i] * b[atB + i];
  return sum;
}
