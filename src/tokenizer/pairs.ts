/**
 * A hash table from a pair of ids to two integers, in one typed array: 514,906 merges take 16 MiB and one
 * cache line per lookup, where a `Map` of objects would take ten times that.
 */

const STRIDE = 4; // left, right, rank, result

/** Pairs of non-negative ids → `rank` and `result`. */
export class PairTable {
  readonly #slots: Int32Array; // [capacity × STRIDE]; left = -1 marks a free slot
  readonly #mask: number;

  /** Room for `pairs` pairs; adding more than that is a bug of the caller. */
  constructor(pairs: number) {
    let capacity = 16;
    while (capacity < pairs * 1.5) capacity *= 2;
    this.#mask = capacity - 1;
    this.#slots = new Int32Array(capacity * STRIDE).fill(-1);
  }

  /** Sets a pair, replacing what it held. */
  set(left: number, right: number, rank: number, result: number): void {
    const slots = this.#slots;
    let at = this.#home(left, right);
    while (slots[at] !== -1 && (slots[at] !== left || slots[at + 1] !== right)) at = this.#next(at);
    slots[at] = left;
    slots[at + 1] = right;
    slots[at + 2] = rank;
    slots[at + 3] = result;
  }

  /** The slot of a pair, for {@link rank} and {@link result}; -1 when absent. */
  find(left: number, right: number): number {
    const slots = this.#slots;
    let at = this.#home(left, right);
    while (slots[at] !== -1) {
      if (slots[at] === left && slots[at + 1] === right) return at;
      at = this.#next(at);
    }
    return -1;
  }

  /** Rank at a slot that {@link find} returned. */
  rank(slot: number): number {
    return this.#slots[slot + 2];
  }

  /** Result id at a slot that {@link find} returned. */
  result(slot: number): number {
    return this.#slots[slot + 3];
  }

  #home(left: number, right: number): number {
    let hash = Math.imul(left, 0x9e3779b1) ^ Math.imul(right, 0x85ebca6b);
    hash ^= hash >>> 15;
    hash = Math.imul(hash, 0x2c1b3c6d);
    hash ^= hash >>> 13;
    return (hash & this.#mask) * STRIDE;
  }

  #next(slot: number): number {
    return ((slot / STRIDE + 1) & this.#mask) * STRIDE;
  }
}
