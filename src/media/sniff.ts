/** Tells the format of a media file from its first bytes. */

import { tagsEnd } from "./headers/tags.ts";

/** Formats that are told apart; those of videos are read by `ffmpeg`. */
export type MediaFormat =
  | "png"
  | "jpeg"
  | "webp"
  | "gif"
  | "avif"
  | "heic"
  | "bmp"
  | "tiff"
  | "jxl"
  | "svg"
  | "wav"
  | "mp3"
  | "flac"
  | "ogg"
  | "aac"
  | "aiff"
  | "caf"
  | "mp4"
  | "webm"
  | "avi"
  | "asf"
  | "flv"
  | "mpeg";

/** Formats of pictures that can be decoded. */
export type ImageFormat = "png" | "jpeg" | "webp" | "gif" | "avif" | "heic";
/** Formats of sounds that can be decoded. */
export type AudioFormat = "wav" | "mp3" | "flac" | "ogg";

const IMAGE_FORMATS: readonly string[] = ["png", "jpeg", "webp", "gif", "avif", "heic"];
const AUDIO_FORMATS: readonly string[] = ["wav", "mp3", "flac", "ogg"];
const AVIF_BRANDS = ["avif", "avis"];
const HEIC_BRANDS = ["heic", "heix", "heim", "heis", "hevc", "hevx", "mif1", "msf1"];

/** Whether pictures of this format can be decoded. */
export function isImageFormat(format: MediaFormat | undefined): format is ImageFormat {
  return format !== undefined && IMAGE_FORMATS.includes(format);
}

/** Whether sounds of this format can be decoded without `ffmpeg`. */
export function isAudioFormat(format: MediaFormat | undefined): format is AudioFormat {
  return format !== undefined && AUDIO_FORMATS.includes(format);
}

/** The format, or undefined if the bytes begin like none of them. */
export function sniff(bytes: Uint8Array): MediaFormat | undefined {
  const ascii = (at: number, length: number) =>
    String.fromCharCode(...bytes.subarray(at, Math.min(at + length, bytes.length)));
  const begins = (...values: number[]) => values.every((value, i) => bytes[i] === value);
  if (begins(0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a)) return "png";
  if (begins(0xff, 0xd8, 0xff)) return "jpeg";
  if (ascii(0, 4) === "GIF8") return "gif";
  if (ascii(0, 4) === "RIFF" || ascii(0, 4) === "RF64" || ascii(0, 4) === "BW64") {
    const kind = ascii(8, 4);
    return kind === "WEBP" ? "webp" : kind === "WAVE" ? "wav" : kind === "AVI " ? "avi" : undefined;
  }
  if (ascii(4, 4) === "ftyp") return sniffBrands(bytes, ascii);
  if (ascii(0, 4) === "fLaC") return "flac";
  if (ascii(0, 4) === "OggS") return "ogg";
  if (ascii(0, 3) === "ID3") return sniffBehindTag(bytes);
  if (begins(0x1a, 0x45, 0xdf, 0xa3)) return "webm";
  if (ascii(0, 4) === "caff") return "caf";
  if (ascii(0, 3) === "FLV") return "flv";
  if (begins(0x30, 0x26, 0xb2, 0x75, 0x8e, 0x66, 0xcf, 0x11)) return "asf";
  if (ascii(0, 4) === "FORM" && ascii(8, 3) === "AIF") return "aiff";
  if (ascii(0, 2) === "BM") return "bmp";
  if (begins(0x49, 0x49, 0x2a, 0) || begins(0x4d, 0x4d, 0, 0x2a)) return "tiff";
  if (begins(0xff, 0x0a) || begins(0, 0, 0, 0x0c, 0x4a, 0x58, 0x4c, 0x20)) return "jxl";
  if (begins(0, 0, 1, 0xba) || begins(0, 0, 1, 0xb3)) return "mpeg";
  if (bytes[0] === 0xff && (bytes[1] & 0xf6) === 0xf0) return "aac";
  if (isMp3Frame(bytes, 0)) return "mp3";
  if (isTransportStream(bytes)) return "mpeg";
  if (/^\s*(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)?<svg[\s>]/is.test(ascii(0, 512))) return "svg";
  return undefined;
}

/** Whether these are packets of an MPEG transport stream, of 188 bytes each, as cameras write them behind four of time. */
export function isTransportStream(bytes: Uint8Array): boolean {
  return [0, 4].some((time) => bytes[time] === 0x47 && bytes[time + 188 + time] === 0x47);
}

function sniffBrands(bytes: Uint8Array, ascii: (at: number, length: number) => string): MediaFormat {
  const size = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength).getUint32(0);
  const brands = [ascii(8, 4)];
  for (let at = 16; at + 4 <= Math.min(size, bytes.length, 256); at += 4) brands.push(ascii(at, 4));
  if (brands.some((brand) => AVIF_BRANDS.includes(brand))) return "avif";
  if (brands.includes("heic") || brands.includes("heix")) return "heic"; // behind brands of makers' own
  return HEIC_BRANDS.includes(brands[0]) ? "heic" : "mp4";
}

/** ID3 tags, several too, stand before MP3 frames, and now and then before FLAC or AAC. */
function sniffBehindTag(bytes: Uint8Array): MediaFormat {
  const rest = bytes.subarray(tagsEnd(bytes));
  if (rest[0] === 0x49 && rest[1] === 0x44 && rest[2] === 0x33) return "mp3"; // a tag that is cut off
  return rest.length > 4 && !isMp3Frame(rest, 0) ? sniff(rest) ?? "mp3" : "mp3";
}

/** A header of an MPEG audio frame of layer 3. */
function isMp3Frame(bytes: Uint8Array, at: number): boolean {
  const [a, b, c] = bytes.subarray(at, at + 3);
  const version = b >> 3 & 3, layer = b >> 1 & 3, bitrate = c >> 4, rate = c >> 2 & 3;
  return a === 0xff && b >> 5 === 7 && version !== 1 && layer === 1 && bitrate !== 15 && bitrate !== 0 &&
    rate !== 3;
}
