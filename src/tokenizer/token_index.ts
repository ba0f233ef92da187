/**
 * Token text → id. Unlike a `Map`, it finds the token that two others spell together without joining their texts:
 * the hash of a joined text follows from the hashes of its parts. Half a million merges are resolved that way.
 */

import { type TextList, Texts } from "./texts.ts";

const BASE = 0x01000193; // odd, so that its powers never vanish modulo 2³²

/** An index over the texts of a vocabulary. Where two ids have one text, the first counts. */
export class TokenIndex {
  /** Text by id. */
  readonly texts: Texts;
  /** Whether two ids have one text. */
  readonly hasDuplicates: boolean;
  readonly #hashes: Int32Array; // [tokens] sum of unit × BASE^(units after it), modulo 2³²
  readonly #powers: Int32Array; // [longest token + 1] BASE^i
  readonly #table: Int32Array; // open addressing; id, or -1 where free
  readonly #mask: number;

  /** `tokens`: text by id; must not change afterwards. */
  constructor(tokens: TextList) {
    let capacity = 16, longest = 0;
    while (capacity < 2 * tokens.length) capacity *= 2;
    const { units, starts, length } = this.texts = Texts.of(tokens);
    this.#mask = capacity - 1;
    this.#table = new Int32Array(capacity).fill(-1);
    this.#hashes = new Int32Array(length);
    let different = 0;
    for (let id = 0; id < length; id++) {
      let hash = 0;
      for (let i = starts[id]; i < starts[id + 1]; i++) hash = (Math.imul(hash, BASE) + units[i]) | 0;
      this.#hashes[id] = hash;
      if (starts[id + 1] - starts[id] > longest) longest = starts[id + 1] - starts[id];
      const at = this.#slot(starts[id], starts[id + 1] - starts[id], hash);
      if (this.#table[at] >= 0) continue;
      this.#table[at] = id;
      different++;
    }
    this.hasDuplicates = different < length;
    this.#powers = new Int32Array(longest + 1).fill(1);
    for (let i = 1; i <= longest; i++) this.#powers[i] = Math.imul(this.#powers[i - 1], BASE);
  }

  /** The id of a text, or -1. */
  find(text: string): number {
    const { units, starts } = this.texts, hash = hashOf(text);
    next: for (let at = spread(hash) & this.#mask;; at = (at + 1) & this.#mask) {
      const id = this.#table[at];
      if (id < 0) return -1;
      const start = starts[id];
      if (this.#hashes[id] !== hash || starts[id + 1] - start !== text.length) continue;
      for (let i = 0; i < text.length; i++) if (units[start + i] !== text.charCodeAt(i)) continue next;
      return id;
    }
  }

  /** Whether no token before this one has its text. */
  isFirst(id: number): boolean {
    const { starts } = this.texts;
    return this.#table[this.#slot(starts[id], starts[id + 1] - starts[id], this.#hashes[id])] === id;
  }

  /** Calls `each` for every way to cut a token's text into two tokens, in the order of the cuts. */
  cuts(id: number, each: (left: number, right: number) => void): void {
    const { units, starts } = this.texts;
    const start = starts[id], end = starts[id + 1];
    let prefix = 0;
    for (let at = start + 1; at < end; at++) {
      prefix = (Math.imul(prefix, BASE) + units[at - 1]) | 0;
      if (!isBorder(units[at])) continue;
      const left = this.#table[this.#slot(start, at - start, prefix)];
      if (left < 0) continue;
      const suffix = (this.#hashes[id] - Math.imul(prefix, this.#powers[end - at])) | 0;
      const right = this.#table[this.#slot(at, end - at, suffix)];
      if (right >= 0) each(left, right);
    }
  }

  /** The id of the text that two tokens spell together, or -1. */
  findJoined(left: number, right: number): number {
    const { starts } = this.texts;
    const leftLength = starts[left + 1] - starts[left], rightLength = starts[right + 1] - starts[right];
    const hash = (Math.imul(this.#hashes[left], this.#powers[rightLength]) + this.#hashes[right]) | 0;
    for (let at = spread(hash) & this.#mask;; at = (at + 1) & this.#mask) {
      const id = this.#table[at];
      if (id < 0) return -1;
      if (this.#hashes[id] !== hash || starts[id + 1] - starts[id] !== leftLength + rightLength) continue;
      const start = starts[id];
      if (this.#same(start, starts[left], leftLength)) {
        if (this.#same(start + leftLength, starts[right], rightLength)) return id;
      }
    }
  }

  /** The slot of the token that is spelled by the `length` units from `start` on, or the free one where it would be. */
  #slot(start: number, length: number, hash: number): number {
    const { starts } = this.texts;
    for (let at = spread(hash) & this.#mask;; at = (at + 1) & this.#mask) {
      const id = this.#table[at];
      if (id < 0) return at;
      if (this.#hashes[id] !== hash || starts[id + 1] - starts[id] !== length) continue;
      if (this.#same(starts[id], start, length)) return at;
    }
  }

  #same(a: number, b: number, length: number): boolean {
    const { units } = this.texts;
    for (let i = 0; i < length; i++) if (units[a + i] !== units[b + i]) return false;
    return true;
  }
}

/** Whether a text can be cut before this unit: not inside a surrogate pair. */
function isBorder(unit: number): boolean {
  return unit < 0xdc00 || unit > 0xdfff;
}

function hashOf(text: string): number {
  let hash = 0;
  for (let i = 0; i < text.length; i++) hash = (Math.imul(hash, BASE) + text.charCodeAt(i)) | 0;
  return hash;
}

/** Mixes the high bits of a hash into the low ones that the table uses. */
function spread(hash: number): number {
  hash = Math.imul(hash ^ (hash >>> 16), 0x45d9f3b);
  return hash ^ (hash >>> 15);
}
