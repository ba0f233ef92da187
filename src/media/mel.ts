/** What the audio towers hear: log-mel frames (`gemma4`), or raw frames (`gemma4_unified`), of 16 kHz samples. */
import { RealFft } from "./fft.ts";
import type { AudioFeatures, AudioFrames } from "./types.ts";

/** Samples per second that the models hear. */
export const SAMPLE_RATE = 16_000;
/** Samples of one clip at most: 30 s. */
export const MAX_CLIP_SAMPLES: number = 30 * SAMPLE_RATE;
/** Seconds of a recording that can be of use in one clip: its length, and enough to know that there was more. */
export const CLIP_SECONDS = 31;

const FRAME = 320; // samples that are transformed
const SPAN = FRAME + 1; // samples that a frame must reach
const HOP = 160;
/** Samples of a clip that make one frame. */
export const LEAST_SAMPLES: number = SPAN - HOP;
const FFT_SIZE = 512;
const BINS = FFT_SIZE / 2 + 1;
const MELS = 128;
const FLOOR = 0.001;
const LENGTH_UNIT = 128; // the waveform is padded to a multiple

let tables: { window: Float64Array; filters: { first: number; weights: Float64Array }[] } | undefined;

/** Log-mel frames of a clip of at most 30 s: 10 ms each; one is valid if all samples that it reaches are real. */
export function logMel(samples: Float32Array): AudioFeatures {
  const padded = Math.ceil(samples.length / LENGTH_UNIT) * LENGTH_UNIT;
  // 160 zeros stand before the samples.
  const frames = Math.max(0, Math.floor((padded + HOP - SPAN) / HOP) + 1);
  const features = { logMel: new Float32Array(frames * MELS), valid: new Uint8Array(frames) };
  const { window, filters } = tables ??= makeTables();
  const fft = new RealFft(FFT_SIZE);
  const frame = new Float64Array(FRAME), magnitudes = new Float64Array(BINS);
  for (let i = 0; i < frames; i++) {
    const first = HOP * i - HOP; // of the samples
    if (first + FRAME >= samples.length) continue;
    features.valid[i] = 1;
    for (let j = 0; j < FRAME; j++) frame[j] = first + j < 0 ? 0 : samples[first + j] * window[j];
    fft.magnitudes(frame, magnitudes);
    filters.forEach(({ first, weights }, m) => {
      let sum = 0;
      for (let k = 0; k < weights.length; k++) sum += weights[k] * magnitudes[first + k];
      features.logMel[i * MELS + m] = Math.log(sum + FLOOR);
    });
  }
  return features;
}

/** Soft tokens of a clip of so many samples: its valid frames, halved twice. */
export function melSoftTokens(samples: number): number {
  const valid = Math.max(0, Math.floor((samples - FRAME + HOP - 1) / HOP) + 1);
  return Math.ceil(Math.ceil(valid / 2) / 2);
}

/** Raw frames of a clip, the last one filled up with zeros. */
export function rawFrames(samples: Float32Array, frameSize: number): AudioFrames {
  const frames = Math.ceil(samples.length / frameSize);
  const padded = new Float32Array(frames * frameSize);
  padded.set(samples);
  return { samples: padded, frames };
}

/** The periodic Hann window, and HTK triangles from 0 to 8000 Hz without area norm. */
function makeTables(): NonNullable<typeof tables> {
  const window = Float64Array.from(
    { length: FRAME },
    (_, i) => 0.5 - 0.5 * Math.cos(2 * Math.PI * i / FRAME),
  );
  const mel = (hertz: number) => 2595 * Math.log10(1 + hertz / 700);
  const hertz = (mels: number) => 700 * (10 ** (mels / 2595) - 1);
  const top = mel(SAMPLE_RATE / 2);
  const corners = Array.from({ length: MELS + 2 }, (_, i) => hertz(top * i / (MELS + 1)));
  const filters = Array.from({ length: MELS }, (_, m) => {
    const [low, centre, high] = corners.slice(m, m + 3);
    const weights: number[] = [];
    let first = 0;
    for (let bin = 0; bin < BINS; bin++) {
      const f = bin * SAMPLE_RATE / FFT_SIZE;
      const weight = Math.min((f - low) / (centre - low), (high - f) / (high - centre));
      if (weight <= 0) continue;
      if (weights.length === 0) first = bin;
      weights.push(weight);
    }
    return { first, weights: Float64Array.from(weights) };
  });
  return { window, filters };
}
