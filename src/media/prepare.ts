/** From a caller's picture, sound or video to what the towers take, with the soft tokens that it will become. */
import { MediaError } from "../errors.ts";
import type { Warning } from "../warning.ts";
import type { AudioInput, ImageInput, VideoInput } from "./inputs.ts";
import {
  CLIP_SECONDS,
  LEAST_SAMPLES,
  logMel,
  MAX_CLIP_SAMPLES,
  melSoftTokens,
  rawFrames,
  SAMPLE_RATE,
} from "./mel.ts";
import type { Sound } from "./mono.ts";
import { cutPatches } from "./patches.ts";
import { readPicture } from "./picture.ts";
import type { Picture } from "./resize.ts";
import type { MediaSettings } from "./settings.ts";
import { readSound } from "./sound.ts";
import type { AudioFeatures, AudioFrames, ImagePatches } from "./types.ts";
import { readVideo } from "./video.ts";
import { keyOf } from "./spans.ts";

/** One run of soft tokens: a picture, a frame of a video, or a clip of sound. */
export type MediaSpan =
  & {
    /** Soft tokens that it becomes. */
    tokens: number;
    /** SHA-256 of what the tower takes, which names the content. */
    key: string;
  }
  & (
    | { kind: "image"; input: ImagePatches }
    | { kind: "video"; input: ImagePatches; /** seconds from the beginning */ time: number }
    | { kind: "audio"; input: AudioFeatures | AudioFrames }
  );

/** A medium as the prompt will hold it: several spans for a video. */
export interface PreparedMedia {
  /** What it was given as. */
  kind: "image" | "audio" | "video";
  /** In the order of the prompt. */
  spans: MediaSpan[];
  /** What was cut or repaired. */
  warnings: Warning[];
}

/** How to prepare. */
export interface PrepareOptions {
  /** Soft tokens of a picture at most; default: the model's. */
  imageTokens?: number;
  /** Ends the work. */
  signal?: AbortSignal;
}

type Vision = NonNullable<MediaSettings["vision"]>;
type Audio = NonNullable<MediaSettings["audio"]>;

/** Prepares a picture. Rejects with `MediaError`, `InvalidArgument`, `MissingPermission` or the signal's reason. */
export async function prepareImage(
  input: ImageInput,
  vision: Vision,
  options: PrepareOptions,
): Promise<PreparedMedia> {
  const picture = await readPicture(input, options.signal);
  const { patches, tokens, key } = await cut(
    picture,
    options.imageTokens ?? vision.imageTokens,
    vision,
    options.signal,
  );
  return { kind: "image", spans: [{ kind: "image", input: patches, tokens, key }], warnings: [] };
}

/** Prepares a sound of up to 30 s; a longer one is cut, with a warning. Rejects as `prepareImage`. */
export async function prepareAudio(
  input: AudioInput,
  audio: Audio,
  options: PrepareOptions,
): Promise<PreparedMedia> {
  return await prepareSound(await readSound(input, options.signal, CLIP_SECONDS), audio);
}

/** Prepares samples of 16 kHz, as `prepareAudio`. */
async function prepareSound(sound: Sound, audio: Audio): Promise<PreparedMedia> {
  const { samples } = sound;
  const clip = samples.subarray(0, MAX_CLIP_SAMPLES);
  const warnings = [...sound.warnings];
  if (clip.length < samples.length) {
    const { seconds = samples.length / SAMPLE_RATE } = sound;
    warnings.push({
      code: "audio_cut",
      message:
        `The sound lasts ${seconds.toFixed(1)} s; the model hears the first ${
          MAX_CLIP_SAMPLES / SAMPLE_RATE
        } s. ` +
        `Pass the rest as further parts.`,
    });
  }
  const heard = audio.kind === "mel" ? logMel(clip) : rawFrames(clip, audio.frameSize);
  const tokens = "frames" in heard ? heard.frames : melSoftTokens(clip.length);
  if (tokens === 0) {
    throw new MediaError(
      "media_too_short",
      `The sound has ${clip.length} samples of 16 kHz; at least ${LEAST_SAMPLES} (${
        (LEAST_SAMPLES / SAMPLE_RATE).toFixed(4)
      } s) make a frame. Record a longer one.`,
    );
  }
  const key = await keyOf("audio", "frames" in heard ? heard.samples : heard.logMel, [tokens]);
  return { kind: "audio", spans: [{ kind: "audio", input: heard, tokens, key }], warnings };
}

/** Prepares sampled frames of a video, each with its time; its sound follows where the model hears. Rejects as `prepareImage`. */
export async function prepareVideo(
  input: VideoInput,
  { vision, audio }: { vision: Vision; audio: MediaSettings["audio"] },
  { signal }: PrepareOptions,
): Promise<PreparedMedia> {
  const spans: MediaSpan[] = [];
  const warnings: Warning[] = [];
  const video = await readVideo(input, { frames: vision.frames, sound: audio !== null, signal });
  for await (const { picture, time } of video.frames) {
    signal?.throwIfAborted();
    const { patches, tokens, key } = await cut(picture, vision.frameTokens, vision, signal);
    spans.push({ kind: "video", input: patches, tokens, key, time });
  }
  if (spans.length === 0) {
    throw new MediaError(
      "media_damaged",
      "The video has no frame that can be decoded. Convert or record it again.",
    );
  }
  warnings.push(...video.warnings);
  if (audio !== null) {
    const sound = await video.sound();
    if (sound !== undefined) {
      const clip = await prepareSound(sound, audio);
      spans.push(...clip.spans);
      warnings.push(...clip.warnings);
    }
  }
  return { kind: "video", spans, warnings };
}

async function cut(
  picture: Picture,
  tokens: number,
  vision: Vision,
  signal: AbortSignal | undefined,
): Promise<{ patches: ImagePatches; tokens: number; key: string }> {
  const patches = await cutPatches(picture, tokens, vision, signal);
  const { columns, rows } = patches;
  const pooled = vision.merged ? 1 : vision.poolingKernelSize ** 2;
  const key = await keyOf("image", patches.pixels, [columns, rows]);
  return { patches, tokens: columns * rows / pooled, key };
}
