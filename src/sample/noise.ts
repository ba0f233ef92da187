/**
 * Noise as a function of (seed, position, token): the same draw whatever else is in the batch, so that a reply can be
 * replayed, and a drafter and its target draw alike.
 */

/**
 * Tokens of a block. The largest noise of a block is drawn first, then which token has it, then the same for each of its groups
 * below that, then that of the others below their group's: together they are as independent as drawn one by one, and a whole
 * block or group can be passed over by its largest.
 */
export const NOISE_BLOCK = 256;
/** Tokens of a group. */
const GROUP = 16;

/** Set in the word that is hashed for a block, and for a group; ids of tokens are below. */
const OF_BLOCK = 0x80000000, OF_GROUP = 0x40000000;

/** Standard Gumbel noise of one token at one position. `seed` is a whole number from 0 to 2^53 - 1. */
export function gumbel(seed: number, position: number, token: number): number {
  hash(seed, position, OF_BLOCK + Math.floor(token / NOISE_BLOCK));
  let rate = -Math.log(uniform()) / NOISE_BLOCK; // e^-noise of the largest
  const largest = placeIn(NOISE_BLOCK), own = token % NOISE_BLOCK;
  if (largest === own) return -Math.log(rate);
  if (groupOf(largest) !== groupOf(own)) {
    hash(seed, position, OF_GROUP + groupOf(token));
    rate -= Math.log(uniform()) / GROUP;
    if (placeIn(GROUP) === token % GROUP) return -Math.log(rate);
  }
  hash(seed, position, token);
  return -Math.log(rate - Math.log(uniform()));
}

/** The largest noise of the tokens from `block` · NOISE_BLOCK on. */
export function largestGumbel(seed: number, position: number, block: number): number {
  hash(seed, position, OF_BLOCK + block);
  return -Math.log(-Math.log(uniform()) / NOISE_BLOCK);
}

/** A little more than exact, so that rounding can only find a token in vain. */
const SLACK = 1 + 1e-9;

/** Whether the noise of a token may be -log(`least`) or more. Few pass whose noise is not; most that fail cost no logarithm. */
export function mayReach(seed: number, position: number, token: number, least: number): boolean {
  const most = least * SLACK; // of rate - log(uniform)
  hash(seed, position, OF_BLOCK + Math.floor(token / NOISE_BLOCK));
  let rate = (1 - uniform()) / NOISE_BLOCK; // never above that of `gumbel`, as 1 - u is never above -log(u)
  if (rate > most) return false;
  const largest = placeIn(NOISE_BLOCK), own = token % NOISE_BLOCK;
  if (largest === own) return true;
  if (groupOf(largest) !== groupOf(own)) {
    hash(seed, position, OF_GROUP + groupOf(token));
    rate += (1 - uniform()) / GROUP;
    if (rate > most) return false;
    if (placeIn(GROUP) === token % GROUP) return true;
  }
  hash(seed, position, token);
  return rate + (1 - uniform()) <= most;
}

/** Calls `take` with each token of `block` whose noise may be -log(`least`) or more, in ascending order. */
export function eachReaching(
  seed: number,
  position: number,
  block: number,
  least: number,
  take: (token: number) => void,
): void {
  hash(seed, position, OF_BLOCK + block);
  const most = least * SLACK;
  if ((1 - uniform()) / NOISE_BLOCK > most) return;
  const ofBlock = -Math.log(uniform()) / NOISE_BLOCK;
  if (ofBlock > most) return;
  const begin = block * NOISE_BLOCK, ofAll = begin + placeIn(NOISE_BLOCK);
  for (let first = begin; first < begin + NOISE_BLOCK; first += GROUP) {
    let rate = ofBlock, largest = ofAll;
    if (groupOf(first) !== groupOf(ofAll)) {
      hash(seed, position, OF_GROUP + groupOf(first));
      if (rate + (1 - uniform()) / GROUP > most) continue;
      rate -= Math.log(uniform()) / GROUP;
      if (rate > most) continue;
      largest = first + placeIn(GROUP);
    }
    for (let token = first; token < first + GROUP; token++) {
      if (token !== largest) {
        hash(seed, position, token);
        if (rate + (1 - uniform()) > most) continue;
      }
      take(token);
    }
  }
}

/** The group of a token, of all or of its block. */
function groupOf(token: number): number {
  return Math.floor(token / GROUP);
}

/** Words of the last hash: 0 and 2 make the uniform number, 1 the place of the largest. */
const hashed = new Uint32Array(3);

/**
 * pcg4d (Jarzynski and Olano, "Hash Functions for GPU Rendering", 2020) over two words of seed, position and another. The last two,
 * which are small numbers that follow each other, are mixed before: without that, noise along positions is not even.
 */
function hash(seed: number, position: number, word: number): void {
  let x = seed >>> 0;
  let y = Math.floor(seed / 2 ** 32) >>> 0;
  let z = mixed(position);
  let w = mixed(word);
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
  hashed[0] = x;
  hashed[1] = y;
  hashed[2] = w;
}

/** lowbias32 (Wellons, "Prospecting for Hash Functions", 2018): every bit of a word changes with every bit of it. */
function mixed(word: number): number {
  word = Math.imul(word ^ word >>> 16, 0x7feb352d);
  word = Math.imul(word ^ word >>> 15, 0x846ca68b);
  return word ^ word >>> 16;
}

/** 52 bits of the last hash in the middle of their intervals: never 0 and never 1. */
function uniform(): number {
  return (hashed[0] * 2 ** 20 + (hashed[2] >>> 12) + 0.5) * 2 ** -52;
}

/** A place among `count` by the high bits of the last hash: its low ones are not independent of the uniform number. */
function placeIn(count: number): number {
  return Math.floor(hashed[1] / (2 ** 32 / count));
}

/** A fresh seed for a reply that names none. */
export function randomSeed(): number {
  const [high, low] = crypto.getRandomValues(new Uint32Array(2));
  return (high & 0x1fffff) * 2 ** 32 + low;
}
