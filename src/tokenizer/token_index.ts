/**
 * Token text → id. Unlike a `Map`, it finds the token that two others spell together without joining their texts:
 * the hash of a joined text follows from the hashes of its parts. Half a million merges are resolved that way.
 */

const BASE = 0x01000193; // odd, so that its powers never vanish modulo 2³²

/** An index over the texts of a vocabulary. Where two ids have one text, the first counts. */
export class TokenIndex {
  readonly #tokens: readonly string[];
  readonly #hashes: Int32Array; // [tokens] sum of unit × BASE^(units after it), modulo 2³²
  readonly #powers: Int32Array; // [longest token + 1] BASE^i
  readonly #table: Int32Array; // open addressing; id, or -1 where free
  readonly #mask: number;

  /** `tokens`: text by id; must not change afterwards. */
  constructor(tokens: readonly string[]) {
    let capacity = 16, longest = 0;
    while (capacity < 2 * tokens.length) capacity *= 2;
    this.#tokens = tokens;
    this.#mask = capacity - 1;
    this.#table = new Int32Array(capacity).fill(-1);
    this.#hashes = new Int32Array(tokens.length);
    for (let id = 0; id < tokens.length; id++) {
      const text = tokens[id];
      const hash = this.#hashes[id] = hashOf(text);
      if (text.length > longest) longest = text.length;
      let at = spread(hash) & this.#mask;
      while (this.#table[at] >= 0 && tokens[this.#table[at]] !== text) at = (at + 1) & this.#mask;
      if (this.#table[at] < 0) this.#table[at] = id;
    }
    this.#powers = new Int32Array(longest + 1).fill(1);
    for (let i = 1; i <= longest; i++) this.#powers[i] = Math.imul(this.#powers[i - 1], BASE);
  }

  /** The id of a text, or -1. */
  find(text: string): number {
    const hash = hashOf(text);
    for (let at = spread(hash) & this.#mask;; at = (at + 1) & this.#mask) {
      const id = this.#table[at];
      if (id < 0 || (this.#hashes[id] === hash && this.#tokens[id] === text)) return id;
    }
  }

  /** Every way to cut a token's text into two tokens, in the order of the cuts. */
  cuts(id: number): [left: number, right: number][] {
    const text = this.#tokens[id];
    const found: [number, number][] = [];
    let prefix = 0;
    for (let at = 1; at < text.length; at++) {
      prefix = (Math.imul(prefix, BASE) + text.charCodeAt(at - 1)) | 0;
      if (!isBorder(text.charCodeAt(at))) continue;
      const left = this.#findPart(text, 0, at, prefix);
      if (left < 0) continue;
      const suffix = (this.#hashes[id] - Math.imul(prefix, this.#powers[text.length - at])) | 0;
      const right = this.#findPart(text, at, text.length - at, suffix);
      if (right >= 0) found.push([left, right]);
    }
    return found;
  }

  /** The id of the text at [start, start + length) of `text`, whose hash is known, or -1. */
  #findPart(text: string, start: number, length: number, hash: number): number {
    for (let at = spread(hash) & this.#mask;; at = (at + 1) & this.#mask) {
      const id = this.#table[at];
      if (id < 0) return -1;
      if (this.#hashes[id] !== hash) continue;
      const token = this.#tokens[id];
      if (token.length === length && text.startsWith(token, start)) return id;
    }
  }

  /** The id of the text that two tokens spell together, or -1. */
  findJoined(left: number, right: number): number {
    const leftText = this.#tokens[left], rightText = this.#tokens[right];
    const hash = (Math.imul(this.#hashes[left], this.#powers[rightText.length]) + this.#hashes[right]) | 0;
    const length = leftText.length + rightText.length;
    for (let at = spread(hash) & this.#mask;; at = (at + 1) & this.#mask) {
      const id = this.#table[at];
      if (id < 0) return -1;
      if (this.#hashes[id] !== hash) continue;
      const text = this.#tokens[id];
      if (text.length === length && text.startsWith(leftText) && text.endsWith(rightText)) return id;
    }
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
