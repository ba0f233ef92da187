/** From what a caller passes as a picture to upright 8-bit RGB. */
import { checkFields, describe } from "../arguments.ts";
import { InvalidArgument, MediaError } from "../errors.ts";
import { Breath } from "./breath.ts";
import type { Decoded } from "./codecs.ts";
import { decodeImage } from "./decode_apart.ts";
import { damagedImage, type ImageHeader, imageHeader } from "./headers/image.ts";
import { gifFrames, parseGif } from "./gif.ts";
import type { ImageInput, RawPixels } from "./inputs.ts";
import type { Picture } from "./resize.ts";
import { isMediaSource, readSource } from "./source.ts";
import { type ImageFormat, isImageFormat, type MediaFormat, sniff } from "./sniff.ts";
import { webpFrames } from "./webp_animation.ts";

/** Pixels that a picture may have. */
export const MAX_PIXELS = 100_000_000;
/** Pixels that a CMYK JPEG may have: its decoder is slower. */
const MAX_CMYK_PIXELS = 30_000_000;
/** Bytes that the file of a picture may have. */
const MAX_IMAGE_BYTES = 256 * 2 ** 20;

/** Reads a picture. Transparent parts show white. Rejects with `MediaError`, `InvalidArgument`, `MissingPermission` or the signal's reason. */
export async function readPicture(input: ImageInput, signal?: AbortSignal): Promise<Picture> {
  if (!isMediaSource(input)) return await rawPicture(input, signal);
  return await decodePicture(await readSource(input, { limit: MAX_IMAGE_BYTES, signal }), signal);
}

/** Decodes the bytes of a picture; of an animation its first frame. */
export async function decodePicture(bytes: Uint8Array, signal?: AbortSignal): Promise<Picture> {
  const format = imageFormat(sniff(bytes));
  const header = imageHeader(format, bytes);
  checkPixels(header.width, header.height, header.components === 4 ? MAX_CMYK_PIXELS : MAX_PIXELS);
  const { codedPixels = 0 } = header;
  if (codedPixels > MAX_PIXELS) {
    throw new MediaError(
      "media_too_large",
      `The ${format.toUpperCase()} picture of ${header.width} × ${header.height} is coded with ${
        codedPixels === Infinity ? "too many" : codedPixels
      } pixels; ${MAX_PIXELS} are allowed. Make it smaller.`,
    );
  }
  return await upright(await decode(format, bytes, header, signal), header.orientation, signal);
}

async function decode(
  format: ImageFormat,
  bytes: Uint8Array,
  header: ImageHeader,
  signal: AbortSignal | undefined,
): Promise<Decoded> {
  if (format === "gif") return await first(gifFrames(parseGif(bytes), 1));
  if (header.animated) return await first(webpFrames(bytes, 1));
  const pixels = Math.max(header.width * header.height, header.codedPixels ?? 0);
  const decoded = await decodeImage(header.components === 4 ? "cmyk" : format, bytes, pixels, signal);
  if (header.cropped || decoded.width === header.width && decoded.height === header.height) return decoded;
  throw damagedImage(
    format,
    `its header says ${header.width} × ${header.height}, its pixels are ${decoded.width} × ${decoded.height}`,
  );
}

async function first(
  frames: AsyncIterable<{ canvas: Decoded }> | Iterable<{ canvas: Decoded }>,
): Promise<Decoded> {
  for await (const { canvas } of frames) return canvas;
  throw new MediaError("media_damaged", "The animation has no frame. Save it again.");
}

/** Refuses what would take too much memory to decode. */
export function checkPixels(width: number, height: number, most: number = MAX_PIXELS): void {
  if (width * height <= most) return;
  throw new MediaError(
    "media_too_large",
    `The picture has ${width} × ${height} = ${width * height} pixels; ${most} are allowed. Make it smaller.`,
  );
}

/** The format as one that can be decoded, or a `MediaError` that says which it is. */
export function imageFormat(format: MediaFormat | undefined): ImageFormat {
  if (isImageFormat(format)) return format;
  const what = format === undefined ? "of no known format" : `${format.toUpperCase()}`;
  throw new MediaError(
    format === undefined ? "unknown_media" : "unsupported_media",
    `The picture is ${what}. PNG, JPEG, WebP, AVIF, HEIC and GIF can be read; save it as one of them.`,
  );
}

/** RGB as it should be looked at: turned as `orientation` (1–8, as in Exif) says, over white. */
export async function upright(
  { data, width, height }: Decoded,
  orientation: number,
  signal?: AbortSignal,
): Promise<Picture> {
  const pixels = new Uint8Array(width * height * 3);
  const breath = new Breath(signal);
  const turned = orientation >= 5;
  const outWidth = turned ? height : width, outHeight = turned ? width : height;
  const mirrorX = [2, 3, 7, 8].includes(orientation), mirrorY = [3, 4, 6, 7].includes(orientation);
  let at = 0;
  for (let y = 0; y < outHeight; y++) {
    await breath.take();
    for (let x = 0; x < outWidth; x++) {
      // (column, row) of the stored picture, before mirroring
      const column = turned ? y : x, row = turned ? x : y;
      const from = 4 *
        ((mirrorY ? height - 1 - row : row) * width + (mirrorX ? width - 1 - column : column));
      const alpha = data[from + 3];
      for (let c = 0; c < 3; c++) {
        pixels[at++] = alpha === 255 ? data[from + c] : overWhite(data[from + c], alpha);
      }
    }
  }
  return { pixels, width: outWidth, height: outHeight };
}

function overWhite(value: number, alpha: number): number {
  return Math.round((value * alpha + 255 * (255 - alpha)) / 255);
}

async function rawPicture(input: RawPixels, signal: AbortSignal | undefined): Promise<Picture> {
  const { data, width, height } = Object(input) as RawPixels;
  const floats = data instanceof Float32Array || data instanceof Float64Array ||
    data instanceof Float16Array;
  if (!floats && !(data instanceof Uint8Array) && !(data instanceof Uint8ClampedArray)) {
    throw new InvalidArgument(
      "A picture is a path, a URL, a Blob, bytes, or {data, width, height} with bytes or floats as data.",
    );
  }
  checkFields(input, ["data", "width", "height", "channels"]);
  const side = (n: unknown) => Number.isSafeInteger(n) && (n as number) > 0;
  if (!side(width) || !side(height)) {
    throw new InvalidArgument(
      `The raw picture is ${describe(width)} × ${describe(height)}; its sides are whole numbers from 1.`,
    );
  }
  checkPixels(width, height);
  const channels = input.channels ?? data.length / (width * height);
  if (![1, 2, 3, 4].includes(channels) || data.length !== width * height * channels) {
    throw new InvalidArgument(
      `The raw picture has ${data.length} values; ${width} × ${height} pixels of 1, 2, 3 or 4 channels need ` +
        `${width * height} for each channel${
          input.channels === undefined ? "" : ` (channels: ${describe(channels)})`
        }.`,
    );
  }
  const values = floats ? bytesOf(data) : data.slice(); // the caller may change its pixels meanwhile
  const rgba = new Uint8Array(width * height * 4);
  const breath = new Breath(signal);
  for (let i = 0, at = 0; i < width * height; i++) {
    if (i % width === 0) await breath.take();
    const from = i * channels;
    for (let c = 0; c < 3; c++) rgba[at++] = values[channels > 2 ? from + c : from];
    rgba[at++] = channels === 2 || channels === 4 ? values[from + channels - 1] : 255;
  }
  return await upright({ data: rgba, width, height }, 1, signal);
}

/** Floats of 0–1 or 0–255 as bytes. */
function bytesOf(data: Float16Array | Float32Array | Float64Array): Uint8Array {
  let largest = 0;
  for (const value of data) {
    if (!(value >= 0 && value <= 255)) {
      throw new InvalidArgument(`A value of the raw picture is ${value}; floats are 0 to 1, or 0 to 255.`);
    }
    if (value > largest) largest = value;
  }
  const scale = largest > 1 ? 1 : 255;
  return Uint8Array.from(data, (value) => Math.round(value * scale));
}
