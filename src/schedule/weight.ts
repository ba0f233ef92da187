/** A checkpoint's weight as a tensor of a plan. */
import { GGUF_BLOCK_ALIGNMENT } from "../checkpoint/gguf_types.ts";
import type { FileRange, ScaleDtype, WeightTensor } from "../checkpoint/tensor.ts";
import type { Format, Tensor } from "./tensor.ts";

const SCALE_BYTES: Record<ScaleDtype, number> = { f32: 4, bf16: 2, f16: 2, u8: 1 };

/** Bytes of one stored element, or of one word of packed ones: what the data must be aligned to. */
export function elementBytes({ format }: WeightTensor): number {
  if (format.kind === "gguf") return GGUF_BLOCK_ALIGNMENT;
  return format.kind === "bf16" || format.kind === "f16" ? 2 : 4; // packed formats are words of 4
}

/** Bytes of one scale; 1 where there are none. */
export function scaleBytes({ scaleDtype }: WeightTensor): number {
  return scaleDtype === null ? 1 : SCALE_BYTES[scaleDtype];
}

/** The format of a weight as plans spell it. */
function planFormat({ format, addend }: WeightTensor): Format {
  if (addend !== undefined) return { kind: "f32" };
  switch (format.kind) {
    case "affine":
      return { kind: "affine", bits: format.bits, group: format.groupSize };
    case "mxfp4":
    case "mxfp8":
      return { kind: format.kind, group: 32 };
    case "nvfp4":
      return { kind: "nvfp4", group: 16 };
    case "gguf":
      return { kind: "gguf", type: format.type };
    default:
      return { kind: format.kind };
  }
}

/** The plan tensor of a weight, its scales and biases beside it. `place` is told the weight with its data only. */
export function planTensor(
  weight: WeightTensor,
  place: (
    range: FileRange,
    elementBytes: number,
    weight?: WeightTensor,
  ) => { buffer: number; offset: number },
): Tensor {
  const format = planFormat(weight);
  const { data, scales, biases } = weight.parts;
  const ofGroup = (name: string, range: FileRange | undefined): Tensor | undefined => {
    if (range === undefined || weight.scaleDtype === null || !("group" in format)) return undefined;
    return {
      name: `${weight.name}.${name}`,
      format: { kind: weight.scaleDtype === "u8" ? "i8" : weight.scaleDtype },
      shape: [...weight.shape.slice(0, -1), weight.shape[weight.shape.length - 1] / format.group],
      ...place(range, scaleBytes(weight)),
    };
  };
  return {
    name: weight.name,
    format,
    shape: weight.shape,
    ...place(data, elementBytes(weight), weight),
    scales: ofGroup("scales", scales),
    biases: ofGroup("biases", biases),
  };
}
