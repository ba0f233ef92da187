/** Pointwise functions of the MLP and the head. */

/** The tanh approximation of GELU. */
export function geluTanh(x: number): number {
  return 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));
}

/** y = gelu_tanh(a) · b[:, column : column + n]. a, y [r, n]; b [r, m]. */
export function geluMul(
  a: Float64Array,
  n: number,
  b: Float64Array,
  m: number,
  column: number,
): Float64Array {
  return a.map((value, i) => geluTanh(value) * b[Math.floor(i / n) * m + column + i % n]);
}

/** y = cap · tanh(x / cap). */
export function softcap(x: Float64Array, cap: number): Float64Array {
  return x.map((value) => cap * Math.tanh(value / cap));
}
