/** Norms, sums and activations. */
import { geluMul, softcap } from "../activation.ts";
import { add, rmsNorm } from "../norm.ts";
import { layerNorm } from "../towers.ts";
import { columns, type OpTable } from "./forward.ts";

/** See the head of this file. */
export const POINTWISE: OpTable<"rms_norm" | "layer_norm" | "add" | "add_norms" | "gelu_mul" | "softcap"> = {
  rms_norm({ x, weight, group, eps, inScale, y }, { read, maybe, write }) {
    write(y, rmsNorm(read(x), maybe(weight), group, eps, inScale));
  },
  layer_norm({ x, weight, bias, eps, y }, { read, maybe, write }) {
    write(y, layerNorm(read(x), columns(x), read(weight), maybe(bias), eps));
  },
  add({ a, b, aScale, bScale, scalar, y }, { read, maybe, write }) {
    write(y, add(read(a), maybe(b), aScale, bScale, maybe(scalar)?.[0]));
  },
  add_norms({ a, aNorm, b, bNorm, eps, y }, { read, write }) {
    const n = columns(y);
    const normed = rmsNorm(read(a), read(aNorm), n, eps);
    write(y, add(normed, rmsNorm(read(b), read(bNorm), n, eps), 1, 1));
  },
  gelu_mul({ a, b, column, y }, { read, write }) {
    write(y, geluMul(read(a), columns(a), read(b), columns(b), column));
  },
  softcap({ x, cap, y }, { read, write }) {
    write(y, softcap(read(x), cap));
  },
};
