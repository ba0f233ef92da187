/**
 * Rank-merge byte-pair encoding: of all adjacent pairs, the one with the lowest rank merges first, the leftmost
 * among equals, until no pair has a merge.
 *
 * The text is one word as far as the model is concerned. It is still cut where no merge can ever reach across
 * (the last character of no merge's left part and the first of its right part meet there), which changes no id and keeps most
 * pieces short. What remains long, such as a megabyte of one letter, goes through a heap: n log n.
 */
import { TokenizerError } from "../errors.ts";
import { IdSet } from "./id_set.ts";
import { type Merges, mergesOf } from "./merges.ts";
import { PairSet } from "./pairs.ts";
import type { TokenIndex } from "./token_index.ts";
import { byteOfToken, controlIdsOf, type Vocabulary } from "./vocabulary.ts";

/** Up to this many symbols, looking at every pair again after each merge is faster than a heap. */
const SHORT_PIECE = 24;

const NO_RANK = 0x7fffffff;

/** Encodes normalized text into ids; never emits a control id other than the unknown token. */
export class Bpe {
  /** Pair lookups so far: the unit of work, for tests of how it grows. */
  pairLookups = 0;

  readonly #merges: Merges;
  readonly #junctions: PairSet; // ids of the characters that meet within a merge
  readonly #spelledMerge: boolean;
  readonly #basic: Int32Array; // [65536] id of each one-unit character, or -1
  readonly #astral = new Map<number, number>(); // code point ≥ 0x10000 → id
  readonly #bytes: Int32Array | undefined; // [256] ids of <0x00>…<0xFF>, -1 where absent
  readonly #spelled: IdSet; // tokens that stand in for a character: bytes, unknown
  readonly #unknown: number;
  readonly #fuseUnknown: boolean;
  readonly #utf8 = new TextEncoder();

  // Scratch for one piece of n symbols; grows, and shrinks again after a huge piece.
  #symbols = new Int32Array(256); // [n] ids, compacted in place by merging
  #next = new Int32Array(0); // [n] index of the following symbol, n at the end
  #previous = new Int32Array(0); // [n] index of the preceding symbol, -1 at the start
  #slots = new Int32Array(256); // [n] merge slot of (symbol, following symbol), -1 for none
  #heap = new Float64Array(0); // rank × 2³² + index, a binary min-heap
  #heapSize = 0;

  /** Throws TokenizerError for a merge that is malformed or names unknown tokens. */
  constructor(vocabulary: Vocabulary, index: TokenIndex) {
    const { texts } = index;
    const control = controlIdsOf(vocabulary);
    this.#unknown = vocabulary.unknown ?? -1;
    this.#fuseUnknown = vocabulary.fuseUnknown;
    this.#basic = new Int32Array(0x10000).fill(-1);
    this.#spelled = new IdSet(texts.length);
    if (this.#unknown >= 0) this.#spelled.add(this.#unknown);
    const bytes = new Int32Array(256).fill(-1);
    for (let id = 0; id < texts.length; id++) {
      const length = texts.starts[id + 1] - texts.starts[id];
      const mayBeByte = length === 6 && texts.units[texts.starts[id]] === 0x3c; // "<"
      if (length > 2 && !mayBeByte || control.has(id) || !index.isFirst(id)) continue;
      const text = texts.at(id)!;
      if (text.length === 1) this.#basic[text.charCodeAt(0)] = id;
      else if (text.length === 2 && text.codePointAt(0)! > 0xffff) this.#astral.set(text.codePointAt(0)!, id);
      else if (vocabulary.byteFallback && text.length === 6 && text.startsWith("<0x")) {
        const byte = byteOfToken(text);
        if (byte === undefined || text !== byteTokenText(byte)) continue;
        bytes[byte] = id;
        this.#spelled.add(id);
      }
    }
    this.#bytes = vocabulary.byteFallback ? bytes : undefined;

    this.#junctions = new PairSet(1 << 10);
    let spelledMerge = false;
    this.#merges = mergesOf(vocabulary, index, (left, right) => {
      if (this.#spelled.has(left) || this.#spelled.has(right)) spelledMerge = true;
      const last = this.#characterId(texts.lastCodePoint(left));
      const first = this.#characterId(texts.firstCodePoint(right));
      if (last >= 0 && first >= 0) this.#junctions.add(last, first);
    });
    this.#spelledMerge = spelledMerge;
  }

  /** Appends the ids of `text` (normalized, well-formed UTF-16) to `out`. */
  encode(text: string, out: number[]): void {
    let length = 0; // symbols in the current piece
    let last = -1;
    const add = (symbol: number) => {
      if (length > 0 && !this.#canJoin(last, symbol)) {
        this.#flush(length, out);
        length = 0;
      }
      if (length === this.#symbols.length) this.#symbols = grown(this.#symbols);
      this.#symbols[length++] = last = symbol;
    };
    for (let at = 0; at < text.length; at++) {
      const unit = text.charCodeAt(at);
      let symbol = this.#basic[unit];
      if (symbol < 0) {
        const codePoint = text.codePointAt(at)!;
        if (codePoint > 0xffff) at++;
        symbol = this.#characterId(codePoint);
        if (symbol < 0) {
          if (this.#addBytes(codePoint, add)) continue;
          symbol = this.#unknownFor(codePoint);
          if (this.#fuseUnknown && length > 0 && last === symbol) continue;
        }
      }
      add(symbol);
    }
    this.#flush(length, out);
    if (this.#symbols.length > 1 << 16) this.#shrink();
  }

  #characterId(codePoint: number): number {
    if (codePoint < 0) return -1;
    return codePoint < 0x10000 ? this.#basic[codePoint] : this.#astral.get(codePoint) ?? -1;
  }

  /** Spells a character by its bytes; false when a byte has no token. */
  #addBytes(codePoint: number, add: (symbol: number) => void): boolean {
    if (this.#bytes === undefined) return false;
    const bytes = this.#utf8.encode(String.fromCodePoint(codePoint));
    if (bytes.some((byte) => this.#bytes![byte] < 0)) return false;
    for (const byte of bytes) add(this.#bytes[byte]);
    return true;
  }

  #unknownFor(codePoint: number): number {
    if (this.#unknown >= 0) return this.#unknown;
    throw new TokenizerError(
      "no_token",
      `U+${
        codePoint.toString(16).toUpperCase().padStart(4, "0")
      } has no token, and the vocabulary has neither ` +
        `byte tokens nor an unknown token. Remove the character from the text.`,
    );
  }

  /** Whether any merge can ever span the border between two adjacent symbols. */
  #canJoin(left: number, right: number): boolean {
    this.pairLookups++;
    if (this.#junctions.has(left, right)) return true;
    return this.#spelledMerge && (this.#spelled.has(left) || this.#spelled.has(right));
  }

  #findMerge(left: number, right: number): number {
    this.pairLookups++;
    return this.#merges.find(left, right);
  }

  /** Merges the first `length` symbols of the scratch and appends the result. */
  #flush(length: number, out: number[]): void {
    if (length > SHORT_PIECE) return this.#mergeLong(length, out);
    if (length > 1) length = this.#mergeShort(length);
    for (let i = 0; i < length; i++) out.push(this.#symbols[i]);
  }

  /** Merges in place by scanning for the best pair; returns the number of symbols left. */
  #mergeShort(length: number): number {
    const symbols = this.#symbols, slots = this.#slots, merges = this.#merges;
    for (let i = 0; i + 1 < length; i++) slots[i] = this.#findMerge(symbols[i], symbols[i + 1]);
    for (;;) {
      let best = -1, bestRank = NO_RANK;
      for (let i = 0; i + 1 < length; i++) {
        if (slots[i] < 0) continue;
        const rank = merges.rank(slots[i]);
        if (rank < bestRank) bestRank = rank, best = i;
      }
      if (best < 0) return length;
      symbols[best] = merges.result(slots[best]);
      symbols.copyWithin(best + 1, best + 2, length);
      slots.copyWithin(best + 1, best + 2, length);
      length--;
      if (best > 0) slots[best - 1] = this.#findMerge(symbols[best - 1], symbols[best]);
      if (best + 1 < length) slots[best] = this.#findMerge(symbols[best], symbols[best + 1]);
    }
  }

  /** Merges through a linked list and a heap, and appends the result. Entries that a merge made stale are skipped. */
  #mergeLong(length: number, out: number[]): void {
    this.#prepareLong(length);
    const symbols = this.#symbols, slots = this.#slots, merges = this.#merges;
    const next = this.#next, previous = this.#previous;
    for (let i = 0; i < length; i++) {
      next[i] = i + 1;
      previous[i] = i - 1;
      slots[i] = -1;
    }
    for (let i = 0; i + 1 < length; i++) this.#offer(i, i + 1);
    while (this.#heapSize > 0) {
      const key = this.#pop();
      const rank = Math.floor(key / 2 ** 32);
      const at = key - rank * 2 ** 32;
      if (slots[at] < 0 || merges.rank(slots[at]) !== rank) continue; // stale
      const gone = next[at], after = next[gone], before = previous[at];
      symbols[at] = merges.result(slots[at]);
      next[at] = after;
      slots[gone] = slots[at] = -1;
      if (after < length) {
        previous[after] = at;
        this.#offer(at, after);
      }
      if (before >= 0) this.#offer(before, at);
    }
    for (let i = 0; i < length; i = next[i]) out.push(symbols[i]);
  }

  #prepareLong(length: number): void {
    this.#heapSize = 0;
    if (this.#next.length >= length && this.#slots.length >= length) return;
    const capacity = this.#symbols.length;
    this.#next = new Int32Array(capacity);
    this.#previous = new Int32Array(capacity);
    this.#slots = new Int32Array(capacity);
    // One entry per pair at first, then one merge (a pop) adds at most two, and there are fewer merges than symbols.
    this.#heap = new Float64Array(2 * capacity);
  }

  /** Looks up the pair that starts at `left` and puts it on the heap if it merges. */
  #offer(left: number, right: number): void {
    const slot = this.#findMerge(this.#symbols[left], this.#symbols[right]);
    this.#slots[left] = slot;
    if (slot < 0) return;
    const key = this.#merges.rank(slot) * 2 ** 32 + left;
    const heap = this.#heap;
    let at = this.#heapSize++;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (heap[parent] <= key) break;
      heap[at] = heap[parent];
      at = parent;
    }
    heap[at] = key;
  }

  #pop(): number {
    const heap = this.#heap, top = heap[0], size = --this.#heapSize, key = heap[size];
    let at = 0;
    for (let child = 1; child < size; child = 2 * at + 1) {
      if (child + 1 < size && heap[child + 1] < heap[child]) child++;
      if (heap[child] >= key) break;
      heap[at] = heap[child];
      at = child;
    }
    heap[at] = key;
    return top;
  }

  #shrink(): void {
    this.#symbols = new Int32Array(256);
    this.#slots = new Int32Array(256);
    this.#next = new Int32Array(0);
    this.#previous = new Int32Array(0);
    this.#heap = new Float64Array(0);
  }
}

function byteTokenText(byte: number): string {
  return `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;
}

function grown(array: Int32Array<ArrayBuffer>): Int32Array<ArrayBuffer> {
  const larger = new Int32Array(2 * array.length);
  larger.set(array);
  return larger;
}
