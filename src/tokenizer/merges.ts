/** The merges of a vocabulary as ids: given as a ranked list, or implied by pieces with scores. */
import { TokenizerError } from "../errors.ts";
import { IdSet } from "./id_set.ts";
import { PairTable } from "./pairs.ts";
import { PieceMerges } from "./piece_merges.ts";
import type { TokenIndex } from "./token_index.ts";
import { controlIdsOf, type Merge, type Vocabulary } from "./vocabulary.ts";

/** Two adjacent ids become one; the lowest rank goes first. */
export type OnMerge = (left: number, right: number, result: number, rank: number) => void;

/** Merges by their pairs. */
export interface Merges {
  /** The slot of a pair, for `rank` and `result`; -1 where it does not merge. */
  find(left: number, right: number): number;
  /** Rank at a slot that `find` returned. */
  rank(slot: number): number;
  /** Result id at a slot that `find` returned. */
  result(slot: number): number;
}

/**
 * All merges that can happen, each of which `each` is told; none adds up to or uses a control token. Throws TokenizerError for a
 * malformed one.
 */
export function mergesOf(vocabulary: Vocabulary, index: TokenIndex, each: OnMerge): Merges {
  const { scores, merges, unknown = -1 } = vocabulary;
  const control = controlIdsOf(vocabulary);
  const isPiece = (id: number) => !control.has(id) && (vocabulary.pieces?.(id) ?? true);
  if (scores !== undefined && !index.hasDuplicates) {
    const pieces = new IdSet(scores.length);
    for (let id = 0; id < scores.length; id++) if (isPiece(id)) pieces.add(id);
    // As files have them, each score is below the one before, so that a list of ranks would only take memory.
    const ranks = orderOf(scores, isPiece) === "strict" ? undefined : new Int32Array(scores.length);
    scoredMerges(scores, isPiece, index, (left, right, result, rank) => {
      if (ranks !== undefined) ranks[result] = rank;
      if (!control.has(left) && !control.has(right)) each(left, right, result, rank);
    });
    // Of control tokens only the unknown one stands in for a character.
    return new PieceMerges(index, pieces, ranks, control.has(unknown) ? unknown : -1);
  }
  const table = new PairTable(scores === undefined ? merges.length : 2 * scores.length); // Gemma 3: 1.96 a piece
  const add: OnMerge = (left, right, result, rank) => {
    if (control.has(left) || control.has(right) || control.has(result)) return;
    table.set(left, right, rank, result);
    each(left, right, result, rank);
  };
  if (scores === undefined) listedMerges(merges, index, add);
  else scoredMerges(scores, isPiece, index, add);
  return table;
}

function listedMerges(merges: Iterable<Merge>, index: TokenIndex, each: OnMerge): void {
  let rank = 0;
  for (const merge of merges) {
    const [leftText, rightText] = partsOf(merge, rank);
    const left = index.find(leftText), right = index.find(rightText);
    const result = left < 0 || right < 0 ? -1 : index.findJoined(left, right);
    if (result < 0) {
      const missing = left < 0 ? leftText : right < 0 ? rightText : leftText + rightText;
      throw new TokenizerError(
        "merge_unknown_token",
        `Merge ${rank} uses ${JSON.stringify(missing)}, which is not in the vocabulary. ` +
          `The tokenizer file is damaged; fetch it again.`,
      );
    }
    each(left, right, result, rank++);
  }
}

/**
 * Every way in which two tokens spell a piece. The piece with the highest score goes first, whatever it is spelled from:
 * pieces of one score have one rank, so that the leftmost of them goes first.
 */
function scoredMerges(
  scores: ArrayLike<number>,
  isPiece: (id: number) => boolean,
  index: TokenIndex,
  each: OnMerge,
): void {
  let count = 0;
  for (let id = 0; id < scores.length; id++) if (isPiece(id)) count++;
  const most = MERGES_BESIDE + MERGES_PER_PIECE * count;
  let rank = -1, score = NaN, cuts = 0, result = 0;
  const onCut = (left: number, right: number) => {
    if (++cuts > most) {
      throw new TokenizerError(
        "tokenizer_too_large",
        `The ${count} pieces of the vocabulary spell each other in more than ${most} ways. ` +
          `The tokenizer file is damaged; fetch it again.`,
      );
    }
    each(left, right, result, rank);
  };
  const take = (piece: number) => {
    result = piece;
    if (scores[piece] !== score) rank++;
    score = scores[piece];
    index.cuts(piece, onCut);
  };
  if (orderOf(scores, isPiece) !== "none") { // a list would only take memory
    for (let id = 0; id < scores.length; id++) if (isPiece(id)) take(id);
  } else {
    const pieces = Int32Array.from(scores, (_, id) => id).filter((id) => isPiece(id));
    pieces.sort((a, b) => scores[b] - scores[a] || a - b).forEach(take);
  }
}

/** How the scores of pieces go by their ids: each below the one before, none above it, or neither. */
function orderOf(scores: ArrayLike<number>, isPiece: (id: number) => boolean): "strict" | "weak" | "none" {
  let order: "strict" | "weak" = "strict", last = Infinity;
  for (let id = 0; id < scores.length; id++) {
    if (!isPiece(id)) continue;
    if (scores[id] > last) return "none";
    if (scores[id] === last) order = "weak";
    last = scores[id];
  }
  return order;
}

/** Pieces that repeat each other, such as one letter in every length, imply merges by the square of their number. */
const MERGES_PER_PIECE = 16, MERGES_BESIDE = 1 << 16;

function partsOf(merge: Merge, rank: number): readonly [string, string] {
  if (typeof merge !== "string") return merge;
  const parts = merge.split(" ");
  if (parts.length === 2 && parts[0] !== "" && parts[1] !== "") return parts as [string, string];
  throw new TokenizerError(
    "merge_malformed",
    `Merge ${rank} is ${JSON.stringify(merge)}; two tokens with one space between are wanted. ` +
      `The tokenizer file is damaged; fetch it again.`,
  );
}
