/** Random weights in the formats whose codes and scales are not laid out as affine ones: blocks of GGUF, mxfp4, mxfp8, nvfp4. */
import { GGUF_BLOCKS, type GgufType } from "../checkpoint/gguf_types.ts";
import { toF16 } from "./oracle/numbers.ts";
import type { Random } from "./random.ts";

/** Where the halves of a block lie: the scale, what it is of a weight's size, and the minimum in units of the scale. */
interface Halves {
  scale: number;
  size: number;
  minimum?: number;
  units?: number;
}

const HALVES: Readonly<Record<GgufType, Halves>> = {
  q4_0: { scale: 0, size: 1 / 4.6 },
  q4_1: { scale: 0, size: 1 / 4.6, minimum: 2, units: -7.5 },
  q5_0: { scale: 0, size: 1 / 9.2 },
  q5_1: { scale: 0, size: 1 / 9.2, minimum: 2, units: -15.5 },
  q8_0: { scale: 0, size: 1 / 74 },
  q2_k: { scale: 80, size: 1 / 9.7, minimum: 82, units: 1.5 },
  q3_k: { scale: 108, size: 1 / 42 },
  q4_k: { scale: 0, size: 1 / 170, minimum: 2, units: 7.5 },
  q5_k: { scale: 0, size: 1 / 340, minimum: 2, units: 15.5 },
  q6_k: { scale: 208, size: 1 / 1370 },
  iq4_nl: { scale: 0, size: 1 / 70 },
  iq4_xs: { scale: 0, size: 1 / 1300 },
};

/** Fills whole blocks with weights of about `size`. */
export function fillBlocks(type: GgufType, bytes: Uint8Array, size: number, random: Random): void {
  for (let i = 0; i < bytes.length; i++) bytes[i] = random.bits();
  const { scale, size: factor, minimum, units = 0 } = HALVES[type];
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  for (let at = 0; at < bytes.length; at += GGUF_BLOCKS[type].bytes) {
    const d = size * factor * random.uniform(-1.6, 1.6);
    view.setUint16(at + scale, toF16(d), true);
    if (minimum !== undefined) {
      view.setUint16(at + minimum, toF16(d * units * random.uniform(0.7, 1.3)), true);
    }
  }
}

/** Fills codes and scale bytes with weights of about `size`. No code or scale of an 8-bit float is one that stands for no number. */
export function fillScaled(
  kind: "mxfp4" | "mxfp8" | "nvfp4",
  codes: Uint8Array,
  scales: Uint8Array,
  size: number,
  random: Random,
): void {
  for (let i = 0; i < codes.length; i++) {
    codes[i] = random.bits();
    if (kind === "mxfp8" && (codes[i] & 0x7f) === 0x7f) codes[i] ^= 8;
  }
  const exponent = Math.round(Math.log2(size / (kind === "mxfp8" ? 150 : 2.9)));
  for (let i = 0; i < scales.length; i++) {
    // e4m3 numbers from a subnormal 2^-8 to 2^-4, or a power of two near the size
    scales[i] = kind === "nvfp4" ? 2 + random.integer(23) : 127 + exponent + random.integer(3) - 1;
  }
}
