/** From pictures and sounds as `src/media` gives them to the bytes that a tower's plan reads. Pure functions. */
import type { AudioTowerConfig, VisionPatchesConfig, VisionTowerConfig } from "../checkpoint/config_media.ts";
import type { AudioFramesConfig } from "../checkpoint/config_media.ts";
import { MEL_BINS } from "../checkpoint/towers.ts";
import { InvalidArgument } from "../errors.ts";
import type { AudioFeatures, AudioFrames, ImagePatches } from "../media/types.ts";

/** One run of a tower. */
export interface TowerInput {
  /** live rows */ rows: number;
  /** live output rows */ outRows: number;
  /** values of each input of the plan, by name; u32 or f32 as the plan has them */
  values: ReadonlyMap<string, Float32Array<ArrayBuffer> | Uint32Array<ArrayBuffer>>;
  /** output rows that are soft tokens; undefined: all */ kept?: readonly number[];
}

/** Rows of one run of a tower at most. */
const MOST_ROWS = 65_536;

/** A picture for either kind of vision. Throws `InvalidArgument` where it does not fit the model. */
export function imageInput(config: VisionTowerConfig | VisionPatchesConfig, image: ImagePatches): TowerInput {
  const { pixels, positions, columns, rows: gridRows } = image;
  const k = config.poolingKernelSize;
  const merged = config.kind === "patches";
  const side = merged ? config.patchSize * k : config.patchSize;
  const width = side * side * 3;
  const patches = columns * gridRows;
  const whole = Number.isInteger(columns) && Number.isInteger(gridRows) && columns > 0 && gridRows > 0;
  if (!whole || patches > MOST_ROWS) {
    throw new InvalidArgument(
      `A picture of ${columns} × ${gridRows} patches; there must be 1 to ${MOST_ROWS}.`,
    );
  }
  if (pixels.length !== patches * width || positions.length !== 2 * patches) {
    throw new InvalidArgument(
      `A picture of ${columns} × ${gridRows} patches must have ${patches} × ${width} pixel values and ${patches} × 2 ` +
        `positions, not ${pixels.length} and ${positions.length}.`,
    );
  }
  if (!merged && (columns % k !== 0 || gridRows % k !== 0)) {
    throw new InvalidArgument(
      `A picture of ${columns} × ${gridRows} patches; the model makes one token of ${k} × ${k}, so that both must be ` +
        `multiples of ${k}.`,
    );
  }
  if (columns > config.positionRows || gridRows > config.positionRows) {
    throw new InvalidArgument(
      `A picture of ${columns} × ${gridRows} patches; the model has ${config.positionRows} positions along a side.`,
    );
  }
  const seen = new Uint8Array(patches);
  for (let i = 0; i < patches; i++) {
    const [x, y] = [positions[2 * i], positions[2 * i + 1]];
    if (!(x >= 0 && x < columns && y >= 0 && y < gridRows) || seen[y * columns + x]++ > 0) {
      throw new InvalidArgument(
        `Patch ${i} is at (${x}, ${y}); each place of the ${columns} × ${gridRows} grid must occur once.`,
      );
    }
  }
  // Towers take 2 · (value - ½), the merged patches of the other kind the value itself.
  const levels = Float32Array.from({ length: 256 }, (_, v) => merged ? v / 255 : 2 * (v / 255 - 0.5));
  const scaled = new Float32Array(pixels.length);
  for (let i = 0; i < pixels.length; i++) scaled[i] = levels[pixels[i]];
  const values = new Map<string, Float32Array<ArrayBuffer> | Uint32Array<ArrayBuffer>>([
    ["pixels", scaled],
    ["positions", Uint32Array.from(positions)],
  ]);
  if (merged) return { rows: patches, outRows: 1, values };
  const cellColumns = columns / k;
  const cells = patches / (k * k);
  const members = new Uint32Array(patches);
  const filled = new Uint32Array(cells);
  for (let i = 0; i < patches; i++) {
    const cell = Math.floor(positions[2 * i] / k) + cellColumns * Math.floor(positions[2 * i + 1] / k);
    members[cell * k * k + filled[cell]++] = i;
  }
  values.set("members", members);
  return { rows: patches, outRows: cells, values };
}

/** A sound for the conformer. Throws `InvalidArgument`. */
export function featuresInput(_config: AudioTowerConfig, audio: AudioFeatures): TowerInput {
  const { logMel, valid } = audio;
  const frames = valid.length;
  if (frames === 0 || frames > MOST_ROWS || logMel.length !== frames * MEL_BINS) {
    throw new InvalidArgument(
      `A sound of ${frames} frames with ${logMel.length} values; there must be 1 to ${MOST_ROWS} frames of ${MEL_BINS}.`,
    );
  }
  // Frames in pairs; one beyond the end counts as invalid, which is the zero row around the convolution.
  const rows = Math.ceil(frames / 2);
  const outRows = Math.ceil(rows / 2);
  const paired = new Float32Array(rows * 2 * MEL_BINS);
  paired.set(logMel);
  const mask = new Uint32Array(2 * rows);
  valid.forEach((value, t) => (mask[t] = value ? 1 : 0));
  const halved = Uint32Array.from({ length: rows }, (_, t) => mask[2 * t]);
  const quartered = Uint32Array.from({ length: outRows }, (_, t) => halved[2 * t]);
  return {
    rows,
    outRows,
    values: new Map<string, Float32Array<ArrayBuffer> | Uint32Array<ArrayBuffer>>([
      ["frames", paired],
      ["valid", mask],
      ["valid1", halved],
      ["valid2", quartered],
    ]),
    kept: [...quartered.keys()].filter((t) => quartered[t] === 1),
  };
}

/** A sound as raw frames. Throws `InvalidArgument`. */
export function framesInput(config: AudioFramesConfig, audio: AudioFrames): TowerInput {
  const { samples, frames } = audio;
  if (!(frames > 0 && frames <= MOST_ROWS) || samples.length !== frames * config.frameSize) {
    throw new InvalidArgument(
      `A sound of ${frames} frames with ${samples.length} samples; there must be 1 to ${MOST_ROWS} frames of ` +
        `${config.frameSize}.`,
    );
  }
  return { rows: frames, outRows: 1, values: new Map([["samples", Float32Array.from(samples)]]) };
}
