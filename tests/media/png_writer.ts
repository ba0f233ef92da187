/** PNG files of any kind, written by their definition. */
import { deflateSync } from "node:zlib";
import { concat } from "../support/bytes.ts";

/** What a file is to be. */
export interface PngKind {
  width: number;
  height: number;
  /** 0 grey, 2 RGB, 3 palette, 4 grey and alpha, 6 RGB and alpha */ colour: 0 | 2 | 3 | 4 | 6;
  /** bits of a sample */ depth: number;
  interlaced?: boolean;
  /** chunks between header and pixels: name, content */ chunks?: readonly (readonly [string, Uint8Array])[];
  /** samples of a pixel */ at(x: number, y: number): readonly number[];
}

/** First column and row, and distances, of the passes of an interlaced picture. */
const PASSES = [
  [0, 0, 8, 8],
  [4, 0, 8, 8],
  [0, 4, 4, 8],
  [2, 0, 4, 4],
  [0, 2, 2, 4],
  [1, 0, 2, 2],
  [0, 1, 1, 2],
];

/** The bytes of a file. */
export function png(
  { width, height, colour, depth, interlaced = false, chunks = [], at }: PngKind,
): Uint8Array {
  const raw: number[] = [];
  for (const [left, top, across, down] of interlaced ? PASSES : [[0, 0, 1, 1]]) {
    if (left >= width) continue;
    for (let y = top; y < height; y += down) {
      let bits = "";
      for (let x = left; x < width; x += across) {
        for (const sample of at(x, y)) bits += sample.toString(2).padStart(depth, "0");
      }
      raw.push(0); // no filter
      for (let i = 0; i < bits.length; i += 8) raw.push(parseInt(bits.slice(i, i + 8).padEnd(8, "0"), 2));
    }
  }
  const header = new Uint8Array(13);
  const view = new DataView(header.buffer);
  view.setUint32(0, width);
  view.setUint32(4, height);
  header.set([depth, colour, 0, 0, interlaced ? 1 : 0], 8);
  return pngOf([["IHDR", header], ...chunks, ["IDAT", new Uint8Array(deflateSync(Uint8Array.from(raw)))]]);
}

/** A file of any chunks before its end. */
export function pngOf(chunks: readonly (readonly [string, Uint8Array])[]): Uint8Array {
  const parts = [new Uint8Array([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a])];
  for (const [kind, content] of [...chunks, ["IEND", new Uint8Array()] as const]) {
    const part = new Uint8Array(12 + content.length);
    const view = new DataView(part.buffer);
    view.setUint32(0, content.length);
    part.set(new TextEncoder().encode(kind), 4);
    part.set(content, 8);
    view.setUint32(8 + content.length, crc32(part.subarray(4, 8 + content.length)));
    parts.push(part);
  }
  return concat(parts);
}

function crc32(bytes: Uint8Array): number {
  let crc = ~0;
  for (const byte of bytes) {
    crc ^= byte;
    for (let k = 0; k < 8; k++) crc = crc & 1 ? 0xedb88320 ^ crc >>> 1 : crc >>> 1;
  }
  return ~crc >>> 0;
}
