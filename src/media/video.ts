/** Frames of a video at even distances, each with its time, and its sound. */
import { checkFields } from "../arguments.ts";
import { InvalidArgument } from "../errors.ts";
import type { AnimationFrame } from "./animation.ts";
import { Breath } from "./breath.ts";
import { openWithFfmpeg } from "./ffmpeg.ts";
import {
  MAX_VIDEO_BYTES,
  sampledFrames,
  USUAL_FPS,
  type Video,
  type VideoFrame,
  type VideoOptions,
} from "./frames.ts";
import { gifFrames, parseGif } from "./gif.ts";
import { imageHeader } from "./headers/image.ts";
import { CLIP_SECONDS } from "./mel.ts";
import type { VideoFrames, VideoInput } from "./inputs.ts";
import { checkPixels, imageFormat, readPicture, upright } from "./picture.ts";
import { readSound } from "./sound.ts";
import { isMediaSource, readHead, readSource, regularPath } from "./source.ts";
import { sniff } from "./sniff.ts";
import { webpFrames, webpLength } from "./webp_animation.ts";

const MOST_FRAMES = 100_000;

/** Opens a video. Rejects with `MediaError`, `InvalidArgument`, `MissingPermission` or the signal's reason. */
export async function readVideo(input: VideoInput, options: VideoOptions): Promise<Video> {
  if (!isMediaSource(input)) return givenFrames(input, options);
  const limits = { limit: MAX_VIDEO_BYTES, signal: options.signal };
  // A file stays where it is; anything else is fetched once.
  const source = await regularPath(input) ?? await readSource(input, limits);
  const format = sniff(await readHead(source, options.signal));
  if (format === "gif" || format === "webp") {
    const bytes = await readSource(source, limits);
    return {
      frames: animation(bytes, format, options),
      warnings: [],
      sound: () => Promise.resolve(undefined),
    };
  }
  return await openWithFfmpeg(source, format, options);
}

async function* animation(
  bytes: Uint8Array,
  format: "gif" | "webp",
  { frames, signal }: VideoOptions,
): AsyncGenerator<VideoFrame> {
  const { width, height, orientation, animated } = imageHeader(imageFormat(format), bytes);
  checkPixels(width, height);
  if (format === "webp" && !animated) {
    yield { picture: await readPicture(bytes, signal), time: 0 };
    return;
  }
  const gif = format === "gif" ? parseGif(bytes) : undefined;
  const total = gif?.frames.length ?? webpLength(bytes);
  const wanted = new Set(sampledFrames(total, frames));
  const last = Math.max(...wanted) + 1;
  const all: Iterable<AnimationFrame> | AsyncIterable<AnimationFrame> = gif
    ? gifFrames(gif, last)
    : webpFrames(bytes, last);
  const breath = new Breath(signal);
  let index = 0;
  for await (const { canvas, time } of all) {
    await breath.take();
    if (wanted.has(index++)) yield { picture: await upright(canvas, orientation, signal), time };
  }
}

function givenFrames(input: VideoFrames, { frames: count, signal }: VideoOptions): Video {
  const { frames, fps = USUAL_FPS, audio } = Object(input) as VideoFrames;
  if (!Array.isArray(frames) || frames.length === 0 || frames.length > MOST_FRAMES) {
    throw new InvalidArgument(
      `A video is a path, a URL, a Blob, bytes, or {frames, fps} with a list of 1 to ${MOST_FRAMES} pictures.`,
    );
  }
  checkFields(input, ["frames", "fps", "audio"]);
  if (typeof fps !== "number" || !(fps > 0 && fps <= 1000)) {
    throw new InvalidArgument(`fps of the video is ${fps}; it must be a number above 0, up to 1000.`);
  }
  return {
    frames: (async function* () {
      for (const index of sampledFrames(frames.length, count)) {
        yield { picture: await readPicture(frames[index], signal), time: index / fps };
      }
    })(),
    warnings: [],
    sound: async () => audio === undefined ? undefined : await readSound(audio, signal, CLIP_SECONDS),
  };
}
