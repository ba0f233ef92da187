/** What stored weights mean: one row of any format as float64 numbers. */
import { GGUF_BLOCKS } from "../../checkpoint/gguf_types.ts";
import { bitsOf, type Format, groupSizeOf, type ScaleDtype } from "../../checkpoint/tensor.ts";
import { dequantizeBlocks } from "./gguf.ts";
import { fromBf16, fromF16 } from "./numbers.ts";

/** The bytes of a whole weight [rows, columns]; scales and biases are [rows, columns / group]. */
export interface WeightBytes {
  data: Uint8Array;
  scales?: Uint8Array;
  biases?: Uint8Array;
}

/** Row `row` of a weight [rows, columns]; leading dimensions such as experts count as rows. */
export function dequantizeRow(
  bytes: WeightBytes,
  format: Format,
  scaleDtype: ScaleDtype | null,
  columns: number,
  row: number,
): Float64Array {
  if (format.kind === "gguf") {
    const rowBytes = columns / GGUF_BLOCKS[format.type].elements * GGUF_BLOCKS[format.type].bytes;
    return dequantizeBlocks(format.type, bytes.data.subarray(row * rowBytes, (row + 1) * rowBytes));
  }
  const values = new Float64Array(columns);
  const group = groupSizeOf(format);
  const bits = bitsOf(format);
  for (let column = 0; column < columns; column++) {
    if (group === null) {
      values[column] = readNumber(bytes.data, format.kind as "f32" | "bf16" | "f16", row * columns + column);
      continue;
    }
    // Columns fill whole 32-bit words, so a row starts at a byte.
    const code = readBits(bytes.data, row * columns * bits / 8, column * bits, bits);
    const at = row * (columns / group) + Math.floor(column / group);
    switch (format.kind) {
      case "affine": {
        const dtype = scaleDtype as "f32" | "bf16" | "f16";
        values[column] = readNumber(bytes.scales!, dtype, at) * code + readNumber(bytes.biases!, dtype, at);
        break;
      }
      case "mxfp4":
        values[column] = fromE2m1(code) * 2 ** (bytes.scales![at] - 127);
        break;
      case "mxfp8":
        values[column] = fromE4m3(code) * 2 ** (bytes.scales![at] - 127);
        break;
      case "nvfp4":
        values[column] = fromE2m1(code) * fromE4m3(bytes.scales![at]);
    }
  }
  return values;
}

/** Number `index` of little-endian `bytes`. */
export function readNumber(bytes: Uint8Array, dtype: "f32" | "bf16" | "f16", index: number): number {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (dtype === "f32") return view.getFloat32(index * 4, true);
  const word = view.getUint16(index * 2, true);
  return dtype === "bf16" ? fromBf16(word) : fromF16(word);
}

/** `count` bits from bit `start` of the little-endian bit stream that begins at byte `offset`. */
function readBits(bytes: Uint8Array, offset: number, start: number, count: number): number {
  let value = 0;
  for (let i = 0; i < count; i++) {
    const bit = start + i;
    value |= ((bytes[offset + (bit >> 3)] >> (bit & 7)) & 1) << i;
  }
  return value;
}

/** 4-bit float: sign, 2 exponent bits (bias 1), 1 mantissa bit. */
function fromE2m1(code: number): number {
  const magnitude = [0, 0.5, 1, 1.5, 2, 3, 4, 6][code & 7];
  return code & 8 ? -magnitude : magnitude;
}

/** 8-bit float without infinities: sign, 4 exponent bits (bias 7), 3 mantissa bits. */
export function fromE4m3(code: number): number {
  const exponent = (code >> 3) & 15;
  const mantissa = code & 7;
  if (exponent === 15 && mantissa === 7) return NaN;
  const magnitude = exponent === 0 ? mantissa * 2 ** -9 : (1 + mantissa / 8) * 2 ** (exponent - 7);
  return code & 0x80 ? -magnitude : magnitude;
}
