/**
 * Affine quantisation: w ≈ scale · code + bias, with a scale and a bias for each group of columns. Two ways to choose
 * them: by the group's range, as MLX does, or by a search for the least error of what the weights are multiplied with.
 */
import type { AffineBits, AffineGroupSize } from "../checkpoint/tensor.ts";

/** How many bits a code has, and how many columns share a scale. */
export interface AffineFormat {
  bits: AffineBits;
  groupSize: AffineGroupSize;
}

/** Rows of a quantised matrix. */
export interface AffineRows {
  /** little-endian bit stream, u32 [rows, columns · bits / 32] */ words: Uint32Array<ArrayBuffer>;
  /** bf16 [rows, columns / groupSize] */ scales: Uint16Array<ArrayBuffer>;
  /** bf16 [rows, columns / groupSize] */ biases: Uint16Array<ArrayBuffer>;
}

const LEAST_SCALE = Math.fround(1e-7);
/** Shares of a group's range that the search tries; values beyond are clipped. */
const SHARES = [1, 0.9, 0.8, 0.7];
/** Rounds of least squares for each share. */
const STEPS = 2;
const ROUND = 12_582_912; // 1.5 · 2^23: adding and taking it away rounds an f32 to a whole number, halves to even

/**
 * Quantises `values`, f32 [rows, columns]. With `importance` (mean square of what each column is multiplied with, f64
 * [columns]; null: all alike) scales and biases are searched for; without it they are those of MLX.
 */
export function quantizeRows(
  values: Float32Array,
  columns: number,
  { bits, groupSize }: AffineFormat,
  importance?: Float64Array | null,
): AffineRows {
  const rows = values.length / columns;
  const groups = values.length / groupSize;
  const result: AffineRows = {
    words: new Uint32Array(rows * columns * bits / 32),
    scales: new Uint16Array(groups),
    biases: new Uint16Array(groups),
  };
  const group = new Group(groupSize, 2 ** bits - 1);
  const words = groupSize * bits / 32;
  for (let g = 0; g < groups; g++) {
    group.load(values, g * groupSize);
    if (importance === undefined) group.fitRange();
    else group.search(importance, g * groupSize % columns);
    result.scales[g] = toBf16(group.scale);
    result.biases[g] = toBf16(group.bias);
    pack(group.codes, bits, result.words, g * words);
  }
  return result;
}

/** The nearest bf16 to a number, ties to even, as its upper 16 bits. */
export function toBf16(value: number): number {
  f32[0] = value;
  const bits = u32[0];
  return (bits + 0x7fff + (bits >>> 16 & 1)) >>> 16;
}

/** The f32 that a bf16 stands for. */
export function fromBf16(word: number): number {
  u32[0] = word << 16;
  return f32[0];
}

const f32 = new Float32Array(1);
const u32 = new Uint32Array(f32.buffer);

/** One group at work. All numbers are f32, as MLX computes them. */
class Group {
  /** of the result */ scale = 0;
  bias = 0;
  readonly codes: Uint8Array;
  readonly #values: Float32Array;
  readonly #weights: Float64Array;
  readonly #trial: Uint8Array;
  #least = 0;
  #most = 0;
  // Sums of weight, weight · value, weight · value², weight · code, weight · code², weight · code · value.
  #a = 0;
  #w = 0;
  #ww = 0;
  #q = 0;
  #qq = 0;
  #qw = 0;

  constructor(private readonly size: number, private readonly top: number) {
    this.codes = new Uint8Array(size);
    this.#values = new Float32Array(size);
    this.#weights = new Float64Array(size);
    this.#trial = new Uint8Array(size);
  }

  load(values: Float32Array, at: number): void {
    let least = Infinity, most = -Infinity;
    for (let i = 0; i < this.size; i++) {
      const w = this.#values[i] = values[at + i];
      if (w < least) least = w;
      if (w > most) most = w;
    }
    this.#least = least;
    this.#most = most;
  }

  /** As MLX: codes by the exact scale and bias, which are rounded when they are stored. */
  fitRange(): void {
    this.#spread(1);
    this.#encode(this.scale, this.bias, this.codes);
  }

  /** Tries parts of the range; for the codes of each the best scale and bias follow by least squares. */
  search(importance: Float64Array | null, column: number): void {
    this.#weigh(importance, column);
    this.fitRange(); // so that the result is never worse than without a search
    this.#round();
    this.#count(this.codes);
    let best = this.#error();
    let bestScale = this.scale, bestBias = this.bias;
    const trial = this.#trial;
    for (const share of SHARES) {
      this.#spread(share);
      this.#round();
      for (let step = 0; step < STEPS; step++) {
        this.#nearest(trial);
        this.#count(trial);
        if (!this.#leastSquares()) break;
        const error = this.#error();
        if (!(error < best)) continue;
        best = error;
        bestScale = this.scale;
        bestBias = this.bias;
        this.codes.set(trial);
      }
    }
    this.scale = bestScale;
    this.bias = bestBias;
  }

  /** The end of the range that is further from zero gets a code of its own, and so does zero where it lies inside. */
  #spread(share: number): void {
    const least = Math.fround(this.#least * share), most = Math.fround(this.#most * share);
    const down = Math.abs(least) > Math.abs(most);
    let scale = Math.max(Math.fround(Math.fround(most - least) / this.top), LEAST_SCALE);
    if (!down) scale = -scale;
    const edge = down ? least : most;
    const steps = Math.fround(Math.fround(Math.fround(edge / scale) + ROUND) - ROUND);
    this.scale = steps === 0 ? scale : Math.fround(edge / steps);
    this.bias = steps === 0 ? 0 : edge;
  }

  #round(): void {
    this.scale = fromBf16(toBf16(this.scale));
    this.bias = fromBf16(toBf16(this.bias));
  }

  /** Takes the weights of the columns, and the sums over the group that no code changes. */
  #weigh(importance: Float64Array | null, column: number): void {
    const weights = this.#weights, values = this.#values, { size } = this;
    let sum = 0;
    for (let i = 0; i < size; i++) sum += weights[i] = importance === null ? 1 : importance[column + i];
    // Columns that the texts never used still count a little.
    const floor = sum > 0 ? 1e-3 * sum / size : 1;
    let a = 0, w = 0, ww = 0;
    for (let i = 0; i < size; i++) {
      const weight = weights[i] += floor, value = values[i];
      a += weight;
      w += weight * value;
      ww += weight * value * value;
    }
    this.#a = a;
    this.#w = w;
    this.#ww = ww;
  }

  /** The codes of MLX: every step in f32, halves to even. */
  #encode(scale: number, bias: number, codes: Uint8Array): void {
    const values = this.#values, { size, top } = this;
    for (let i = 0; i < size; i++) {
      const x = Math.fround(Math.fround(values[i] - bias) / scale);
      codes[i] = x >= top ? top : x > 0 ? Math.fround(Math.fround(x + ROUND) - ROUND) : 0;
    }
  }

  /** The nearest codes for the present scale and bias. */
  #nearest(codes: Uint8Array): void {
    const values = this.#values, { size, top, bias } = this, steps = 1 / this.scale;
    for (let i = 0; i < size; i++) {
      const x = (values[i] - bias) * steps + 0.5;
      codes[i] = x >= top ? top : x > 0 ? x : 0; // the array drops the fraction
    }
  }

  /** The sums over the group that depend on the codes. */
  #count(codes: Uint8Array): void {
    const values = this.#values, weights = this.#weights, { size } = this;
    let q = 0, qq = 0, qw = 0;
    for (let i = 0; i < size; i++) {
      const code = codes[i], weighted = weights[i] * code;
      q += weighted;
      qq += weighted * code;
      qw += weighted * values[i];
    }
    this.#q = q;
    this.#qq = qq;
    this.#qw = qw;
  }

  /** Σ weight · (scale · code + bias - value)² of the codes that were counted. */
  #error(): number {
    const { scale, bias } = this;
    return scale * scale * this.#qq + 2 * scale * bias * this.#q + bias * bias * this.#a -
      2 * scale * this.#qw - 2 * bias * this.#w + this.#ww;
  }

  /** Scale and bias with the least weighted error for the counted codes, in bf16; false where all codes are alike. */
  #leastSquares(): boolean {
    const determinant = this.#a * this.#qq - this.#q * this.#q;
    if (!(determinant > 1e-12 * this.#a * this.#qq)) return false;
    const scale = fromBf16(toBf16((this.#a * this.#qw - this.#q * this.#w) / determinant));
    if (scale === 0) return false;
    this.scale = scale;
    this.bias = fromBf16(toBf16((this.#w - scale * this.#q) / this.#a));
    return true;
  }
}

/** Appends codes to a bit stream that begins at word `at`. */
function pack(codes: Uint8Array, bits: number, words: Uint32Array, at: number): void {
  let word = 0, filled = 0;
  for (const code of codes) {
    word |= code << filled;
    filled += bits;
    if (filled < 32) continue;
    words[at++] = word;
    filled -= 32;
    word = filled > 0 ? code >>> bits - filled : 0;
  }
}
