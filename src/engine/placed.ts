/** Media in a timeline: soft tokens at their places, what the prefix cache knows them by, and where a timeline may be cut. */
import type { TokenKey } from "../cache/prefix.ts";
import type { ModelConfig } from "../checkpoint/config.ts";
import { InvalidArgument } from "../errors.ts";
import type { SoftTokens } from "../media/types.ts";

/** A medium's place in a timeline. The ids there are placeholders. */
export interface MediaPlace {
  /** position of the first soft token */ start: number;
  /** number of soft tokens */ tokens: number;
  /** names the content, for the prefix cache: equal only where the soft tokens are */ key: string;
  /** a picture or a frame, whose tokens see each other where the model has such layers; a sound does not */
  block: boolean;
}

/** A medium at its place, whose soft tokens are there when they are asked for: what the cache holds needs none. */
export interface PlacedMedia extends MediaPlace {
  /** from a tower or an earlier run of it; rejects with the signal's reason or a `MarkbaseError` */
  embed(signal: AbortSignal | undefined): Promise<SoftTokens>;
}

/** Soft tokens at their place. */
export interface EmbeddedMedia extends MediaPlace {
  soft: SoftTokens;
}

/** Soft tokens of what does not end before position `from`. Rejects with the signal's reason or a `MarkbaseError`. */
export async function embedMedia(
  media: readonly PlacedMedia[],
  from: number,
  signal: AbortSignal | undefined,
): Promise<EmbeddedMedia[]> {
  const embedded: EmbeddedMedia[] = [];
  for (const medium of media) {
    const { start, tokens, key, block } = medium;
    if (start + tokens <= from) continue;
    embedded.push({ start, tokens, key, block, soft: await medium.embed(signal) });
  }
  return embedded;
}

/** Whether pictures of this model are blocks, which must not be split over forwards. */
export function hasBlocks(config: Pick<ModelConfig, "layers">): boolean {
  return config.layers.some(({ mediaBlock }) => mediaBlock !== "causal");
}

/** Soft tokens that a block may have: the largest budget that the models were trained for. */
export const MOST_BLOCK_ROWS = 1120;

/**
 * Checks media against a timeline of `length` tokens: in order, apart, inside. Throws `InvalidArgument`.
 */
export function checkPlaced(
  media: readonly MediaPlace[],
  length: number,
  config: Pick<ModelConfig, "layers">,
): void {
  const blocks = hasBlocks(config);
  let end = 0;
  media.forEach(({ start, tokens, block }, index) => {
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
export function timelineKeys(ids: readonly number[], media: readonly MediaPlace[]): TokenKey[] {
  const keys: TokenKey[] = [...ids];
  for (const { start, tokens, key } of media) {
    for (let i = 0; i < tokens; i++) keys[start + i] = `${key} ${i}`;
  }
  return keys;
}

/** The media that covers a position. */
export function mediaAt<T extends MediaPlace>(media: readonly T[], position: number): T | undefined {
  return media.find(({ start, tokens }) => start <= position && position < start + tokens);
}

/** The block that a cut before `position` would split. */
export function splitBlock<T extends MediaPlace>(media: readonly T[], position: number): T | undefined {
  const at = mediaAt(media, position);
  return at?.block && at.start < position ? at : undefined;
}
