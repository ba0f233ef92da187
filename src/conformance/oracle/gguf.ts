/** What the blocks of GGUF mean: one row of any block format as float64 numbers. Each rounds to the float32 of the file format. */
import { GGUF_BLOCKS, type GgufType } from "../../checkpoint/gguf_types.ts";
import { fromF16 } from "./numbers.ts";

/** The sixteen values that 4-bit codes of iq4_nl and iq4_xs stand for. */
const IQ4_VALUES: readonly number[] = [
  -127,
  -104,
  -83,
  -65,
  -49,
  -35,
  -22,
  -10,
  1,
  13,
  25,
  38,
  53,
  69,
  89,
  113,
];

/** One block: its bytes, and element `i` of it. */
type Block = (bytes: Uint8Array) => (i: number) => number;

/** A row of whole blocks. */
export function dequantizeBlocks(type: GgufType, row: Uint8Array): Float64Array {
  const { elements, bytes } = GGUF_BLOCKS[type];
  const count = row.length / bytes;
  const values = new Float64Array(count * elements);
  for (let b = 0; b < count; b++) {
    const element = BLOCKS[type](row.subarray(b * bytes, (b + 1) * bytes));
    for (let i = 0; i < elements; i++) values[b * elements + i] = element(i);
  }
  return values;
}

const half = (bytes: Uint8Array, at: number) => fromF16(bytes[at] | bytes[at + 1] << 8);
const signed = (byte: number) => byte << 24 >> 24;
/** Code of element i of 32 that lie as sixteen low, then sixteen high halves of bytes. */
const nibble = (codes: Uint8Array, i: number) => codes[i % 16] >> (i < 16 ? 0 : 4) & 15;
/** Bit i of little-endian bytes. */
const bit = (bytes: Uint8Array, i: number) => bytes[i >> 3] >> (i & 7) & 1;

/** 6-bit scale and minimum of 32 columns of q4_k and q5_k. */
function scaleAndMinimum(packed: Uint8Array, j: number): [number, number] {
  if (j < 4) return [packed[j] & 63, packed[j + 4] & 63];
  return [packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4];
}

/** 2-bit part of element i of 256 of q2_k and q3_k: four layers of 32 columns in each 32 bytes. */
const twoBits = (codes: Uint8Array, i: number) => codes[(i >> 7) * 32 + i % 32] >> 2 * (i >> 5 & 3) & 3;

const BLOCKS: Readonly<Record<GgufType, Block>> = {
  q4_0: (b) => (i) => half(b, 0) * (nibble(b.subarray(2), i) - 8),
  q4_1: (b) => (i) => half(b, 0) * nibble(b.subarray(4), i) + half(b, 2),
  q5_0: (b) => (i) => half(b, 0) * ((nibble(b.subarray(6), i) | bit(b.subarray(2), i) << 4) - 16),
  q5_1: (b) => (i) => half(b, 0) * (nibble(b.subarray(8), i) | bit(b.subarray(4), i) << 4) + half(b, 2),
  q8_0: (b) => (i) => half(b, 0) * signed(b[2 + i]),
  q2_k: (b) => (i) => {
    const scale = b[i >> 4];
    return half(b, 80) * (scale & 15) * twoBits(b.subarray(16), i) - half(b, 82) * (scale >> 4);
  },
  q3_k: (b) => (i) => {
    const j = i >> 4;
    const low = j < 8 ? b[96 + j] & 15 : b[88 + j] >> 4;
    const scale = low | (b[104 + j % 4] >> 2 * (j >> 2) & 3) << 4;
    const code = twoBits(b.subarray(32), i) | (b[i % 32] >> (i >> 5) & 1) << 2;
    return half(b, 108) * (scale - 32) * (code - 4);
  },
  q4_k: (b) => (i) => {
    const [scale, minimum] = scaleAndMinimum(b.subarray(4), i >> 5);
    const code = b[16 + (i >> 6) * 32 + i % 32] >> 4 * (i >> 5 & 1) & 15;
    return half(b, 0) * scale * code - half(b, 2) * minimum;
  },
  q5_k: (b) => (i) => {
    const [scale, minimum] = scaleAndMinimum(b.subarray(4), i >> 5);
    const code = b[48 + (i >> 6) * 32 + i % 32] >> 4 * (i >> 5 & 1) & 15 |
      (b[16 + i % 32] >> (i >> 5) & 1) << 4;
    return half(b, 0) * scale * code - half(b, 2) * minimum;
  },
  q6_k: (b) => (i) => {
    const low = b[(i >> 7) * 64 + i % 64] >> 4 * (i >> 6 & 1) & 15;
    const high = b[128 + (i >> 7) * 32 + i % 32] >> 2 * (i >> 5 & 3) & 3;
    return half(b, 208) * signed(b[192 + (i >> 4)]) * ((low | high << 4) - 32);
  },
  iq4_nl: (b) => (i) => half(b, 0) * IQ4_VALUES[nibble(b.subarray(2), i)],
  iq4_xs: (b) => (i) => {
    const j = i >> 5;
    const scale = b[4 + (j >> 1)] >> 4 * (j & 1) & 15 | ((b[2] | b[3] << 8) >> 2 * j & 3) << 4;
    return half(b, 0) * (scale - 32) * IQ4_VALUES[nibble(b.subarray(8 + 16 * j), i % 32)];
  },
};
