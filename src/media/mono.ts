/** Decoded sounds of one channel, before and after the resampler. */
import { MediaError } from "../errors.ts";
import type { Warning } from "../warning.ts";

/** One channel, the mean of all that there were. */
export interface MonoSound {
  /** −1 to 1, though loud floats may go beyond. */
  samples: Float32Array;
  /** In hertz. */
  rate: number;
  /** Of the whole recording, where `samples` may be its beginning only. */
  seconds?: number;
  /** What was cut or repaired. */
  warnings: Warning[];
}

/** One channel of 16 kHz. */
export interface Sound {
  /** −1 to 1. */
  samples: Float32Array;
  /** Of the whole recording, where `samples` may be its beginning only. */
  seconds?: number;
  /** What was cut or repaired. */
  warnings: Warning[];
}

/** Samples of one channel that a sound may have: 93 minutes at 48 kHz. */
export const MAX_SAMPLES: number = 2 ** 28;

/** Loudest sample: full scale is 1, and nobody means more than this; filters can add up such samples. */
const MOST_LOUD = 1e30;

/** Whether a sample is a number that can be worked with. */
export function isSample(value: number): boolean {
  return Math.abs(value) <= MOST_LOUD;
}

/** The error for a sound that cannot be decoded. `format` is its name as people write it. */
export function damagedSound(format: string, what: string, cause?: unknown): MediaError {
  return new MediaError(
    "media_damaged",
    `The ${format} sound is damaged: ${what}. Save or download it again.`,
    { cause },
  );
}

/** Refuses a sound that takes too much memory. */
export function checkSamples(samples: number, rate: number): void {
  if (samples <= MAX_SAMPLES) return;
  throw new MediaError(
    "media_too_large",
    `The sound has ${samples} samples or more, at ${rate} Hz; ${MAX_SAMPLES} are allowed. Cut it into parts.`,
  );
}
