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
  let rank = -1, score = NaN;
  for (const result of pieces) {
    if (scores[result] !== score) rank++;
    score = scores[result];
    for (const [left, right] of index.cuts(result)) yield { left, right, result, rank };
  }
}

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
