/** A picture as the vision towers take it: resized to whole soft tokens within a budget, then cut into patches. */
import { MediaError } from "../errors.ts";
import { MAX_PIXELS } from "./picture.ts";
import { type Picture, resizeBicubic } from "./resize.ts";
import type { ImagePatches } from "./types.ts";

/** How a model's pictures are cut. */
export interface PatchGeometry {
  /** Pixels along one side of a patch. */
  patchSize: number;
  /** Patches along one side of the square that becomes one soft token. */
  poolingKernelSize: number;
  /** The tower takes whole pooled squares as its patches (`gemma4_unified`). */
  merged: boolean;
}

/**
 * Size in pixels that a picture is resized to: the sides keep their ratio, each is a whole number of soft tokens, and there are at
 * most `softTokens` of them. Small pictures grow.
 */
export function targetSize(
  width: number,
  height: number,
  softTokens: number,
  { patchSize, poolingKernelSize: pool }: PatchGeometry,
): { width: number; height: number } {
  const unit = patchSize * pool;
  const factor = Math.sqrt(softTokens * pool * pool * patchSize * patchSize / (width * height));
  const across = Math.floor(factor * width / unit), down = Math.floor(factor * height / unit);
  if (across === 0 && down === 0) {
    throw new MediaError("image_too_small_budget", `A budget of ${softTokens} soft tokens holds no picture.`);
  }
  if (across === 0) {
    return { width: unit, height: Math.min(Math.floor(height / width), softTokens) * unit };
  }
  if (down === 0) {
    return { width: Math.min(Math.floor(width / height), softTokens) * unit, height: unit };
  }
  return { width: across * unit, height: down * unit };
}

/** Resizes a picture and cuts it into patches. Rejects as `targetSize` throws, or with the signal's reason. */
export async function cutPatches(
  picture: Picture,
  softTokens: number,
  geometry: PatchGeometry,
  signal?: AbortSignal,
): Promise<ImagePatches> {
  const { width, height } = targetSize(picture.width, picture.height, softTokens, geometry);
  if (width * picture.height > MAX_PIXELS) { // rows are resized first
    throw new MediaError(
      "media_too_large",
      `The picture has ${picture.width} × ${picture.height} pixels, and rows of ${width} would be too many. Make it less tall.`,
    );
  }
  const { pixels } = await resizeBicubic(picture, width, height, signal);
  const side = geometry.patchSize * (geometry.merged ? geometry.poolingKernelSize : 1);
  const columns = width / side, rows = height / side;
  const patches = new Uint8Array(pixels.length);
  const positions = new Int32Array(columns * rows * 2);
  let at = 0;
  for (let py = 0; py < rows; py++) {
    for (let px = 0; px < columns; px++) {
      positions.set([px, py], (py * columns + px) * 2);
      for (let y = 0; y < side; y++) {
        const from = ((py * side + y) * width + px * side) * 3;
        patches.set(pixels.subarray(from, from + side * 3), at);
        at += side * 3;
      }
    }
  }
  return { pixels: patches, positions, columns, rows };
}
