/** What readers of videos give, and which frames are looked at. */
import type { Warning } from "../warning.ts";
import type { Picture } from "./resize.ts";
import type { Sound } from "./mono.ts";

/** Bytes that the file of a video may have. */
export const MAX_VIDEO_BYTES: number = 2 ** 30;

/** Frames per second of a video that does not say. */
export const USUAL_FPS = 24;

/** A frame that was sampled. */
export interface VideoFrame {
  picture: Picture;
  /** Seconds from the beginning. */
  time: number;
}

/** A video that is being read; frames come once and before the sound. */
export interface Video {
  frames: AsyncIterable<VideoFrame>;
  /** What is missing; complete when the last frame came. */
  warnings: Warning[];
  /** Its sound, or undefined if it has none. */
  sound(): Promise<Sound | undefined>;
}

/** How to read. */
export interface VideoOptions {
  /** Frames to sample. */
  frames: number;
  /** Whether its sound is wanted. */
  sound: boolean;
  /** Ends the work. */
  signal?: AbortSignal;
}

/** Which of `total` frames are looked at: as the reference, frame ⌊i · total / count⌋; all if there are no more than `count`. */
export function sampledFrames(total: number, count: number): number[] {
  if (total <= count) return Array.from({ length: total }, (_, i) => i);
  return Array.from({ length: count }, (_, i) => Math.floor(i * total / count));
}
