/**
 * Hash tables of pairs of ids, each in one typed array: 514,906 merges take 16 MiB, a lookup touches one cache line, and nothing
 * in them is an object.
 */

const STRIDE = 4; // left, right, rank, result
const SET_STRIDE = 2; // left, right

/** Pairs of non-negative ids → `rank` and `result`. */
export class PairTable {
  #slots: Int32Array; // [capacity × STRIDE]; left = -1 marks a free slot
  #mask: number; // capacity - 1; capacity is a power of two
  #pairs = 0;

  /** Room for about `expected` pairs; it grows beyond that. */
  constructor(expected: number) {
    let capacity = 16;
    while (capacity < expected * 1.5) capacity *= 2;
    this.#mask = capacity - 1;
    this.#slots = new Int32Array(capacity * STRIDE).fill(-1);
  }

  /** Sets a pair, replacing what it held. */
  set(left: number, right: number, rank: number, result: number): void {
    let slots = this.#slots;
    let at = this.#home(left, right);
    while (slots[at] !== -1 && (slots[at] !== left || slots[at + 1] !== right)) at = this.#next(at);
    if (slots[at] === -1 && ++this.#pairs * 4 > (this.#mask + 1) * 3) {
      this.#grow();
      slots = this.#slots;
      at = this.#home(left, right);
      while (slots[at] !== -1) at = this.#next(at);
    }
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

  #grow(): void {
    const old = this.#slots;
    this.#slots = new Int32Array(2 * old.length).fill(-1);
    this.#mask = 2 * this.#mask + 1;
    for (let from = 0; from < old.length; from += STRIDE) {
      if (old[from] === -1) continue;
      let at = this.#home(old[from], old[from + 1]);
      while (this.#slots[at] !== -1) at = this.#next(at);
      for (let i = 0; i < STRIDE; i++) this.#slots[at + i] = old[from + i];
    }
  }

  #home(left: number, right: number): number {
    return (hashOf(left, right) & this.#mask) * STRIDE;
  }

  #next(slot: number): number {
    return (slot + STRIDE) & (this.#mask * STRIDE);
  }
}

/** A set of pairs of non-negative ids, at half of what a {@link PairTable} takes. */
export class PairSet {
  #slots: Int32Array; // [capacity × SET_STRIDE]; left = -1 marks a free slot
  #mask: number; // capacity - 1; capacity is a power of two
  #pairs = 0;

  /** Room for about `expected` pairs; it grows beyond that. */
  constructor(expected: number) {
    let capacity = 16;
    while (capacity < expected * 1.5) capacity *= 2;
    this.#mask = capacity - 1;
    this.#slots = new Int32Array(capacity * SET_STRIDE).fill(-1);
  }

  /** Adds a pair. */
  add(left: number, right: number): void {
    const at = this.#find(left, right);
    if (this.#slots[at] !== -1) return;
    this.#slots[at] = left;
    this.#slots[at + 1] = right;
    if (++this.#pairs * 4 > (this.#mask + 1) * 3) this.#grow();
  }

  /** Whether a pair was added. */
  has(left: number, right: number): boolean {
    return this.#slots[this.#find(left, right)] !== -1;
  }

  /** The slot of a pair, or the free one where it would be. */
  #find(left: number, right: number): number {
    const slots = this.#slots, end = this.#mask * SET_STRIDE;
    let at = (hashOf(left, right) & this.#mask) * SET_STRIDE;
    while (slots[at] !== -1 && (slots[at] !== left || slots[at + 1] !== right)) at = (at + SET_STRIDE) & end;
    return at;
  }

  #grow(): void {
    const old = this.#slots;
    this.#slots = new Int32Array(2 * old.length).fill(-1);
    this.#mask = 2 * this.#mask + 1;
    for (let from = 0; from < old.length; from += SET_STRIDE) {
      if (old[from] === -1) continue;
      const at = this.#find(old[from], old[from + 1]);
      this.#slots[at] = old[from];
      this.#slots[at + 1] = old[from + 1];
    }
  }
}

function hashOf(left: number, right: number): number {
  let hash = Math.imul(left, 0x9e3779b1) ^ Math.imul(right, 0x85ebca6b);
  hash ^= hash >>> 15;
  hash = Math.imul(hash, 0x2c1b3c6d);
  return hash ^ hash >>> 13;
}
