/** What callers may pass as a picture, a sound or a video. */

/**
 * A file in any of these forms: a path, a URL (`http:`, `https:`, `file:`, `data:` or `blob:`), a `Blob`, or bytes. Its
 * format is told from its bytes; names and MIME types are not trusted.
 */
export type MediaSource = string | URL | Blob | Uint8Array | ArrayBuffer;

/** Raw pixels, row-major; an `ImageData` is one. */
export interface RawPixels {
  /**
   * height × width × channels. Bytes are 0–255. Floats are 0–1, or 0–255 if any is above 1.
   */
  data: Uint8Array | Uint8ClampedArray | Float16Array | Float32Array | Float64Array;
  /** In pixels. */
  width: number;
  /** In pixels. */
  height: number;
  /** 1 grey, 2 grey and alpha, 3 RGB, 4 RGB and alpha. Default: what the length of `data` says. */
  channels?: number;
}

/** Raw samples, interleaved. */
export interface RawSamples {
  /** frames × channels. Floats are −1 to 1, integers use their whole range. */
  data: Float32Array | Float64Array | Int16Array | Int32Array;
  /** In hertz, 1000 to 768000. */
  sampleRate: number;
  /** Default 1. */
  channels?: number;
}

/** A picture: PNG, JPEG, WebP, AVIF, HEIC, GIF (its first frame), or raw pixels. */
export type ImageInput = MediaSource | RawPixels;

/** A sound: WAV, MP3, FLAC, Ogg (Opus, Vorbis, FLAC), the sound of a video file, or raw samples. */
export type AudioInput = MediaSource | RawSamples;

/** Frames of a video. */
export interface VideoFrames {
  /** In the order of time, at the same distance. */
  frames: readonly ImageInput[];
  /** Frames per second, for the times that the model is told. Default 24. */
  fps?: number;
  /** Its sound; where the model hears, it follows the frames. */
  audio?: AudioInput;
}

/** A video: an animated GIF or WebP, any file that an installed `ffmpeg` reads, or frames. */
export type VideoInput = MediaSource | VideoFrames;
