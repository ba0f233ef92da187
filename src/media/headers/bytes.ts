/** Reading numbers from untrusted bytes: every read is inside or throws `Truncated`. */

/** A read past the end; readers of headers turn it into an error that names the file. */
export class Truncated extends Error {}

/** A view of bytes with checked reads. */
export class Bytes {
  /** The bytes. */
  readonly bytes: Uint8Array;
  readonly #view: DataView;

  /** Reads `bytes` in place. */
  constructor(bytes: Uint8Array) {
    this.bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  /** Number of bytes. */
  get length(): number {
    return this.bytes.length;
  }

  /** Unsigned, one byte. */
  u8(at: number): number {
    return this.#view.getUint8(this.#checked(at, 1));
  }

  /** Unsigned, two bytes; big-endian unless `little`. */
  u16(at: number, little = false): number {
    return this.#view.getUint16(this.#checked(at, 2), little);
  }

  /** Unsigned, three bytes, little-endian. */
  u24(at: number): number {
    return this.u16(at, true) | this.u8(at + 2) << 16;
  }

  /** Unsigned, four bytes; big-endian unless `little`. */
  u32(at: number, little = false): number {
    return this.#view.getUint32(this.#checked(at, 4), little);
  }

  /** Unsigned, eight bytes; big-endian unless `little`. */
  u64(at: number, little = false): number {
    return Number(this.#view.getBigUint64(this.#checked(at, 8), little));
  }

  /** Text of one byte a character. */
  ascii(at: number, length: number): string {
    this.#checked(at, length);
    return String.fromCharCode(...this.bytes.subarray(at, at + length));
  }

  /** A part of the bytes, in place. */
  part(from: number, to: number): Bytes {
    this.#checked(from, Math.max(0, to - from));
    return new Bytes(this.bytes.subarray(from, to));
  }

  #checked(at: number, length: number): number {
    if (at < 0 || at + length > this.bytes.length) {
      throw new Truncated(`at byte ${at} of ${this.bytes.length}`);
    }
    return at;
  }
}
