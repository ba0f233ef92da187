/** Checks options: unknown names, types and ranges. */
import { describe, flag, integer, isRecord, number, positive, signalOf } from "../arguments.ts";
import { ContextFull, InvalidArgument } from "../errors.ts";
import type { ModelConfig } from "../checkpoint/config.ts";
import {
  LEAST_REPETITION_PENALTY,
  MOST_REPETITION_PENALTY,
  type PenaltyOptions,
} from "../sample/adjustments.ts";
import { randomSeed } from "../sample/noise.ts";
import type { SamplingOptions } from "../sample/sampler.ts";
import type { GenerateOptions } from "./api.ts";
import { CANDIDATES } from "./results.ts";
import { MOST_DRAFTS } from "./speculative.ts";

/** Names of `CompleteOptions`. */
export const COMPLETE_OPTIONS: readonly string[] = [
  "maxTokens",
  "temperature",
  "topK",
  "topP",
  "minP",
  "repetitionPenalty",
  "presencePenalty",
  "frequencyPenalty",
  "seed",
  "stop",
  "logitBias",
  "logprobs",
  "speculative",
  "signal",
];
/** Names of `GenerateOptions`. */
export const GENERATE_OPTIONS: readonly string[] = [...COMPLETE_OPTIONS, "ignoreEos"];
/** Names of `ChatOptions`. */
export const CHAT_OPTIONS: readonly string[] = [...COMPLETE_OPTIONS, "tools", "thinking", "imageTokens"];
/** Names of `PromptOptions`. */
export const PROMPT_OPTIONS: readonly string[] = ["media", "imageTokens"];
/** Names of `RenderChatOptions`. */
export const RENDER_OPTIONS: readonly string[] = ["tools", "thinking", "addGenerationPrompt"];
/** Names of `AppendOptions`. */
export const APPEND_OPTIONS: readonly string[] = [...RENDER_OPTIONS, ...PROMPT_OPTIONS, "signal"];
/** Names of `LoadOptions`. */
export const LOAD_OPTIONS: readonly string[] = [
  "device",
  "precision",
  "contextLength",
  "memory",
  "kvCache",
  "matrixUnits",
  "drafter",
  "cache",
  "onProgress",
  "signal",
];

/** Checked options of one generation, with every default filled in. */
export interface Settings extends SamplingOptions, PenaltyOptions {
  /** Infinity: as many as the context holds */ maxTokens: number;
  /** the caller named maxTokens, so that the cache for all of them is promised before the first */ promised:
    boolean;
  stop: readonly string[];
  /** alternatives by token; undefined: no log-probabilities */ logprobs: number | undefined;
  ignoreEos: boolean;
  /** drafts of each forward, true: as many as pay; undefined: true where there is a drafter */
  speculative: boolean | number | undefined;
  signal: AbortSignal | undefined;
}

/** Lower temperatures count as greedy: they would differ from it only between logits that are equal in f32. */
const LEAST_TEMPERATURE = 1e-6;
const MAX_STOPS = 64;
/** Far beyond any logit, so that a token with the least bias has no probability beside others. */
const MOST_BIAS = 1e6;

/** What the checkpoint says of sampling. */
export interface SamplingConfig extends Pick<ModelConfig, "sampling" | "vocabularySize"> {
  tokens: Pick<ModelConfig["tokens"], "suppressed">;
}

/** Checks values and fills in the checkpoint's defaults. Throws `InvalidArgument` that names the option. */
export function settingsOf(
  options: GenerateOptions,
  { sampling: suggested, vocabularySize, tokens }: SamplingConfig,
): Settings {
  const temperature = number("temperature", options.temperature, 0, 100) ?? suggested.temperature ?? 1;
  const maxTokens = integer("maxTokens", options.maxTokens, 1, Number.MAX_SAFE_INTEGER);
  return {
    maxTokens: maxTokens ?? suggested.maxTokens ?? Infinity,
    promised: maxTokens !== undefined,
    temperature: temperature < LEAST_TEMPERATURE ? 0 : temperature,
    topK: integer("topK", options.topK, 0, 2 ** 31) ?? suggested.topK ?? 0,
    topP: positive("topP", options.topP, 1) ?? (suggested.topP || 1),
    minP: number("minP", options.minP, 0, 1) ?? suggested.minP ?? 0,
    repetitionPenalty: number(
      "repetitionPenalty",
      options.repetitionPenalty,
      LEAST_REPETITION_PENALTY,
      MOST_REPETITION_PENALTY,
    ) ?? suggested.repetitionPenalty ?? 1,
    presencePenalty: number("presencePenalty", options.presencePenalty, -100, 100) ?? 0,
    frequencyPenalty: number("frequencyPenalty", options.frequencyPenalty, -100, 100) ?? 0,
    seed: integer("seed", options.seed, 0, Number.MAX_SAFE_INTEGER) ?? randomSeed(),
    stop: stopTexts(options.stop),
    logitBias: biases(options.logitBias, vocabularySize, tokens.suppressed),
    logprobs: alternatives(options.logprobs),
    ignoreEos: flag("ignoreEos", options.ignoreEos) ?? false,
    speculative: drafts(options.speculative),
    signal: signalOf(options.signal),
  };
}

/**
 * Token ids below the vocabulary size, copied, to follow `before` others. Throws `InvalidArgument` that names the first
 * wrong one, or `ContextFull`.
 */
export function tokenIds(
  ids: ArrayLike<number>,
  { vocabularySize, contextLength, before = 0 }: {
    vocabularySize: number;
    contextLength: number;
    before?: number;
  },
): number[] {
  if (typeof ids !== "object" || ids === null || !(Number.isSafeInteger(ids.length) && ids.length >= 0)) {
    throw new InvalidArgument(`Token ids are ${describe(ids)}; pass a list of whole numbers.`);
  }
  if (before + ids.length > contextLength) throw new ContextFull(before + ids.length, contextLength);
  const copy = new Array<number>(ids.length);
  for (let i = 0; i < ids.length; i++) {
    const id = ids[i];
    if (!Number.isInteger(id) || id < 0 || id >= vocabularySize) {
      throw new InvalidArgument(
        `Token ${i} is ${describe(id)}; ids of this model are whole numbers from 0 to ${vocabularySize - 1}.`,
      );
    }
    copy[i] = id;
  }
  return copy;
}

function stopTexts(value: unknown): readonly string[] {
  if (value === undefined) return [];
  const texts = Array.isArray(value) && value.length <= MAX_STOPS ? [...value] : [value]; // holes are undefined
  const wrong = texts.findIndex((text) => typeof text !== "string" || text === "");
  if (wrong < 0) return texts;
  const what = Array.isArray(value)
    ? value.length > MAX_STOPS
      ? `stop has ${value.length} texts`
      : `stop[${wrong}] is ${describe(texts[wrong])}`
    : `stop is ${describe(value)}`;
  throw new InvalidArgument(
    `${what}; stop is a text or a list of at most ${MAX_STOPS} texts, none of them empty.`,
  );
}

/** `suppressed`: tokens that have the least bias unless the caller gives them one. */
function biases(
  value: unknown,
  vocabularySize: number,
  suppressed: readonly number[],
): ReadonlyMap<number, number> {
  const checked = new Map(suppressed.map((id) => [id, -MOST_BIAS]));
  if (value === undefined) return checked;
  if (!(value instanceof Map) && !isRecord(value)) {
    throw new InvalidArgument(
      `logitBias is ${describe(value)}; it must be an object or a Map from token id to number.`,
    );
  }
  const entries: [unknown, unknown][] = value instanceof Map ? [...value] : Object.entries(value as object);
  for (const [key, add] of entries) {
    const id = typeof key === "string" && /^\d+$/.test(key) ? Number(key) : key;
    integer("A token id in logitBias", id, 0, vocabularySize - 1);
    const bias = number(`logitBias of token ${id}`, add, -MOST_BIAS, MOST_BIAS);
    if (bias === undefined) {
      throw new InvalidArgument(`logitBias of token ${id} is undefined; leave it out or give a number.`);
    }
    checked.set(id as number, bias);
  }
  return checked;
}

function drafts(value: unknown): boolean | number | undefined {
  return typeof value === "boolean" ? value : integer("speculative", value, 1, MOST_DRAFTS);
}

function alternatives(value: unknown): number | undefined {
  if (value === undefined || value === false) return undefined;
  return value === true ? 0 : integer("logprobs", value, 0, CANDIDATES);
}
