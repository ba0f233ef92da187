/** The loop that turns a timeline of tokens into more tokens, one draw at a time. */
import type { Sequence } from "../cache/sequence.ts";
import { ContextFull, DeviceError, InvalidArgument, MemoryLimit } from "../errors.ts";
import { Adjustments } from "../sample/adjustments.ts";
import { rank, sampleCandidates, sampleRow } from "../sample/sampler.ts";
import type { GeneratedLogprob } from "./api.ts";
import { CANDIDATE_OUTPUTS, CANDIDATES, type Forward, type Results, type RowRequest } from "./forward.ts";
import type { Settings } from "./options.ts";

/** Tokens and the part of them that is in the cache: the first `sequence.length`. */
export interface Timeline {
  ids: number[];
  sequence: Sequence;
  /** the last token was drawn by the model, so it continues as a decode row */ drawn: boolean;
}

/** One drawn token. */
export interface Draw {
  id: number;
  /** why it is the last one */ end?: "stop" | "maxTokens" | "context" | "memory";
  /** with "memory": what the cache said */ refusal?: MemoryLimit;
  logprob?: GeneratedLogprob;
}

/** Tokens reserved at a time for replies that name no `maxTokens`. */
const USUAL_REPLY = 1024;

/** What a generation needs to know of its model. */
export interface GenerationContext {
  forward: Forward;
  contextLength: number;
  vocabularySize: number;
  stops: ReadonlySet<number>;
}

/**
 * Draws tokens and adds them to the timeline until one ends it. The caller owns the timeline and must not touch it between
 * draws. Throws `ContextFull`, `MemoryLimit`, the signal's reason, or a `DeviceError`.
 */
export async function* drawTokens(
  timeline: Timeline,
  settings: Settings,
  context: GenerationContext,
): AsyncGenerator<Draw, void, undefined> {
  const { forward, contextLength, stops } = context;
  const { ids, sequence } = timeline;
  const { signal } = settings;
  signal?.throwIfAborted();
  if (ids.length === 0) throw new InvalidArgument("There is no token to continue from. Append at least one.");
  if (ids.length >= contextLength) throw new ContextFull(ids.length + 1, contextLength);
  const most = Math.min(settings.maxTokens, contextLength - ids.length);
  const prompt = ids.length;
  let reserved = prompt; // tokens
  const reserve = () => {
    const step = Number.isFinite(settings.maxTokens) ? most : USUAL_REPLY;
    reserved = Math.min(ids.length + step, prompt + most);
    sequence.reserve(reserved, forward.chunkRows);
  };
  reserve();

  const adjustments = new Adjustments(settings, ids);
  for (let drawn = 1; drawn <= most; drawn++) {
    const request: RowRequest = {
      adjustments: adjustments.list(),
      temperature: settings.temperature > 0 ? settings.temperature : 1,
    };
    const take = (results: Results) =>
      drawFrom(results, settings, adjustments, ids.length, context.vocabularySize);
    let draw: Draw | undefined;
    const pending = ids.slice(sequence.length);
    if (pending.length === 1 && timeline.drawn) {
      draw = await forward.decode(sequence, pending[0], request, CANDIDATE_OUTPUTS, signal, take);
    } else {
      await forward.prefill(
        sequence,
        pending,
        { outputs: 1, mask: CANDIDATE_OUTPUTS, last: request, signal },
        (results) => (draw = take(results)),
      );
    }
    const { id, logprob } = draw!;
    if (drawn === 1) forward.prefixes.keep(ids, sequence);
    ids.push(id);
    timeline.drawn = true;
    adjustments.accept(id);
    let end: Draw["end"];
    let refusal: MemoryLimit | undefined;
    if (!settings.ignoreEos && stops.has(id)) end = "stop";
    else if (drawn === most) end = drawn >= settings.maxTokens ? "maxTokens" : "context";
    else if (ids.length === reserved) {
      try {
        reserve();
      } catch (error) {
        if (!(error instanceof MemoryLimit)) throw error;
        [end, refusal] = ["memory", error];
      }
    }
    yield { id, end, refusal, logprob };
    if (end !== undefined) return;
  }
}

/** Draws from the last output row. `position` is that of the token to be drawn. */
function drawFrom(
  results: Results,
  settings: Settings,
  adjustments: Adjustments,
  position: number,
  vocabularySize: number,
): Draw {
  const row = results.rows - 1;
  const ids = results.ids(row);
  const values = results.values(row);
  const [rawLogSumExp, logSumExp] = results.stats(row);
  if (!Number.isFinite(values[0]) || !Number.isFinite(rawLogSumExp)) {
    throw new DeviceError(
      "not_finite",
      `The logits of position ${position - 1} are not finite (the best is ${values[0]}). ` +
        `The checkpoint's weights are damaged; convert or download it again.`,
    );
  }
  let count = CANDIDATES;
  while (ids[count - 1] === ABSENT || values[count - 1] === -Infinity) count--;
  const more = count === CANDIDATES;
  let logits: Float32Array | undefined; // the raw row, where it is needed
  let id = sampleCandidates({ ids, values, count, more, vocabularySize, logSumExp }, settings, position);
  if (id === undefined) {
    logits = results.logits(row);
    const adjusted = logits.slice();
    adjustments.apply(adjusted);
    id = sampleRow(adjusted, settings, position);
  }
  if (settings.logprobs === undefined) return { id };

  // Candidates are ranked by adjusted logits; log-probabilities are of the raw ones.
  const at = ids.indexOf(id);
  if (adjustments.list() === undefined && at >= 0) {
    const top = Array.from({ length: Math.min(settings.logprobs, count) }, (_, i) => ({
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
