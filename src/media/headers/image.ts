/** Size, orientation and kind of a picture from its header, before anything is decoded. Pure functions over untrusted bytes. */
import { MediaError } from "../../errors.ts";
import type { ImageFormat } from "../sniff.ts";
import { Bytes, Truncated } from "./bytes.ts";
import { exifOrientation } from "./exif.ts";
import { avifHeader, heicHeader } from "./heif.ts";

/** What a header says. */
export interface ImageHeader {
  /** Stored pixels across. */
  width: number;
  /** Stored pixels down. */
  height: number;
  /** 1–8, as Exif counts them. */
  orientation: number;
  /** Colour components of a JPEG. */
  components?: number;
  /** Pixels that an AVIF or HEIC picture is coded with, where it says so. */
  codedPixels?: number;
  /** The decoder turns it, and may give less of it than the header says. */
  cropped?: boolean;
  /** Several pictures in a row. */
  animated?: boolean;
}

/** Pixels of all scans of a progressive JPEG together: of ten scans, which are usual, more than a picture may have. */
const MOST_SCANNED_PIXELS = 2e9;

/** Reads a header. Throws `MediaError` with code `media_damaged` or `unsupported_media`. */
export function imageHeader(format: ImageFormat, bytes: Uint8Array): ImageHeader {
  try {
    const header = READERS[format](new Bytes(bytes));
    if (header.width < 1 || header.height < 1) {
      throw damagedImage(format, `its size is ${header.width} × ${header.height}`);
    }
    return header;
  } catch (cause) {
    if (!(cause instanceof Truncated)) throw cause;
    throw damagedImage(format, "it ends within its header", cause);
  }
}

/** The error for a picture that cannot be decoded. */
export function damagedImage(format: string, what: string, cause?: unknown): MediaError {
  return new MediaError(
    "media_damaged",
    `The ${format.toUpperCase()} picture is damaged: ${what}. Save or download it again.`,
    { cause },
  );
}

const READERS: Record<ImageFormat, (data: Bytes) => ImageHeader> = {
  png: pngHeader,
  jpeg: jpegHeader,
  webp: webpHeader,
  gif: (data) => ({ width: data.u16(6, true), height: data.u16(8, true), orientation: 1 }),
  avif: avifHeader,
  heic: heicHeader,
};

function pngHeader(data: Bytes): ImageHeader {
  if (data.ascii(12, 4) !== "IHDR") throw damagedImage("png", "it does not begin with its header");
  const header: ImageHeader = { width: data.u32(16), height: data.u32(20), orientation: 1 };
  for (let at = 8; at + 8 <= data.length;) {
    const length = data.u32(at);
    const kind = data.ascii(at + 4, 4);
    if (kind === "eXIf" && at + 8 + length <= data.length) {
      header.orientation = exifOrientation(data.part(at + 8, at + 8 + length).bytes);
    }
    if (kind === "IEND") break;
    at += 12 + length;
  }
  return header;
}

function jpegHeader(data: Bytes): ImageHeader {
  let orientation = 1;
  for (let at = 2;;) {
    while (data.u8(at) !== 0xff) at++; // padding before a marker
    while (data.u8(at) === 0xff) at++;
    const marker = data.u8(at++);
    if (marker === 0x01 || marker >= 0xd0 && marker <= 0xd7) continue; // without a length
    if (marker === 0xd9 || marker === 0xda) throw damagedImage("jpeg", "it has no frame header");
    const length = data.u16(at);
    if (length < 2) throw damagedImage("jpeg", `a segment has ${length} bytes`);
    if (marker === 0xe1 && length >= 8 && data.ascii(at + 2, 6) === "Exif\0\0") {
      orientation = exifOrientation(data.part(at + 8, Math.min(data.length, at + length)).bytes);
    }
    if (marker >= 0xc0 && marker <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(marker)) {
      const precision = data.u8(at + 2), components = data.u8(at + 7);
      if (precision !== 8 || marker === 0xc3 || marker > 0xc6 && marker !== 0xc9 && marker !== 0xca) {
        throw new MediaError(
          "unsupported_media",
          `The JPEG picture is lossless, hierarchical or has ${precision} bits a sample. Save it as an ordinary JPEG or as PNG.`,
        );
      }
      const [width, height] = [data.u16(at + 5), data.u16(at + 3)];
      if (marker === 0xc2 || marker === 0xca) checkScans(scansFrom(data, at + length), width * height);
      return { width, height, orientation, components };
    }
    at += length;
  }
}

/** Scans of a progressive JPEG: markers cannot stand in what they hold. */
function scansFrom({ bytes }: Bytes, from: number): number {
  let scans = 0;
  for (let at = bytes.indexOf(0xff, from); at >= 0; at = bytes.indexOf(0xff, at + 1)) {
    if (bytes[at + 1] === 0xda) scans++;
  }
  return scans;
}

/** Each scan goes over the whole picture, and takes few bytes. */
function checkScans(scans: number, pixels: number): void {
  if (scans * pixels <= MOST_SCANNED_PIXELS) return;
  throw new MediaError(
    "media_too_large",
    `The JPEG picture goes over its ${pixels} pixels ${scans} times; ${MOST_SCANNED_PIXELS} pixels in all are allowed. Save it again.`,
  );
}

function webpHeader(data: Bytes): ImageHeader {
  const kind = data.ascii(12, 4);
  if (kind === "VP8 ") {
    if (data.u24(23) !== 0x2a019d) throw damagedImage("webp", "its frame has no start code");
    return { width: data.u16(26, true) & 0x3fff, height: data.u16(28, true) & 0x3fff, orientation: 1 };
  }
  if (kind === "VP8L") {
    const bits = data.u32(21, true);
    return { width: (bits & 0x3fff) + 1, height: (bits >> 14 & 0x3fff) + 1, orientation: 1 };
  }
  if (kind !== "VP8X") throw damagedImage("webp", `it begins with a chunk "${kind}"`);
  const header: ImageHeader = {
    width: data.u24(24) + 1,
    height: data.u24(27) + 1,
    orientation: 1,
    animated: (data.u8(20) & 2) !== 0,
  };
  for (const chunk of riffChunks(data)) {
    if (chunk.kind !== "EXIF") continue;
    const { bytes } = data.part(chunk.from, chunk.to);
    const prefixed = bytes.length > 6 && bytes[0] === 0x45 && bytes[4] === 0 && bytes[5] === 0; // "Exif\0\0"
    header.orientation = exifOrientation(prefixed ? bytes.subarray(6) : bytes);
  }
  return header;
}

/** The chunks of a RIFF file of WebP, as far as they are complete. */
export function* riffChunks(
  data: Bytes,
  from = 12,
  end: number = data.length,
): Generator<{ kind: string; from: number; to: number }> {
  for (let at = from; at + 8 <= end;) {
    const length = data.u32(at + 4, true);
    if (at + 8 + length > end) return;
    yield { kind: data.ascii(at, 4), from: at + 8, to: at + 8 + length };
    at += 8 + length + (length & 1);
  }
}
