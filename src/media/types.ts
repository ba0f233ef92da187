/**
 * What the towers read and write, whatever file or array it came from.
 */

/** One picture cut into patches. */
export interface ImagePatches {
  /** patches × (patch² · 3), row-major over the grid; inside a patch row, column, channel; 0–255. */
  pixels: Uint8Array;
  /** patches × 2: (x, y). */
  positions: Int32Array;
  /** Grid width in patches. */
  columns: number;
  /** Grid height in patches. */
  rows: number;
}

/** Log-mel frames of one clip (gemma4 conformer). */
export interface AudioFeatures {
  /** frames × 128, natural log; invalid frames are zero. */
  logMel: Float32Array;
  /** frames: 1 where valid. */
  valid: Uint8Array;
}

/** Raw frames of one clip (12B unified): frames × audioEmbedDim samples, the last one zero-padded. */
export interface AudioFrames {
  /** frames × audioEmbedDim, −1 to 1. */
  samples: Float32Array;
  /** Number of frames, one soft token each. */
  frames: number;
}

/** Rows that replace embeddings. */
export interface SoftTokens {
  /** tokens × hidden. */
  values: Float32Array;
  /** Number of rows. */
  tokens: number;
}
