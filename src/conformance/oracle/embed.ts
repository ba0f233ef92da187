/** Rows looked up by token or by index. */
import { rmsNorm } from "./norm.ts";

/** y[i] = x[index[i]]. x [·, n] → [index.length, n]. */
export function gather(x: Float64Array, n: number, index: readonly number[]): Float64Array {
  const y = new Float64Array(index.length * n);
  index.forEach((row, i) => y.set(x.subarray(row * n, (row + 1) * n), i * n));
  return y;
}

/**
 * y[i] = scale · table[token[i]], or the soft token of the row. `row(token)` gives a dequantised row [w], `soft(i)` the soft
 * token of row i.
 */
export function embed(
  row: (token: number) => Float64Array,
  w: number,
  tokens: readonly number[],
  scale: number,
  soft?: (index: number) => Float64Array | undefined,
): Float64Array {
  const y = new Float64Array(tokens.length * w);
  tokens.forEach((token, i) => y.set(soft?.(i) ?? row(token).map((value) => value * scale), i * w));
  return y;
}

/** y = (rms_norm(projected · projectionScale, norm) + table[token] · tableScale) · outScale. projected, y [r, L·P]; norm [P]. */
export function perLayerInputs(
  projected: Float64Array,
  row: (token: number) => Float64Array,
  norm: Float64Array,
  tokens: readonly number[],
  options: { eps: number; projectionScale: number; tableScale: number; outScale: number },
): Float64Array {
  const { eps, projectionScale, tableScale, outScale } = options;
  const context = rmsNorm(projected, norm, norm.length, eps, projectionScale);
  const identity = embed(row, projected.length / tokens.length, tokens, tableScale);
  return context.map((value, i) => (value + identity[i]) * outScale);
}
