/**
 * Noise as a function of (seed, position, token): the same draw whatever else is in the batch, so that a reply can be
 * replayed, and a drafter and its target draw alike.
 */

/** Standard Gumbel noise of one token at one position. */
export function gumbel(seed: number, position: number, token: number): number {
  return -Math.log(-Math.log(uniform(seed, position, token)));
}

/** The uniform number, above 0 and below 1, whose noise is above `noise` exactly if it is above the result. */
export function uniformOf(noise: number): number {
  return Math.exp(-Math.exp(-noise));
}

/**
 * The uniform number behind the noise. `seed` is a whole number from 0 to 2^53 - 1. The hash is pcg4d (Jarzynski and Olano,
 * "Hash Functions for GPU Rendering", 2020) over two words of seed, position and token.
 */
export function uniform(seed: number, position: number, token: number): number {
  let x = seed >>> 0;
  let y = Math.floor(seed / 2 ** 32) >>> 0;
  let z = position >>> 0;
  let w = token >>> 0;
  x = Math.imul(x, 1664525) + 1013904223 | 0;
  y = Math.imul(y, 1664525) + 1013904223 | 0;
  z = Math.imul(z, 1664525) + 1013904223 | 0;
  w = Math.imul(w, 1664525) + 1013904223 | 0;
  x = x + Math.imul(y, w) | 0;
  y = y + Math.imul(z, x) | 0;
  z = z + Math.imul(x, y) | 0;
  w = w + Math.imul(y, z) | 0;
  x ^= x >>> 16;
  y ^= y >>> 16;
  z ^= z >>> 16;
  w ^= w >>> 16;
  x = x + Math.imul(y, w) | 0;
  y = y + Math.imul(z, x) | 0;
  z = z + Math.imul(x, y) | 0;
  w = w + Math.imul(y, z) | 0;
  // 52 bits in the middle of their intervals: never 0 and never 1.
  return ((x >>> 0) * 2 ** 20 + (w >>> 12) + 0.5) * 2 ** -52;
}

/** A fresh seed for a reply that names none. */
export function randomSeed(): number {
  const [high, low] = crypto.getRandomValues(new Uint32Array(2));
  return (high & 0x1fffff) * 2 ** 32 + low;
}
