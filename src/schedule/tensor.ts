/** Tensors of a plan: a typed, shaped view of bytes in one of the plan's buffers. */
import type { GgufType } from "../checkpoint/gguf_types.ts";

/** Storage formats; `affine` is MLX quantisation, w = scale · code + bias; `gguf` are rows of blocks with their own scales. */
export type Format =
  | { kind: "f32" | "f16" | "bf16" | "u32" | "i8" }
  | { kind: "affine"; bits: 2 | 3 | 4 | 5 | 6 | 8; group: 32 | 64 | 128 }
  | { kind: "mxfp4" | "mxfp8" | "nvfp4"; group: 16 | 32 }
  | { kind: "gguf"; type: GgufType };

/** Sizes that change from run to run. */
export type DimSymbol = "rows" | "out_rows" | "sequences" | "pages";

/** One extent: a constant or a symbol with a maximum. */
export type Dim = number | DimSymbol;

/** A view of bytes in a plan buffer. Quantised weights carry their scales and biases as tensors of their own. */
export interface Tensor {
  readonly name: string;
  readonly format: Format;
  /** row-major, last dimension contiguous; at most five */
  readonly shape: readonly Dim[];
  /** index into the plan's buffers */
  readonly buffer: number;
  /** bytes from the buffer's start; activations get theirs when the plan is laid out */
  offset: number;
  /** [N, K / group] */
  readonly scales?: Tensor;
  /** [N, K / group] */
  readonly biases?: Tensor;
}
