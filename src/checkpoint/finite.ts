/** Finds values that are not finite, by their bits: all exponent bits set. */
import type { Format } from "./tensor.ts";

/** First NaN or Inf among little-endian `bytes` of a plain format, or null. */
export function firstNonFinite(bytes: Uint8Array, format: Format): { index: number; value: number } | null {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const size = format.kind === "f32" ? 4 : 2;
  const exponent = format.kind === "f32" ? 0x7f80_0000 : format.kind === "bf16" ? 0x7f80 : 0x7c00;
  const mantissa = format.kind === "f32" ? 0x007f_ffff : format.kind === "bf16" ? 0x007f : 0x03ff;
  for (let index = 0; index < bytes.byteLength / size; index++) {
    const word = size === 4 ? view.getUint32(index * 4, true) : view.getUint16(index * 2, true);
    if ((word & exponent) !== exponent) continue;
    const negative = word >>> (size * 8 - 1) === 1;
    return { index, value: (word & mantissa) !== 0 ? NaN : negative ? -Infinity : Infinity };
  }
  return null;
}
