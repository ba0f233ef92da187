/** One draw from the results of a forward. */
import { DeviceError, type MemoryLimit } from "../errors.ts";
import type { Adjustments } from "../sample/adjustments.ts";
import { type Candidates, rank, sampleCandidates, sampleRow } from "../sample/sampler.ts";
import type { GeneratedLogprob } from "./api.ts";
import type { Settings } from "./options.ts";
import { CANDIDATES, type Results } from "./results.ts";
import type { RowCandidates } from "./speculative.ts";

/** One drawn token. */
export interface Draw {
  id: number;
  /** why it is the last one */ end?: "stop" | "maxTokens" | "context" | "memory";
  /** with "memory": what the cache said */ refusal?: MemoryLimit;
  logprob?: GeneratedLogprob;
}

/** The candidates of a row as the sampler takes them; none where the best is not finite. */
export function candidatesOf({ ids, values, stats }: RowCandidates, vocabularySize: number): Candidates {
  let count = Number.isFinite(values[0]) && Number.isFinite(stats[0]) ? CANDIDATES : 0;
  while (count > 0 && (ids[count - 1] === ABSENT || values[count - 1] === -Infinity)) count--;
  return { ids, values, count, more: count === CANDIDATES, vocabularySize, logSumExp: stats[1] };
}

/** Draws from output row `row`. `position` is that of the token to be drawn. Throws `DeviceError` with code `not_finite`. */
export function drawFrom(
  results: Results,
  row: number,
  settings: Settings,
  adjustments: Adjustments,
  position: number,
  vocabularySize: number,
): Draw {
  const found = results.candidates(row);
  const { ids, values, stats } = found;
  const rawLogSumExp = stats[0];
  const candidates = candidatesOf(found, vocabularySize);
  if (candidates.count === 0) {
    throw new DeviceError(
      "not_finite",
      `The logits of position ${position - 1} are not finite (the best is ${values[0]}). ` +
        `The checkpoint's weights are damaged; convert or download it again.`,
    );
  }
  let logits: Float32Array | undefined; // the raw row, where it is needed; not for long
  let asked = 0;
  const logitOf = (id: number) => {
    if (logits === undefined && ++asked > MOST_ASKED) logits = results.logits(row);
    return adjustments.applied(id, logits === undefined ? results.logit(row, id) : logits[id]);
  };
  let id = sampleCandidates(candidates, settings, position, logitOf);
  if (id === undefined) {
    logits ??= results.logits(row);
    const isAdjusted = adjustments.list() !== undefined;
    const adjusted = isAdjusted ? logits.slice() : logits;
    if (isAdjusted) adjustments.apply(adjusted);
    id = sampleRow(adjusted, settings, position);
  }
  if (settings.logprobs === undefined) return { id };

  // Candidates are ranked by adjusted logits; log-probabilities are of the raw ones.
  const at = ids.indexOf(id);
  if (adjustments.list() === undefined && at >= 0) {
    const top = Array.from({ length: Math.min(settings.logprobs, candidates.count) }, (_, i) => ({
      id: ids[i],
      logprob: values[i] - rawLogSumExp,
    }));
    return { id, logprob: { id, logprob: values[at] - rawLogSumExp, top } };
  }
  logits ??= results.logits(row);
  const best = settings.logprobs > 0 ? rank(logits) : { ids: [], count: 0 };
  const top = Array.from({ length: Math.min(settings.logprobs, best.count) }, (_, i) => ({
    id: best.ids[i],
    logprob: logits![best.ids[i]] - rawLogSumExp,
  }));
  return { id, logprob: { id, logprob: logits[id] - rawLogSumExp, top } };
}

const ABSENT = 0xffffffff;
/** Logits that are read one by one; then the whole row is. */
const MOST_ASKED = 8;
