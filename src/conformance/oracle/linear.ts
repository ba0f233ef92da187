/** The fused matrix product. */
import type { Clip } from "../../schedule/ops.ts";
import { geluMul, geluTanh, softcap } from "./activation.ts";
import { rmsNorm } from "./norm.ts";

/** One weight matrix [n, k] with its bias [n]. */
export interface Matrix {
  w: Float64Array;
  bias?: Float64Array;
  n: number;
}

/** Pointwise end of a linear, `other` [r, m]. */
export type LinearEpilogue =
  | { kind: "none" | "geglu" }
  | { kind: "gelu_mul"; other: Float64Array; m: number; column: number }
  | { kind: "softcap"; cap: number }
  | { kind: "silu" };

/** What a linear takes; x, residual [r, k]; norms [k]. */
export interface LinearInputs {
  x: Float64Array;
  k: number;
  residual?: Float64Array;
  postNorm?: Float64Array;
  scalar?: number;
  preNorm?: Float64Array;
  matrices: Matrix[];
  epilogue: LinearEpilogue;
  clip?: Clip;
  eps: number;
}

/** y = w · u + bias for each row. u [r, k] → [r, n]. */
export function matmul(u: Float64Array, k: number, { w, bias, n }: Matrix): Float64Array {
  const rows = u.length / k;
  const y = new Float64Array(rows * n);
  for (let r = 0; r < rows; r++) {
    for (let j = 0; j < n; j++) {
      let sum = 0;
      for (let i = 0; i < k; i++) sum += w[j * k + i] * u[r * k + i];
      y[r * n + j] = sum + (bias?.[j] ?? 0);
    }
  }
  return y;
}

/** h = (residual + rms_norm(x, postNorm)) · scalar; u = rms_norm(h, preNorm); y = epilogue(matrices · u). */
export function linear(inputs: LinearInputs): { h: Float64Array; y: Float64Array } {
  const { x, k, residual, postNorm, preNorm, scalar = 1, matrices, epilogue, clip, eps } = inputs;
  const normed = postNorm ? rmsNorm(x, postNorm, k, eps) : x;
  const h = normed.map((value, i) => ((residual?.[i] ?? 0) + value) * scalar);
  const within = (x: Float64Array, bounds?: readonly [number, number]) =>
    bounds ? x.map((value) => Math.min(Math.max(value, bounds[0]), bounds[1])) : x;
  const u = within(preNorm ? rmsNorm(h, preNorm, k, eps) : h, clip?.input);
  const products = matrices.map((matrix) => within(matmul(u, k, matrix), clip?.output));
  switch (epilogue.kind) {
    case "none":
      return { h, y: sideBySide(products, matrices.map((matrix) => matrix.n)) };
    case "geglu":
      return { h, y: products[0].map((gate, i) => geluTanh(gate) * products[1][i]) };
    case "gelu_mul":
      return { h, y: geluMul(products[0], matrices[0].n, epilogue.other, epilogue.m, epilogue.column) };
    case "softcap":
      return { h, y: softcap(products[0], epilogue.cap) };
    case "silu":
      return { h, y: products[0].map((value) => value / (1 + Math.exp(-value))) };
  }
}

/** [r, n0], [r, n1], … → [r, n0 + n1 + …]. */
function sideBySide(parts: Float64Array[], widths: number[]): Float64Array {
  const width = widths.reduce((a, b) => a + b, 0);
  const rows = parts[0].length / widths[0];
  const y = new Float64Array(rows * width);
  let column = 0;
  parts.forEach((part, p) => {
    for (let r = 0; r < rows; r++) {
      y.set(part.subarray(r * widths[p], (r + 1) * widths[p]), r * width + column);
    }
    column += widths[p];
  });
  return y;
}
