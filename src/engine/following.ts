/** The forward that most likely comes after one of decode rows, for the library to begin when that one ends. */
import { type FollowingRun, NO_LOGITS } from "../../ffi/pass.ts";
import { OUTPUT } from "../schedule/text.ts";
import type { SamplingOptions } from "../sample/sampler.ts";
import type { Part } from "./part.ts";
import { HEADER_WORDS } from "./input.ts";
import { CANDIDATES, type OutputViews } from "./results.ts";

/** Whether a row's candidates decide its draw, whatever they are. */
function decidedByCandidates({ temperature, topK }: SamplingOptions): boolean {
  return temperature === 0 || (topK > 0 && topK <= CANDIDATES);
}

/**
 * Whether a forward can begin before the draw from the one before it. `keepsLogits`: its logits can be read meanwhile, on which draws
 * without truncation depend.
 */
export function canFollow(options: SamplingOptions, isAdjusted: boolean, keepsLogits: boolean): boolean {
  if (decidedByCandidates(options)) return true;
  return keepsLogits && !isAdjusted && options.topK === 0 && options.topP === 1;
}

/**
 * The forward of the same sequences one token later: the block that `input`, of the same parts, becomes. Undefined where a part
 * does not say how its token is drawn, or where the pages of a sequence change.
 */
export function followingRun(
  input: Uint8Array<ArrayBuffer>,
  parts: readonly Part[],
  views: OutputViews,
): FollowingRun | undefined {
  for (const { tokens, requests, sequence } of parts) {
    const isPlain = tokens.length === 1 && requests.length === 1 && requests[0].draw !== undefined;
    if (!isPlain || !sequence.keepsTables) return undefined;
  }
  const following = input.slice();
  const words = new Uint32Array(following.buffer);
  const draws: number[] = [];
  const adds: number[] = [];
  let penalises = false;
  for (let row = 0; row < parts.length; row++) {
    const { ids, values, stats } = views.candidates(row);
    const { options, adjustments } = parts[row].requests[0].draw!;
    const { seed, temperature, topK, topP, minP } = options;
    const position = ++words[HEADER_WORDS + parts.length + row];
    draws.push(ids.byteOffset, values.byteOffset, stats.byteOffset, ids.length);
    draws.push(position, seed, temperature, topK, topP, minP);
    const { multiply, add } = adjustments.ofNext();
    draws.push(multiply, add, decidedByCandidates(options) ? NO_LOGITS : OUTPUT.logits);
    penalises ||= multiply !== 0;
    for (const entry of adjustments.list() ?? []) adds.push(adjustments.addOfNext(entry));
  }
  return { input: following, draws: Float64Array.from(penalises ? draws.concat(adds) : draws) };
}
