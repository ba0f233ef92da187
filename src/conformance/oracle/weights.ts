/** Stored tensors as float64. */
import type { Limits } from "../../schedule/plan.ts";
import { rowBytes } from "../../schedule/plan.ts";
import type { Tensor } from "../../schedule/tensor.ts";
import type { ScaleDtype } from "../../checkpoint/tensor.ts";
import { dequantizeRow } from "./dequantize.ts";
import { fromBf16, fromF16 } from "./numbers.ts";

/** The sizes of a tensor with every symbol at its maximum. */
export function sizesOf(tensor: Tensor, limits: Limits): number[] {
  return tensor.shape.map((dim) => typeof dim === "number" ? dim : limits[dim]);
}

/** All elements of a stored tensor, row-major. `buffers` are the plan's, by index. */
export function readTensor(tensor: Tensor, buffers: readonly Uint8Array[], limits: Limits): Float64Array {
  const sizes = sizesOf(tensor, limits);
  const columns = sizes[sizes.length - 1];
  const rows = sizes.slice(0, -1).reduce((a, b) => a * b, 1);
  const values = new Float64Array(rows * columns);
  for (let row = 0; row < rows; row++) values.set(readRow(tensor, row, buffers, limits), row * columns);
  return values;
}

/** Row `row` of a stored tensor seen as [rows, columns]. */
export function readRow(
  tensor: Tensor,
  row: number,
  buffers: readonly Uint8Array[],
  limits: Limits,
): Float64Array {
  const { format, shape } = tensor;
  const last = shape[shape.length - 1];
  const columns = typeof last === "number" ? last : limits[last];
  const bytes = rowBytes(format, columns);
  const buffer = buffers[tensor.buffer];
  const view = new DataView(buffer.buffer, buffer.byteOffset + tensor.offset + row * bytes, bytes);
  const values = new Float64Array(columns);
  switch (format.kind) {
    case "f32":
      return values.map((_, i) => view.getFloat32(4 * i, true));
    case "u32":
      return values.map((_, i) => view.getUint32(4 * i, true));
    case "f16":
      return values.map((_, i) => fromF16(view.getUint16(2 * i, true)));
    case "bf16":
      return values.map((_, i) => fromBf16(view.getUint16(2 * i, true)));
    case "i8":
      return values.map((_, i) => view.getInt8(i));
    default: {
      const from = (part: Tensor) => buffers[part.buffer].subarray(part.offset);
      const { scales, biases } = tensor;
      const parts = { data: from(tensor), scales: scales && from(scales), biases: biases && from(biases) };
      const stored = format.kind === "affine"
        ? { kind: format.kind, bits: format.bits, groupSize: format.group }
        : format;
      const scaleDtype = scales === undefined || scales.format.kind === "i8"
        ? null
        : scales.format.kind as ScaleDtype;
      return dequantizeRow(parts, stored, scaleDtype, columns, row);
    }
  }
}
