/** Half and bfloat numbers: how stored values become numbers, and numbers stored values. */

/** The value of a bfloat16 pattern: the upper half of a float32. */
export function fromBf16(bits: number): number {
  word[0] = bits << 16;
  return float[0];
}

/** The bfloat16 pattern nearest to a finite value, ties to even. */
export function toBf16(value: number): number {
  float[0] = value;
  const bits = word[0];
  return (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16;
}

/** The value of a half pattern. */
export function fromF16(bits: number): number {
  halfView.setUint16(0, bits, true);
  return halfView.getFloat16(0, true);
}

/** The half pattern nearest to a value, ties to even. */
export function toF16(value: number): number {
  halfView.setFloat16(0, value, true);
  return halfView.getUint16(0, true);
}

const float = new Float32Array(1);
const word = new Uint32Array(float.buffer);
const halfView = new DataView(new ArrayBuffer(2));
