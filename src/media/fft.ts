/** Discrete Fourier transform of real samples, in 64-bit floats. */

/** A transform of one size, a power of two; it reuses its arrays. */
export class RealFft {
  readonly #size: number;
  readonly #cos: Float64Array;
  readonly #sin: Float64Array;
  readonly #reversed: Uint32Array;
  readonly #re: Float64Array;
  readonly #im: Float64Array;

  /** `size`: samples of one transform. */
  constructor(size: number) {
    this.#size = size;
    this.#cos = Float64Array.from({ length: size / 2 }, (_, i) => Math.cos(2 * Math.PI * i / size));
    this.#sin = Float64Array.from({ length: size / 2 }, (_, i) => -Math.sin(2 * Math.PI * i / size));
    this.#reversed = new Uint32Array(size);
    for (let i = 1; i < size; i++) {
      this.#reversed[i] = this.#reversed[i >> 1] >> 1 | (i & 1) * (size >> 1);
    }
    this.#re = new Float64Array(size);
    this.#im = new Float64Array(size);
  }

  /** Magnitudes of the size / 2 + 1 lowest frequencies. Missing samples count as zero. */
  magnitudes(samples: Float64Array, out: Float64Array): void {
    const re = this.#re, im = this.#im, size = this.#size;
    for (let i = 0; i < size; i++) re[this.#reversed[i]] = i < samples.length ? samples[i] : 0;
    im.fill(0);
    for (let half = 1; half < size; half *= 2) {
      const stride = size / (2 * half);
      for (let start = 0; start < size; start += 2 * half) {
        for (let k = 0; k < half; k++) {
          const cos = this.#cos[k * stride], sin = this.#sin[k * stride];
          const a = start + k, b = a + half;
          const real = re[b] * cos - im[b] * sin, imaginary = re[b] * sin + im[b] * cos;
          re[b] = re[a] - real;
          im[b] = im[a] - imaginary;
          re[a] += real;
          im[a] += imaginary;
        }
      }
    }
    for (let i = 0; i <= size / 2; i++) out[i] = Math.sqrt(re[i] * re[i] + im[i] * im[i]);
  }
}
