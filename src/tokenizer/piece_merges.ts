/**
 * The merges of pieces with scores without a table of them: two tokens merge where they spell a piece, which the index finds by
 * their hashes, and the piece's score ranks them. A table of Gemma 3's 500,000 pairs takes 16 MiB.
 */
import type { IdSet } from "./id_set.ts";
import type { TokenIndex } from "./token_index.ts";

/** Pairs that are kept: text has few of them over and over. */
const KEPT = 1 << 14;
const STRIDE = 4; // left, right, what `find` returned, nothing

/** As `PairTable` for the merges of one vocabulary, whose pieces are the first of their texts. A slot is the piece's id. */
export class PieceMerges {
  readonly #index: TokenIndex;
  readonly #pieces: IdSet;
  readonly #ranks: Int32Array | undefined;
  readonly #excluded: number;
  readonly #kept = new Int32Array(KEPT * STRIDE).fill(-1); // each pair at the one place that it hashes to

  /** `ranks`: by id; undefined where they are in the order of the ids. The token `excluded` is part of no merge; -1: there is none. */
  constructor(index: TokenIndex, pieces: IdSet, ranks: Int32Array | undefined, excluded: number) {
    this.#index = index;
    this.#pieces = pieces;
    this.#ranks = ranks;
    this.#excluded = excluded;
  }

  /** The slot of a merge, for {@link rank} and {@link result}; -1 where there is none. */
  find(left: number, right: number): number {
    let hash = Math.imul(left, 0x9e3779b1) ^ Math.imul(right, 0x85ebca6b);
    hash ^= hash >>> 15;
    const kept = this.#kept, at = (hash & KEPT - 1) * STRIDE;
    if (kept[at] === left && kept[at + 1] === right) return kept[at + 2];
    kept[at] = left;
    kept[at + 1] = right;
    return kept[at + 2] = this.#look(left, right);
  }

  #look(left: number, right: number): number {
    if (left === this.#excluded || right === this.#excluded) return -1;
    const id = this.#index.findJoined(left, right);
    return id < 0 || !this.#pieces.has(id) ? -1 : id;
  }

  /** Rank at a slot that {@link find} returned. */
  rank(slot: number): number {
    return this.#ranks === undefined ? slot : this.#ranks[slot];
  }

  /** Result id at a slot that {@link find} returned. */
  result(slot: number): number {
    return slot;
  }
}
