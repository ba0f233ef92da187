/**
 * Bicubic resize with antialias (a = -0.5) of 8-bit RGB, byte for byte as the reference's tensor backend computes it: 16-bit
 * fixed-point weights of as many fraction bits as the largest weight allows, rows first, both passes rounded to 8 bits.
 */

import { Breath } from "./breath.ts";

/** 8-bit RGB, row-major: height × width × 3. */
export interface Picture {
  /** height × width × 3, red first. */
  pixels: Uint8Array;
  /** In pixels. */
  width: number;
  /** In pixels. */
  height: number;
}

/** Weights of one axis: output i is the sum over j < taps of source first[i] + j by weights[i · taps + j]. */
interface AxisWeights {
  first: Int32Array;
  /** used taps of each output */ count: Int32Array;
  weights: Int32Array;
  taps: number;
  /** fraction bits of the weights */ bits: number;
}

/** The picture at another size, both sides at least 1; others get their turns meanwhile. Rejects with the signal's reason. */
export async function resizeBicubic(
  picture: Picture,
  width: number,
  height: number,
  signal?: AbortSignal,
): Promise<Picture> {
  const breath = new Breath(signal);
  const wide = width === picture.width
    ? picture
    : await resizeRows(picture, axisWeights(picture.width, width), width, breath);
  if (height === wide.height) return wide;
  return await resizeColumns(wide, axisWeights(picture.height, height), height, breath);
}

async function resizeRows(
  { pixels, width, height }: Picture,
  axis: AxisWeights,
  outWidth: number,
  breath: Breath,
): Promise<Picture> {
  const { first, count, weights, taps, bits } = axis;
  const out = new Uint8Array(outWidth * height * 3);
  const half = 1 << (bits - 1);
  let at = 0;
  for (let y = 0; y < height; y++) {
    await breath.take();
    for (let x = 0; x < outWidth; x++) {
      let red = half, green = half, blue = half;
      let from = (y * width + first[x]) * 3;
      for (let j = x * taps, end = j + count[x]; j < end; j++, from += 3) {
        const weight = weights[j];
        red += pixels[from] * weight;
        green += pixels[from + 1] * weight;
        blue += pixels[from + 2] * weight;
      }
      out[at++] = clamp(red >> bits);
      out[at++] = clamp(green >> bits);
      out[at++] = clamp(blue >> bits);
    }
  }
  return { pixels: out, width: outWidth, height };
}

async function resizeColumns(
  { pixels, width }: Picture,
  axis: AxisWeights,
  outHeight: number,
  breath: Breath,
): Promise<Picture> {
  const { first, count, weights, taps, bits } = axis;
  const stride = width * 3;
  const out = new Uint8Array(stride * outHeight);
  const sums = new Int32Array(stride);
  for (let y = 0; y < outHeight; y++) {
    await breath.take();
    sums.fill(1 << (bits - 1));
    for (let j = 0; j < count[y]; j++) {
      const weight = weights[y * taps + j];
      const row = (first[y] + j) * stride;
      for (let i = 0; i < stride; i++) sums[i] += pixels[row + i] * weight;
    }
    for (let i = 0; i < stride; i++) out[y * stride + i] = clamp(sums[i] >> bits);
  }
  return { pixels: out, width, height: outHeight };
}

function axisWeights(inSize: number, outSize: number): AxisWeights {
  const scale = inSize / outSize;
  const stretch = Math.max(scale, 1); // source pixels per unit of the kernel
  const support = 2 * stretch;
  const taps = Math.ceil(support) * 2 + 1;
  const first = new Int32Array(outSize), count = new Int32Array(outSize);
  const exact = new Float64Array(outSize * taps);
  let largest = 0;
  for (let i = 0; i < outSize; i++) {
    const centre = scale * (i + 0.5);
    first[i] = Math.max(0, Math.trunc(centre - support + 0.5));
    count[i] = Math.min(taps, Math.min(inSize, Math.trunc(centre + support + 0.5)) - first[i]);
    let total = 0;
    for (let j = 0; j < count[i]; j++) {
      total += exact[i * taps + j] = cubic((first[i] + j - centre + 0.5) / stretch);
    }
    for (let j = 0; j < count[i]; j++) largest = Math.max(largest, exact[i * taps + j] /= total);
  }
  let bits = 0;
  while (bits < 22 && Math.trunc(0.5 + largest * 2 ** (bits + 1)) < 1 << 15) bits++;
  const weights = Int32Array.from(exact, (w) => Math.trunc(w * 2 ** bits + (w < 0 ? -0.5 : 0.5)));
  return { first, count, weights, taps, bits };
}

/** Keys' cubic with a = -0.5. */
function cubic(x: number): number {
  const a = -0.5;
  x = Math.abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  return 0;
}

function clamp(value: number): number {
  return value < 0 ? 0 : value > 255 ? 255 : value;
}
