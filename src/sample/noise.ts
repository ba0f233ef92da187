/**
 * Noise as a function of (seed, position, token): the same draw whatever else is in the batch, so that a reply can be
 * replayed, and a drafter and its target draw alike.
 */

/**
 * Tokens of a block. The largest noise of a block is drawn first, then which token has it, then that of the others below it:
 * together they are as independent as drawn one by one, and a whole block can be passed over by its largest.
 */
export const NOISE_BLOCK = 256;

/** Words of a hash: x and w make the uniform number, y the place of the largest in a block. */
interface Hash {
  x: number;
  y: number;
  w: number;
}

/** Set in the word that is hashed for a block; ids of tokens are below. */
const OF_BLOCK = 0x80000000;

/** Standard Gumbel noise of one token at one position. `seed` is a whole number from 0 to 2^53 - 1. */
export function gumbel(seed: number, position: number, token: number): number {
  const block = hash(seed, position, OF_BLOCK + Math.floor(token / NOISE_BLOCK));
  const rate = -Math.log(uniform(block)) / NOISE_BLOCK; // e^-noise of the largest
  if (block.y % NOISE_BLOCK === token % NOISE_BLOCK) return -Math.log(rate);
  return -Math.log(rate - Math.log(uniform(hash(seed, position, token))));
}

/** The largest noise of the tokens from `block` · NOISE_BLOCK on. */
export function largestGumbel(seed: number, position: number, block: number): number {
  return -Math.log(-Math.log(uniform(hash(seed, position, OF_BLOCK + block))) / NOISE_BLOCK);
}

/** pcg4d (Jarzynski and Olano, "Hash Functions for GPU Rendering", 2020) over two words of seed, position and another. */
function hash(seed: number, position: number, word: number): Hash {
  let x = seed >>> 0;
  let y = Math.floor(seed / 2 ** 32) >>> 0;
  let z = position >>> 0;
  let w = word >>> 0;
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
  return { x: x >>> 0, y: y >>> 0, w: w >>> 0 };
}

/** 52 bits in the middle of their intervals: never 0 and never 1. */
function uniform({ x, w }: Hash): number {
  return (x * 2 ** 20 + (w >>> 12) + 0.5) * 2 ** -52;
}

/** A fresh seed for a reply that names none. */
export function randomSeed(): number {
  const [high, low] = crypto.getRandomValues(new Uint32Array(2));
  return (high & 0x1fffff) * 2 ** 32 + low;
}
