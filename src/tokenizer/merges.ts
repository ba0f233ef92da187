/** The merges of a vocabulary as ids: given as a ranked list, or implied by pieces with scores. */
import { TokenizerError } from "../errors.ts";
import type { TokenIndex } from "./token_index.ts";
import type { Merge, Vocabulary } from "./vocabulary.ts";

/** Two adjacent ids become one; the lowest rank goes first. */
export interface RankedMerge {
  left: number;
  right: number;
  result: number;
  rank: number;
}

/** All merges that can happen; none adds up to or uses a control token. Throws TokenizerError for a malformed one. */
export function* mergesOf(vocabulary: Vocabulary, index: TokenIndex): Generator<RankedMerge> {
  const control = new Set(vocabulary.added.filter((token) => token.control).map((token) => token.id));
  const merges = vocabulary.scores === undefined
    ? listedMerges(vocabulary.merges, index)
    : scoredMerges(vocabulary.scores, vocabulary.pieces ?? (() => true), index);
  for (const merge of merges) {
    if (control.has(merge.left) || control.has(merge.right) || control.has(merge.result)) continue;
    yield merge;
  }
}

function* listedMerges(merges: readonly Merge[], index: TokenIndex): Generator<RankedMerge> {
  for (let rank = 0; rank < merges.length; rank++) {
    const [leftText, rightText] = partsOf(merges[rank], rank);
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
    yield { left, right, result, rank };
  }
}

/**
 * Every way in which two tokens spell a piece. The piece with the highest score goes first, whatever it is spelled from:
 * pieces of one score have one rank, so that the leftmost of them goes first.
 */
function* scoredMerges(
  scores: ArrayLike<number>,
  isPiece: (id: number) => boolean,
  index: TokenIndex,
): Generator<RankedMerge> {
  const pieces = Array.from({ length: scores.length }, (_, id) => id).filter(isPiece);
  pieces.sort((a, b) => scores[b] - scores[a] || a - b);
  let rank = -1, score = NaN, room = MERGES_BESIDE + MERGES_PER_PIECE * pieces.length;
  for (const result of pieces) {
    if (scores[result] !== score) rank++;
    score = scores[result];
    const cuts = index.cuts(result);
    if ((room -= cuts.length) < 0) {
      throw new TokenizerError(
        "tokenizer_too_large",
        `The ${pieces.length} pieces of the vocabulary spell each other in more than ` +
          `${
            MERGES_BESIDE + MERGES_PER_PIECE * pieces.length
          } ways. The tokenizer file is damaged; fetch it again.`,
      );
    }
    for (const [left, right] of cuts) yield { left, right, result, rank };
  }
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
