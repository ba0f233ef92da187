/** Media files that tests read; `tests/fixtures/media/make_media.py` made them. */
import type { Picture } from "../../src/media/resize.ts";

/** Settings of the vision tower of E2B and its like. */
export const VISION = {
  patchSize: 16,
  poolingKernelSize: 3,
  merged: false,
  imageTokens: 280,
  frameTokens: 70,
  frames: 32,
} as const;

/** Path of a file of `tests/fixtures/media`. */
export function mediaPath(name: string): string {
  return new URL(`../fixtures/media/${name}`, import.meta.url).pathname;
}

/** Its bytes. */
export function mediaBytes(name: string): Uint8Array<ArrayBuffer> {
  return Deno.readFileSync(mediaPath(name));
}

const expected = {
  ...JSON.parse(Deno.readTextFileSync(mediaPath("expected.json"))),
  ...JSON.parse(Deno.readTextFileSync(mediaPath("expected_heic.json"))),
};

/** What Pillow reads from a picture. */
export function expectedPicture(name: string): Picture {
  const { width, height, rgb } = expected[name];
  return { width, height, pixels: Uint8Array.fromBase64(rgb) };
}

/** SHA-256 of the RGB bytes that Pillow reads. */
export function expectedDigest(name: string): string {
  return expected[name].sha256;
}

/** SHA-256 in hexadecimal. */
export async function sha256(bytes: Uint8Array): Promise<string> {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", new Uint8Array(bytes))).toHex();
}

/** Largest difference of two pictures of one size. */
export function pixelDistance(a: Picture, b: Picture): number {
  if (a.width !== b.width || a.height !== b.height) {
    throw new Error(`sizes differ: ${a.width} × ${a.height}, ${b.width} × ${b.height}`);
  }
  return a.pixels.reduce((most, value, i) => Math.max(most, Math.abs(value - b.pixels[i])), 0);
}

/** Copies of a file with a few bytes changed, half of them in its first 120, and now and then cut; the same for a seed each time. */
export function* damagedCopies(
  file: Uint8Array,
  count: number,
  seed: number,
): Generator<Uint8Array<ArrayBuffer>> {
  let state = seed;
  const below = (n: number) => {
    state = Math.imul(state, 1664525) + 1013904223 >>> 0;
    return Math.floor(state / 2 ** 32 * n);
  };
  for (let copy = 0; copy < count; copy++) {
    const bytes = new Uint8Array(file);
    for (let changes = 1 + below(6); changes > 0; changes--) {
      const at = below(below(2) === 0 ? Math.min(120, bytes.length) : bytes.length);
      bytes[at] = [bytes[at] ^ 1 << below(8), 0, 255, below(256)][below(4)];
    }
    yield below(5) === 0 ? bytes.subarray(0, below(bytes.length) + 1) : bytes;
  }
}
