/** What animated GIF and WebP share: frames on one canvas. */
import { MediaError } from "../errors.ts";
import type { Decoded } from "./codecs.ts";

/** One frame of an animation as it is seen. */
export interface AnimationFrame {
  /** The whole picture; valid until the next frame is asked for. */
  canvas: Decoded;
  /** Seconds from the beginning. */
  time: number;
}

/** A place on a canvas, in pixels. */
export interface Area {
  x: number;
  y: number;
  width: number;
  height: number;
}

/** Pixels of all frames together that an animation may have. */
const MAX_ANIMATION_PIXELS = 4e9;

/** Seconds of a frame whose delay is below 20 ms, as browsers show it. */
export const LEAST_DELAY = 0.1;

/** Refuses an animation that would take too long. */
export function checkAnimation(width: number, height: number, frames: number): void {
  if (width * height * frames <= MAX_ANIMATION_PIXELS) return;
  throw new MediaError(
    "media_too_large",
    `The animation has ${frames} frames of ${width} × ${height} pixels; ${MAX_ANIMATION_PIXELS} pixels in all are allowed. ` +
      `Make it smaller or shorter.`,
  );
}

/** Makes a part of a canvas transparent. */
export function clear(data: Uint8Array, stride: number, { x, y, width, height }: Area): void {
  for (let row = y; row < y + height; row++) {
    data.fill(0, (row * stride + x) * 4, (row * stride + x + width) * 4);
  }
}
