/** Random access to the bytes of one file, read as they are asked for: what the reader of a large header needs. */
import type { CheckpointError } from "../errors.ts";
import { type OpenFile, readIntoSync } from "./files.ts";

/** Bytes that can be read anywhere. */
export interface ByteSource {
  /** In bytes. */
  readonly size: number;
  /** Bytes [offset, offset + length), which lie inside; valid until the next call. */
  read(offset: number, length: number): Uint8Array;
}

/** An open file as a source. */
export function fileSource(file: OpenFile): ByteSource {
  let room: Uint8Array<ArrayBuffer> | undefined; // one for all reads: megabytes that are fresh each time stay with the process
  return {
    size: file.size,
    read(offset, length) {
      if (room === undefined || room.length < length) room = new Uint8Array(length);
      const bytes = room.subarray(0, length);
      readIntoSync(file, offset, bytes);
      return bytes;
    },
  };
}

/** Bytes that a cursor holds at a time. */
const WINDOW_BYTES = 1 << 18;

/** Little-endian numbers and texts one after the other; it never holds more than one window and one text. */
export class Cursor {
  /** Bytes from the start of the file. */
  position: number;
  readonly #source: ByteSource;
  readonly #limit: number;
  readonly #fail: (problem: string) => CheckpointError;
  #window: Uint8Array = new Uint8Array();
  #view: DataView = new DataView(new ArrayBuffer(0));
  #start = 0; // position of the window's first byte

  /** Reads from `position` up to `limit`, both in bytes. `fail` makes the error of a broken file. */
  constructor(
    source: ByteSource,
    position: number,
    limit: number,
    fail: (problem: string) => CheckpointError,
  ) {
    this.#source = source;
    this.position = position;
    this.#limit = Math.min(limit, source.size);
    this.#fail = fail;
  }

  /** Bytes up to the limit. */
  get left(): number {
    return this.#limit - this.position;
  }

  /** 32 bits. */
  u32(): number {
    const at = this.#take(4);
    return this.#view.getUint32(at, true);
  }

  /** 64 bits as a number; NaN beyond 2⁵³ - 1. */
  u64(): number {
    const at = this.#take(8);
    const low = this.#view.getUint32(at, true), high = this.#view.getUint32(at + 4, true);
    return high < 2 ** 21 ? high * 2 ** 32 + low : NaN;
  }

  /** A view of the next `length` bytes (at most 8) and where they begin in it. */
  view(length: number): [view: DataView, at: number] {
    const at = this.#take(length);
    return [this.#view, at];
  }

  /** `length` bytes; a copy. */
  bytes(length: number): Uint8Array<ArrayBuffer> {
    this.#check(length);
    const bytes = new Uint8Array(length);
    if (this.position >= this.#start && this.position + length <= this.#start + this.#window.length) {
      bytes.set(this.#window.subarray(this.position - this.#start, this.position - this.#start + length));
    } else {
      bytes.set(this.#source.read(this.position, length));
      this.#window = new Uint8Array(); // its bytes may have been overwritten
    }
    this.position += length;
    return bytes;
  }

  /** Copies the next `length` bytes (a window at most) to `target` from `at` on. */
  copyTo(target: Uint8Array, at: number, length: number): void {
    const from = this.#take(length);
    if (length <= 32) { for (let i = 0; i < length; i++) target[at + i] = this.#window[from + i]; }
    else target.set(this.#window.subarray(from, from + length), at);
  }

  /** Goes on `length` bytes. */
  skip(length: number): void {
    this.#check(length);
    this.position += length;
  }

  #check(length: number): void {
    if (length > this.left) {
      throw this.#fail(
        `is truncated: ${length} bytes are declared at byte ${this.position}, ${this.left} are left`,
      );
    }
  }

  /** Index in the window of the next `length` bytes, which it then holds. */
  #take(length: number): number {
    this.#check(length);
    if (this.position < this.#start || this.position + length > this.#start + this.#window.length) {
      const bytes = this.#source.read(this.position, Math.min(WINDOW_BYTES, this.left));
      this.#window = bytes;
      this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
      this.#start = this.position;
    }
    const at = this.position - this.#start;
    this.position += length;
    return at;
  }
}
