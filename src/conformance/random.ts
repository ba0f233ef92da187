/** Seeded numbers: the same seed gives the same case on every machine. */

/** A small counter-based generator (splitmix32). */
export class Random {
  #state: number;
  constructor(seed: number) {
    this.#state = seed >>> 0;
  }

  /** The next 32 bits. */
  bits(): number {
    this.#state = (this.#state + 0x9e3779b9) >>> 0;
    let z = this.#state;
    z = Math.imul(z ^ (z >>> 16), 0x21f0aaad);
    z = Math.imul(z ^ (z >>> 15), 0x735a2d97);
    return (z ^ (z >>> 15)) >>> 0;
  }

  /** Uniform in [low, high). */
  uniform(low = 0, high = 1): number {
    return low + (high - low) * this.bits() / 2 ** 32;
  }

  /** An integer in [0, end). */
  integer(end: number): number {
    return Math.floor(this.uniform(0, end));
  }

  /** Normally distributed, by Box and Muller. */
  normal(mean = 0, deviation = 1): number {
    const radius = Math.sqrt(-2 * Math.log(1 - this.uniform()));
    return mean + deviation * radius * Math.cos(2 * Math.PI * this.uniform());
  }

  /** `count` normal values. */
  normals(count: number, mean = 0, deviation = 1): Float64Array {
    return Float64Array.from({ length: count }, () => this.normal(mean, deviation));
  }

  /** 0 … count - 1 in random order. */
  permutation(count: number): number[] {
    const order = Array.from({ length: count }, (_, i) => i);
    for (let i = count - 1; i > 0; i--) {
      const j = this.integer(i + 1);
      [order[i], order[j]] = [order[j], order[i]];
    }
    return order;
  }
}
