/** Root-mean-square norm and the residual sum. */

/** y = x·inScale · (mean((x·inScale)²) + eps)^-1/2 · weight over each `group` columns. x, y [r, n]; weight [group]. */
export function rmsNorm(
  x: Float64Array,
  weight: Float64Array | undefined,
  group: number,
  eps: number,
  inScale = 1,
): Float64Array {
  const y = new Float64Array(x.length);
  for (let start = 0; start < x.length; start += group) {
    let squares = 0;
    for (let i = 0; i < group; i++) squares += (x[start + i] * inScale) ** 2;
    const factor = 1 / Math.sqrt(squares / group + eps);
    for (let i = 0; i < group; i++) y[start + i] = x[start + i] * inScale * factor * (weight?.[i] ?? 1);
  }
  return y;
}

/** y = (a · aScale + b · bScale) · scalar. a, b, y [r, n]. */
export function add(
  a: Float64Array,
  b: Float64Array | undefined,
  aScale: number,
  bScale: number,
  scalar = 1,
): Float64Array {
  return a.map((value, i) => (value * aScale + (b ? b[i] * bScale : 0)) * scalar);
}
