/**
 * Changes the rate of a sound: a polyphase windowed-sinc filter (Kaiser, 90 dB, 64 zero crossings each side) whose pass band ends at
 * 0.91 of the lower Nyquist frequency.
 */
import { Breath } from "./breath.ts";

/** Samples on each side of the centre, counted at the lower of the two rates. */
const CROSSINGS = 64;
/** Kaiser's parameter for 90 dB. */
const BETA = 0.1102 * (90 - 8.7);
/** Half width of the transition band, as a share of the lower rate. */
const HALF_TRANSITION = (90 - 7.95) / (2.285 * 2 * Math.PI) / (2 * CROSSINGS) / 2;
/** Phases at most: rates whose ratio needs more are taken as the nearest ratio that does not, off by less than a millionth. */
const MAX_PHASES = 2048;

/** Attenuation of the filters that halve a rate first, in dB; Kaiser's parameter follows from it. */
const HALVING_DECIBELS = 96;
/** Outputs between two looks at the clock. */
const BLOCK = 4096;

/**
 * `samples` at `from` hertz, at `to` hertz. The length is the duration's, rounded up. Rates of four times `to` and more are halved
 * first, which takes short filters. Rejects with the signal's reason.
 */
export async function resample(
  samples: Float32Array,
  from: number,
  to: number,
  signal?: AbortSignal,
): Promise<Float32Array> {
  if (from === to || samples.length === 0) return samples.slice();
  const breath = new Breath(signal);
  const length = Math.ceil(samples.length * to / from);
  let halvings = 0;
  for (; from / 2 ** halvings >= 4 * to; halvings++) {
    samples = await halve(samples, to / (from / 2 ** halvings), breath);
  }
  const { up, down } = ratioOf(to * 2 ** halvings, from);
  if (up === down) return samples.slice(0, length);
  const { table, taps, reach } = filterOf(up, down);
  const out = new Float32Array(length);
  for (let i = 0, centre = 0, phase = 0; i < out.length; i++) {
    if (i % BLOCK === 0) await breath.take();
    // The output lies at source sample centre + phase / up.
    const first = centre - reach + 1;
    const begin = Math.max(0, -first), end = Math.min(taps, samples.length - first);
    const row = phase * taps;
    let sum = 0;
    for (let j = begin; j < end; j++) sum += samples[first + j] * table[row + j];
    out[i] = sum;
    phase += down;
    centre += Math.floor(phase / up);
    phase %= up;
  }
  return out;
}

/** Every second sample behind a half-band filter that keeps what a rate of `share` times the present one can hold. */
async function halve(samples: Float32Array, share: number, breath: Breath): Promise<Float32Array> {
  // Passes up to share / 2 cycles per sample and stops from 0.5 − share / 2; every second tap but the centre is 0.
  const reach = Math.ceil((HALVING_DECIBELS - 7.95) / (2.285 * 2 * Math.PI) / (0.5 - share) / 2);
  const beta = 0.1102 * (HALVING_DECIBELS - 8.7);
  const pairs = Math.ceil((reach + 1) / 2);
  const weights = Float64Array.from({ length: pairs }, (_, j) => {
    const inside = 1 - ((2 * j + 1) / (2 * pairs)) ** 2;
    return sinc((2 * j + 1) / 2) * bessel(beta * Math.sqrt(inside));
  });
  const sum = 2 * weights.reduce((all, weight) => all + weight);
  for (let j = 0; j < pairs; j++) weights[j] *= 0.5 / sum; // a constant stays as it is
  const out = new Float32Array(Math.ceil(samples.length / 2));
  const at = (i: number) => i >= 0 && i < samples.length ? samples[i] : 0;
  const edge = 2 * pairs;
  for (let i = 0; i < out.length; i++) {
    if (i % BLOCK === 0) await breath.take();
    const centre = 2 * i;
    let value = samples[centre] / 2;
    const inside = centre >= edge && centre + edge < samples.length;
    for (let j = 0; j < pairs; j++) {
      const k = 2 * j + 1;
      value += weights[j] *
        (inside ? samples[centre - k] + samples[centre + k] : at(centre - k) + at(centre + k));
    }
    out[i] = value;
  }
  return out;
}

interface Filter {
  /** up × taps: weights of the source samples around an output of each phase */ table: Float32Array;
  taps: number;
  /** source samples on each side */ reach: number;
}

const filters = new Map<string, Filter>();

function filterOf(up: number, down: number): Filter {
  const key = `${up}/${down}`;
  let filter = filters.get(key);
  if (filter === undefined) {
    if (filters.size > 8) filters.clear();
    filters.set(key, filter = design(up, down));
  }
  return filter;
}

function design(up: number, down: number): Filter {
  const slower = Math.max(1, down / up); // source samples per sample of the lower rate
  const reach = Math.ceil(CROSSINGS * slower);
  const taps = 2 * reach;
  const cutoff = (0.5 - HALF_TRANSITION) / slower; // cycles per source sample
  const table = new Float32Array(up * taps);
  const edge = bessel(BETA);
  for (let phase = 0; phase < up; phase++) {
    let sum = 0;
    for (let j = 0; j < taps; j++) {
      const distance = j - reach + 1 - phase / up;
      const inside = 1 - (distance / (CROSSINGS * slower)) ** 2;
      const weight = inside > 0 ? sinc(2 * cutoff * distance) * bessel(BETA * Math.sqrt(inside)) / edge : 0;
      sum += table[phase * taps + j] = weight;
    }
    for (let j = 0; j < taps; j++) table[phase * taps + j] /= sum; // a constant stays as it is
  }
  return { table, taps, reach };
}

/** `numerator / denominator` in lowest terms, or the best fraction with a numerator of at most `MAX_PHASES`. */
function ratioOf(numerator: number, denominator: number): { up: number; down: number } {
  // Continued fraction of denominator / numerator; convergents are the best approximations.
  let [a, b] = [denominator, numerator];
  let [h0, k0, h1, k1] = [0, 1, 1, 0];
  while (b !== 0) {
    const q = Math.floor(a / b);
    if (k1 !== 0 && q * k1 + k0 > MAX_PHASES) break;
    [h0, h1] = [h1, q * h1 + h0];
    [k0, k1] = [k1, q * k1 + k0];
    [a, b] = [b, a - q * b];
  }
  return { up: k1, down: h1 };
}

function sinc(x: number): number {
  return x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x);
}

/** Modified Bessel function of order 0. */
function bessel(x: number): number {
  let sum = 1, term = 1;
  for (let k = 1; term > sum * 1e-17; k++) {
    term *= (x / (2 * k)) ** 2;
    sum += term;
  }
  return sum;
}
