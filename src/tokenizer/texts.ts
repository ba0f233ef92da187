/**
 * Many short texts in two typed arrays: 262,144 tokens take 5 MB there, several times that as strings, and nothing in them is an
 * object that a collector has to visit. UTF-16 units are kept as they are, lone surrogates too.
 */

/** A list of texts: an array of strings, or {@link Texts}. */
export interface TextList extends Iterable<string> {
  /** How many. */
  readonly length: number;
  /** The text at an index from 0, undefined beyond the last. */
  at(index: number): string | undefined;
}

/** Texts one after the other. */
export class Texts implements TextList {
  /** How many. */
  readonly length: number;
  /** UTF-16 units of all texts; read only. */
  readonly units: Uint16Array;
  /** [length + 1] where each text begins in `units`, and the end of the last; read only. */
  readonly starts: Uint32Array;

  /** `starts` has an entry more than there are texts; both arrays become the list's own. */
  constructor(units: Uint16Array, starts: Uint32Array) {
    this.length = starts.length - 1;
    this.units = units;
    this.starts = starts;
  }

  /** The same texts; the list itself where it is one already. */
  static of(list: TextList): Texts {
    if (list instanceof Texts) return list;
    let size = 0;
    for (const text of list) size += text.length;
    const builder = new TextsBuilder(list.length, size);
    for (const text of list) builder.add(text, 0, text.length);
    return builder.finish();
  }

  /** The text at an index; undefined outside the list. */
  at(index: number): string | undefined {
    if (!(index >= 0 && index < this.length)) return undefined;
    let text = "";
    for (let i = this.starts[index]; i < this.starts[index + 1]; i++) {
      text += String.fromCharCode(this.units[i]);
    }
    return text;
  }

  /** All texts in order. */
  *[Symbol.iterator](): Generator<string> {
    for (let i = 0; i < this.length; i++) yield this.at(i)!;
  }

  /** The first code point of a text; -1 of an empty one. */
  firstCodePoint(index: number): number {
    return this.#codePoint(this.starts[index], this.starts[index + 1]);
  }

  /** The last code point of a text; -1 of an empty one. */
  lastCodePoint(index: number): number {
    const start = this.starts[index], end = this.starts[index + 1];
    const pair = end - start > 1 ? this.#codePoint(end - 2, end) : 0;
    return pair > 0xffff ? pair : this.#codePoint(Math.max(start, end - 1), end);
  }

  #codePoint(at: number, end: number): number {
    if (at >= end) return -1;
    const high = this.units[at], low = at + 1 < end ? this.units[at + 1] : 0;
    const pair = high >= 0xd800 && high < 0xdc00 && low >= 0xdc00 && low < 0xe000;
    return pair ? (high - 0xd800) * 0x400 + low - 0xdc00 + 0x10000 : high;
  }
}

/** Makes {@link Texts}. */
export class TextsBuilder {
  readonly #units: Uint16Array<ArrayBuffer>;
  readonly #starts: Uint32Array;
  #count = 0;
  #used = 0;

  /** For `count` texts of at most `units` UTF-16 units together. */
  constructor(count: number, units: number) {
    this.#units = new Uint16Array(units);
    this.#starts = new Uint32Array(count + 1);
  }

  /** The next text: [start, end) of `text`. */
  add(text: string, start: number, end: number): void {
    for (let i = start; i < end; i++) this.#units[this.#used++] = text.charCodeAt(i);
    this.#starts[++this.#count] = this.#used;
  }

  /** As `add` with the text that bytes [start, end) are; false, and nothing to be used, where they are not valid UTF-8. */
  addUtf8(bytes: Uint8Array, start: number, end: number): boolean {
    const units = this.#units;
    let used = this.#used;
    for (let i = start; i < end;) {
      const lead = bytes[i++];
      if (lead < 0x80) {
        units[used++] = lead;
        continue;
      }
      const more = lead < 0xc2 ? 0 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : lead < 0xf5 ? 3 : 0;
      if (more === 0 || i + more > end) return false;
      let point = lead & (0x3f >> more);
      for (let k = 0; k < more; k++) {
        const byte = bytes[i++];
        if ((byte & 0xc0) !== 0x80) return false;
        point = point << 6 | byte & 0x3f;
      }
      if (more === 2 && (point < 0x800 || point >= 0xd800 && point < 0xe000)) return false;
      if (more < 3) units[used++] = point;
      else {
        if (point < 0x10000 || point > 0x10ffff) return false;
        units[used++] = 0xd800 + (point - 0x10000 >> 10);
        units[used++] = 0xdc00 + (point & 0x3ff);
      }
    }
    this.#starts[++this.#count] = this.#used = used;
    return true;
  }

  /** The list; all texts must have been added. */
  finish(): Texts {
    const units = new Uint16Array(this.#units.buffer.transfer(2 * this.#used)); // gives back what is not used
    return new Texts(units, this.#starts);
  }
}
