/** How a model's pictures, videos and sounds are prepared: its config, and what `processor_config.json` says. */
import type { ModelConfig } from "../checkpoint/config.ts";
import { CheckpointError } from "../errors.ts";
import type { PatchGeometry } from "./patches.ts";

/** Settings of one model. */
export interface MediaSettings {
  /** Null where the model cannot see. */
  vision:
    | (PatchGeometry & {
      /** soft tokens of a picture at most, unless the caller says otherwise */ imageTokens: number;
      /** soft tokens of a video frame at most */ frameTokens: number;
      /** frames of a video */ frames: number;
    })
    | null;
  /** Log-mel frames, or raw frames of so many samples; null where the model cannot hear. */
  audio: { kind: "mel" } | { kind: "frames"; frameSize: number } | null;
}

const USUAL_IMAGE_TOKENS = 280;

/** Budgets of soft tokens that the models were trained for. */
export const IMAGE_TOKENS: readonly number[] = [70, 140, 280, 560, 1120];
const USUAL_FRAME_TOKENS = 70;
const USUAL_FRAMES = 32;

/** What the front end of the log-mel towers computes; a checkpoint that asks for other values is refused. */
const MEL_VALUES: Record<string, unknown> = {
  feature_size: 128,
  sampling_rate: 16_000,
  frame_length: 320,
  hop_length: 160,
  fft_length: 512,
  fft_overdrive: false,
  mel_floor: 0.001,
  min_frequency: 0,
  max_frequency: 8000,
  preemphasis: 0,
  dither: 0,
  input_scale_factor: 1,
  per_bin_mean: null,
  per_bin_stddev: null,
};

/** What becomes of a picture's bytes, 0 to 255, on the way to the model: they are resized (3: bicubic) and divided by 255. */
const PIXEL_VALUES: Record<string, unknown> = { do_resize: true, resample: 3, do_rescale: true };

/**
 * `processor` is the JSON of `processor_config.json`, or null: then the built-in values hold. Throws `CheckpointError` that names
 * what cannot be done.
 */
export function mediaSettings(
  { vision, audio }: Pick<ModelConfig, "vision" | "audio">,
  processor: unknown,
): MediaSettings {
  const part = (name: string): Record<string, unknown> => {
    const value = (processor as Record<string, unknown> | null)?.[name];
    return typeof value === "object" && value !== null ? value as Record<string, unknown> : {};
  };
  const image = part("image_processor"), video = part("video_processor"), sound = part("feature_extractor");
  for (const [where, values] of [["image_processor", image], ["video_processor", video]] as const) {
    for (const side of ["patch_size", "pooling_kernel_size"] as const) {
      const own = side === "patch_size" ? vision?.patchSize : vision?.poolingKernelSize;
      if (own !== undefined && values[side] !== undefined && values[side] !== own) {
        throw refused(`${where}.${side} is ${values[side]}`, `config.json says ${own}`);
      }
    }
  }
  if (vision !== null) {
    checkPixels(image, "image_processor");
    checkPixels(video, "video_processor");
  }
  if (audio?.kind === "tower") checkValues(sound, "feature_extractor", MEL_VALUES);
  else if (audio !== null) {
    const { frameSize } = audio;
    const values = { sampling_rate: 16_000, feature_size: frameSize, audio_samples_per_token: frameSize };
    checkValues(sound, "feature_extractor", values);
  }
  return {
    vision: vision && {
      patchSize: vision.patchSize,
      poolingKernelSize: vision.poolingKernelSize,
      merged: vision.kind === "patches",
      imageTokens: count(image, "image_processor", "max_soft_tokens", 1120) ??
        (vision.kind === "tower" ? vision.softTokens : null) ?? USUAL_IMAGE_TOKENS,
      frameTokens: count(video, "video_processor", "max_soft_tokens", 1120) ?? USUAL_FRAME_TOKENS,
      frames: count(video, "video_processor", "num_frames", 4096) ?? USUAL_FRAMES,
    },
    audio: audio &&
      (audio.kind === "tower" ? { kind: "mel" } : { kind: "frames", frameSize: audio.frameSize }),
  };
}

/** Throws `CheckpointError` for the first value that is there and another. */
function checkValues(given: Record<string, unknown>, where: string, values: Record<string, unknown>): void {
  for (const [name, value] of Object.entries(values)) {
    if (given[name] !== undefined && given[name] !== value) {
      throw refused(`${where}.${name} is ${given[name]}`, `only ${value} can be had`);
    }
  }
}

/** Pictures are made as the reference does by default; whatever asks for other numbers is refused. */
function checkPixels(given: Record<string, unknown>, where: string): void {
  checkValues(given, where, PIXEL_VALUES);
  const { rescale_factor: factor = 1 / 255, do_normalize: normalize } = given;
  if (typeof factor !== "number" || Math.abs(factor * 255 - 1) > 1e-6) {
    throw refused(`${where}.rescale_factor is ${factor}`, "only 1/255 can be had");
  }
  if (normalize === false) return;
  for (const [name, value] of [["image_mean", 0], ["image_std", 1]] as const) {
    const channels = given[name];
    const isUsual = channels === undefined || channels === null ||
      [channels].flat().every((each) => each === value);
    if (!isUsual) throw refused(`${where}.${name} is ${channels}`, `only ${value} can be had`);
  }
}

function count(
  values: Record<string, unknown>,
  where: string,
  name: string,
  most: number,
): number | undefined {
  const value = values[name];
  if (value === undefined || value === null) return undefined;
  if (Number.isInteger(value) && (value as number) >= 1 && (value as number) <= most) return value as number;
  throw refused(`${where}.${name} is ${value}`, `it must be a whole number from 1 to ${most}`);
}

function refused(what: string, why: string): CheckpointError {
  return new CheckpointError(
    "invalid_config",
    `processor_config.json: ${what}, but ${why}. Correct the file.`,
  );
}
