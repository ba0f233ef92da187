/** The size that the pictures of an AVIF file are coded in, whatever its boxes say of it: decoders go by this one. */
import { type Bytes, Truncated } from "./bytes.ts";

const MOST_ITEMS = 4096;
const MOST_UNITS = 8;
const SEQUENCE_HEADER = 1;

/** The most pixels that an item of a file is coded with; 0 where none says. `iloc` and `idat`: contents of these boxes. */
export function codedPixels(file: Bytes, iloc: Bytes, idat: Bytes | undefined): number {
  let most = 0;
  for (const { from, to, inside } of extents(iloc)) {
    const data = inside ? idat : file;
    if (data === undefined || from >= data.length) continue;
    try {
      most = Math.max(most, sequencePixels(data.part(from, Math.min(to, data.length))));
    } catch (error) {
      if (!(error instanceof Truncated)) throw error; // another kind of item, or one that the decoder will refuse
    }
  }
  return most;
}

/** Where the first part of each item lies: in the file, or `inside` the box of small items. */
function* extents(iloc: Bytes): Generator<{ from: number; to: number; inside: boolean }> {
  const version = iloc.u8(0);
  const sizes = iloc.u16(4);
  const [offsetSize, lengthSize, baseSize, indexSize] = [12, 8, 4, 0].map((shift) => sizes >> shift & 15);
  let at = 6;
  const number = (size: number): number => {
    const value = size === 8 ? iloc.u64(at) : size === 4 ? iloc.u32(at) : size === 2 ? iloc.u16(at) : 0;
    at += size;
    return value;
  };
  const wide = version === 2 ? 4 : 2;
  const items = Math.min(number(wide), MOST_ITEMS);
  for (let item = 0; item < items; item++) {
    number(wide); // its name
    const inside = version > 0 && (number(2) & 15) === 1;
    number(2); // of files elsewhere
    const base = number(baseSize);
    const count = number(2);
    const next = at + count * ((version > 0 ? indexSize : 0) + offsetSize + lengthSize);
    if (count > 0) {
      if (version > 0) number(indexSize);
      const from = base + number(offsetSize), length = number(lengthSize);
      yield { from, to: length === 0 ? Infinity : from + length, inside };
    }
    at = next;
  }
}

/** Pixels of the frames that the first sequence header of a stream allows; 0 where it has none. */
function sequencePixels(data: Bytes): number {
  for (let at = 0, unit = 0; unit < MOST_UNITS && at < data.length; unit++) {
    const header = data.u8(at++);
    if ((header & 0x81) !== 0) return 0; // no unit begins so
    if ((header & 4) !== 0) at++; // layers
    let size = data.length - at;
    if ((header & 2) !== 0) {
      size = 0;
      for (let shift = 0; shift < 35; shift += 7) {
        const byte = data.u8(at++);
        size += (byte & 127) * 2 ** shift;
        if ((byte & 128) === 0) break;
      }
    }
    if ((header >> 3 & 15) === SEQUENCE_HEADER) return pixelsOf(new Bits(data.part(at, data.length)));
    at += size;
  }
  return 0;
}

/** Reads a sequence header as far as the size of frames. */
function pixelsOf(bits: Bits): number {
  bits.read(3); // profile
  bits.read(1); // still
  if (bits.read(1) === 1) bits.read(5); // short form: the level alone
  else {
    let modelBits = 0;
    if (bits.read(1) === 1) { // timing
      bits.read(32);
      bits.read(32);
      if (bits.read(1) === 1) bits.variable();
      if (bits.read(1) === 1) { // a model of decoders
        modelBits = bits.read(5) + 1;
        bits.read(32);
        bits.read(10);
      }
    }
    const delays = bits.read(1);
    for (let points = bits.read(5) + 1; points > 0; points--) {
      bits.read(12);
      if (bits.read(5) > 7) bits.read(1); // level and tier
      if (modelBits > 0 && bits.read(1) === 1) {
        bits.read(modelBits);
        bits.read(modelBits);
        bits.read(1);
      }
      if (delays === 1 && bits.read(1) === 1) bits.read(4);
    }
  }
  const [across, down] = [bits.read(4) + 1, bits.read(4) + 1];
  return (bits.read(across) + 1) * (bits.read(down) + 1);
}

/** Numbers of any width from bytes, the highest bit first. */
class Bits {
  readonly #data: Bytes;
  #at = 0;

  constructor(data: Bytes) {
    this.#data = data;
  }

  read(width: number): number {
    let value = 0;
    for (let i = 0; i < width; i++, this.#at++) {
      value = value * 2 + (this.#data.u8(this.#at >> 3) >> 7 - (this.#at & 7) & 1);
    }
    return value;
  }

  /** A number whose width stands before it as zeros. */
  variable(): void {
    let zeros = 0;
    while (this.read(1) === 0) if (++zeros > 32) return;
    this.read(zeros);
  }
}
