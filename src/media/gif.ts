/**
 * GIF, still and animated. The packages for it never end on some damaged files, so blocks and codes are read here; every loop is
 * bounded by the file or by the frame.
 */
import { type AnimationFrame, type Area, checkAnimation, clear, LEAST_DELAY } from "./animation.ts";
import { Bytes, Truncated } from "./headers/bytes.ts";
import { damagedImage } from "./headers/image.ts";

interface GifFrame extends Area {
  /** seconds */ delay: number;
  /** 2: clear its place afterwards; 3: put back what was there */ disposal: number;
  interlaced: boolean;
  /** colour index that is not drawn, or -1 */ transparent: number;
  /** RGB, three bytes a colour */ colours: Uint8Array;
  /** bits of the smallest code */ codeBits: number;
  /** the code stream, without block lengths */ codes: Uint8Array;
}

/** A parsed GIF. */
export interface Gif {
  /** In pixels. */
  width: number;
  /** In pixels. */
  height: number;
  /** Frames in order, not yet decoded. */
  frames: readonly GifFrame[];
}

/** Reads all blocks. Throws `MediaError` (`media_damaged`) if the file is malformed or ends early. */
export function parseGif(bytes: Uint8Array): Gif {
  try {
    return parse(new Bytes(bytes));
  } catch (cause) {
    if (!(cause instanceof Truncated)) throw cause;
    throw damagedImage("gif", "it ends early", cause);
  }
}

/** The first `most` frames as they are seen. */
export function* gifFrames({ width, height, frames }: Gif, most: number): Generator<AnimationFrame> {
  checkAnimation(width, height, Math.min(most, frames.length));
  let data = new Uint8Array(width * height * 4);
  let time = 0;
  for (const frame of frames.slice(0, most)) {
    const before = frame.disposal === 3 ? data.slice() : undefined;
    draw(data, width, frame);
    yield { canvas: { data, width, height }, time };
    time += frame.delay;
    if (before !== undefined) data = before;
    else if (frame.disposal === 2) clear(data, width, frame);
  }
}

function parse(data: Bytes): Gif {
  const width = data.u16(6, true), height = data.u16(8, true);
  const flags = data.u8(10);
  let at = 13;
  const colourTable = (packed: number): Uint8Array => {
    if ((packed & 0x80) === 0) return new Uint8Array();
    const { bytes } = data.part(at, at += 3 << (packed & 7) + 1);
    return bytes;
  };
  const shared = colourTable(flags);
  const frames: GifFrame[] = [];
  const graphics = { delay: LEAST_DELAY, disposal: 0, transparent: -1 };
  let control = { ...graphics };
  for (;;) {
    if (at === data.length && frames.length > 0) break; // some writers leave out the last byte, which says no more
    const kind = data.u8(at++);
    if (kind === 0x3b) break;
    if (kind === 0x21) {
      const label = data.u8(at++);
      if (label === 0xf9 && data.u8(at) >= 4) {
        const packed = data.u8(at + 1), delay = data.u16(at + 2, true);
        control = {
          delay: delay > 1 ? delay / 100 : LEAST_DELAY,
          disposal: packed >> 2 & 7,
          transparent: packed & 1 ? data.u8(at + 4) : -1,
        };
      }
      at = skipBlocks(data, at);
    } else if (kind === 0x2c) {
      const area = {
        x: data.u16(at, true),
        y: data.u16(at + 2, true),
        width: data.u16(at + 4, true),
        height: data.u16(at + 6, true),
      };
      if (area.x + area.width > width || area.y + area.height > height) {
        throw damagedImage("gif", `frame ${frames.length} is larger than the picture`);
      }
      const packed = data.u8(at + 8);
      at += 9;
      const own = colourTable(packed);
      const codeBits = data.u8(at++);
      if (codeBits < 1 || codeBits > 8) throw damagedImage("gif", `its codes begin with ${codeBits} bits`);
      const end = skipBlocks(data, at);
      frames.push({
        ...area,
        ...control,
        interlaced: (packed & 0x40) !== 0,
        colours: own.length > 0 ? own : shared,
        codeBits,
        codes: joinBlocks(data, at, end),
      });
      at = end;
      control = { ...graphics };
    } else throw damagedImage("gif", `there is a block of kind ${kind}`);
  }
  return { width, height, frames };
}

/** The place behind a chain of blocks. */
function skipBlocks(data: Bytes, at: number): number {
  for (let length = data.u8(at); length > 0; length = data.u8(at)) at += 1 + length;
  return at + 1;
}

function joinBlocks(data: Bytes, at: number, end: number): Uint8Array {
  const joined = new Uint8Array(end - at);
  let size = 0;
  for (let length = data.u8(at); length > 0; length = data.u8(at)) {
    joined.set(data.part(at + 1, at + 1 + length).bytes, size);
    size += length;
    at += 1 + length;
  }
  return joined.subarray(0, size);
}

function draw(canvas: Uint8Array, stride: number, frame: GifFrame): void {
  const { x, y, width, height, colours, transparent } = frame;
  const indices = decodeCodes(frame);
  const rows = frame.interlaced ? interlacedRows(height) : undefined;
  for (let row = 0; row < height; row++) {
    let to = ((y + (rows?.[row] ?? row)) * stride + x) * 4;
    for (let i = row * width; i < (row + 1) * width; i++, to += 4) {
      const index = indices[i];
      if (index === transparent) continue;
      if (index * 3 >= colours.length) {
        throw damagedImage("gif", `it uses colour ${index}, which it does not have`);
      }
      canvas[to] = colours[index * 3];
      canvas[to + 1] = colours[index * 3 + 1];
      canvas[to + 2] = colours[index * 3 + 2];
      canvas[to + 3] = 255;
    }
  }
}

/** Where the stored rows of an interlaced frame belong. */
function interlacedRows(height: number): number[] {
  const rows: number[] = [];
  for (const [first, step] of [[0, 8], [4, 8], [2, 4], [1, 2]]) {
    for (let row = first; row < height; row += step) rows.push(row);
  }
  return rows;
}

/** LZW: colour indices of a frame, width × height. */
function decodeCodes({ width, height, codeBits, codes }: GifFrame): Uint8Array {
  const indices = new Uint8Array(width * height);
  const clearCode = 1 << codeBits, endCode = clearCode + 1;
  // Entry c is entry prefix[c] followed by suffix[c]; its length is length[c].
  const prefix = new Uint16Array(4096), suffix = new Uint8Array(4096), length = new Uint16Array(4096);
  for (let c = 0; c < clearCode; c++) [suffix[c], length[c]] = [c, 1];
  let bits = codeBits + 1, next = endCode + 1, last = -1;
  let at = 0, bit = 0;
  while (at < indices.length) {
    if (bit + bits > codes.length * 8) throw damagedImage("gif", "the codes of a frame end early");
    const byte = bit >> 3;
    const code = ((codes[byte] | codes[byte + 1] << 8 | codes[byte + 2] << 16) >> (bit & 7)) &
      (1 << bits) - 1;
    bit += bits;
    if (code === endCode) throw damagedImage("gif", "the codes of a frame end early");
    if (code === clearCode) {
      [bits, next, last] = [codeBits + 1, endCode + 1, -1];
      continue;
    }
    const known = code < clearCode || code > endCode && code < next;
    if (!known && (code !== next || last < 0 || next > 4095)) throw damagedImage("gif", "a code is unknown");
    const text = known ? code : last;
    const size = known ? length[code] : length[last] + 1;
    let first = text;
    for (let c = text, to = at + length[text] - 1; to >= at; to--, c = prefix[c]) {
      if (to < indices.length) indices[to] = suffix[c];
      first = c;
    }
    if (!known && at + size - 1 < indices.length) indices[at + size - 1] = suffix[first];
    at += size;
    if (last >= 0 && next < 4096) {
      [prefix[next], suffix[next], length[next]] = [last, suffix[first], length[last] + 1];
      next++;
      if (next === 1 << bits && bits < 12) bits++;
    }
    last = code;
  }
  return indices;
}
