/**
 * Hash tables of pairs of ids, each in one typed array: 514,906 merges take 16 MiB, a lookup touches one cache line, and nothing
 * in them is an object.
 */

/** Slots of so many numbers, which begin with a pair of non-negative ids; a left of -1 marks a free one. */
class PairSlots {
  readonly #stride: number;
  #slots: Int32Array; // [capacity × stride]
  #mask: number; // capacity - 1; capacity is a power of two
  #pairs = 0;

  /** Room for about `expected` pairs; it grows beyond that. */
  protected constructor(expected: number, stride: number) {
    let capacity = 16;
    while (capacity < expected * 1.5) capacity *= 2;
    this.#stride = stride;
    this.#slots = new Int32Array(capacity * stride).fill(-1);
    this.#mask = capacity - 1;
  }

  /** The numbers of all slots, until a pair is added. */
  protected get slots(): Int32Array {
    return this.#slots;
  }

  /** The slot of a pair, or the free one where it would be. */
  protected slotOf(left: number, right: number): number {
    const slots = this.#slots, stride = this.#stride, end = this.#mask * stride;
    let at = (hashOf(left, right) & this.#mask) * stride;
    while (slots[at] !== -1 && (slots[at] !== left || slots[at + 1] !== right)) at = (at + stride) & end;
    return at;
  }

  /** The slot of a pair, which is added where it is not there. */
  protected put(left: number, right: number): number {
    let at = this.slotOf(left, right);
    if (this.#slots[at] !== -1) return at;
    if (++this.#pairs * 4 > (this.#mask + 1) * 3) {
      this.#grow();
      at = this.slotOf(left, right);
    }
    this.#slots[at] = left;
    this.#slots[at + 1] = right;
    return at;
  }

  #grow(): void {
    const old = this.#slots, stride = this.#stride;
    this.#slots = new Int32Array(2 * old.length).fill(-1);
    this.#mask = 2 * this.#mask + 1;
    for (let from = 0; from < old.length; from += stride) {
      if (old[from] === -1) continue;
      const at = this.slotOf(old[from], old[from + 1]);
      for (let i = 0; i < stride; i++) this.#slots[at + i] = old[from + i];
    }
  }
}

/** Pairs of non-negative ids → `rank` and `result`. */
export class PairTable extends PairSlots {
  /** Room for about `expected` pairs; it grows beyond that. */
  constructor(expected: number) {
    super(expected, 4); // left, right, rank, result
  }

  /** Sets a pair, replacing what it held. */
  set(left: number, right: number, rank: number, result: number): void {
    const at = this.put(left, right);
    this.slots[at + 2] = rank;
    this.slots[at + 3] = result;
  }

  /** The slot of a pair, for {@link rank} and {@link result}; -1 when absent. */
  find(left: number, right: number): number {
    const at = this.slotOf(left, right);
    return this.slots[at] === -1 ? -1 : at;
  }

  /** Rank at a slot that {@link find} returned. */
  rank(slot: number): number {
    return this.slots[slot + 2];
  }

  /** Result id at a slot that {@link find} returned. */
  result(slot: number): number {
    return this.slots[slot + 3];
  }
}

/** A set of pairs of non-negative ids, at half of what a {@link PairTable} takes. */
export class PairSet extends PairSlots {
  /** Room for about `expected` pairs; it grows beyond that. */
  constructor(expected: number) {
    super(expected, 2); // left, right
  }

  /** Adds a pair. */
  add(left: number, right: number): void {
    this.put(left, right);
  }

  /** Whether a pair was added. */
  has(left: number, right: number): boolean {
    return this.slots[this.slotOf(left, right)] !== -1;
  }
}

function hashOf(left: number, right: number): number {
  let hash = Math.imul(left, 0x9e3779b1) ^ Math.imul(right, 0x85ebca6b);
  hash ^= hash >>> 15;
  hash = Math.imul(hash, 0x2c1b3c6d);
  return hash ^ hash >>> 13;
}
