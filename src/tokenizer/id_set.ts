/** A set of ids below a limit, in one bit for each: a byte for each of 262,144 tokens would be a quarter of a megabyte. */
export class IdSet {
  readonly #bits: Uint8Array; // [limit / 8, rounded up]

  /** Empty, with room for the ids below `limit`. */
  constructor(limit: number) {
    this.#bits = new Uint8Array(limit + 7 >> 3);
  }

  /** Adds an id below the limit. */
  add(id: number): void {
    this.#bits[id >> 3] |= 1 << (id & 7);
  }

  /** Whether a whole number from 0 was added; false from the limit on. */
  has(id: number): boolean {
    return (this.#bits[id >> 3] >> (id & 7) & 1) === 1;
  }
}
