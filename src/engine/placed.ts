/** Media in a timeline: soft tokens at their places, what the prefix cache knows them by, and where a timeline may be cut. */
import type { TokenKey } from "../cache/prefix.ts";
import type { ModelConfig } from "../checkpoint/config.ts";
import { InvalidArgument } from "../errors.ts";
import type { SoftTokens } from "../media/types.ts";

/** Soft tokens at their place in a timeline. The ids there are placeholders. */
export interface PlacedMedia {
  /** position of the first */ start: number;
  soft: SoftTokens;
  /** names the content, for the prefix cache: equal only where the soft tokens are */ key: string;
  /** a picture or a frame, whose tokens see each other where the model has such layers; a sound does not */
  block: boolean;
}

/** Whether pictures of this model are blocks, which must not be split over forwards. */
export function hasBlocks(config: Pick<ModelConfig, "layers">): boolean {
  return config.layers.some(({ mediaBlock }) => mediaBlock !== "causal");
}

/** Soft tokens that a block may have: the largest budget that the models were trained for. */
export const MOST_BLOCK_ROWS = 1120;

/**
 * Checks media against a timeline of `length` tokens: in order, apart, inside, of the model's width. Throws
 * `InvalidArgument`.
 */
export function checkPlaced(
  media: readonly PlacedMedia[],
  length: number,
  config: Pick<ModelConfig, "hiddenSize" | "layers">,
): void {
  const blocks = hasBlocks(config);
  let end = 0;
  media.forEach(({ start, soft: { values, tokens }, block }, index) => {
    if (values.length !== tokens * config.hiddenSize) {
      throw new InvalidArgument(
        `Media ${index} has ${tokens} soft tokens with ${values.length} values; each must have ${config.hiddenSize}.`,
      );
    }
    if (!(start >= end && start + tokens <= length)) {
      throw new InvalidArgument(
        `Media ${index} takes positions ${start} to ${
          start + tokens - 1
        } of ${length}; media must follow each other inside the prompt.`,
      );
    }
    if (blocks && block && tokens > MOST_BLOCK_ROWS) {
      throw new InvalidArgument(
        `Media ${index} has ${tokens} soft tokens; a picture has ${MOST_BLOCK_ROWS} at most. Lower imageTokens.`,
      );
    }
    end = start + tokens;
  });
}

/** What the cache knows the tokens of a timeline by. */
export function timelineKeys(ids: readonly number[], media: readonly PlacedMedia[]): TokenKey[] {
  const keys: TokenKey[] = [...ids];
  for (const { start, soft, key } of media) {
    for (let i = 0; i < soft.tokens; i++) keys[start + i] = `${key} ${i}`;
  }
  return keys;
}

/** The media that covers a position. */
export function mediaAt(media: readonly PlacedMedia[], position: number): PlacedMedia | undefined {
  return media.find(({ start, soft }) => start <= position && position < start + soft.tokens);
}

/** The block that a cut before `position` would split. */
export function splitBlock(media: readonly PlacedMedia[], position: number): PlacedMedia | undefined {
  const at = mediaAt(media, position);
  return at?.block && at.start < position ? at : undefined;
}
