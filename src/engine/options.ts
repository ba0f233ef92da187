/** Checks options: unknown names, types and ranges. */
import { ContextFull, InvalidArgument, UnknownOption } from "../errors.ts";
import type { SuggestedSampling } from "../checkpoint/config.ts";
import type { PenaltyOptions } from "../sample/adjustments.ts";
import { randomSeed } from "../sample/noise.ts";
import type { SamplingOptions } from "../sample/sampler.ts";
import type { GenerateOptions } from "./api.ts";
import { CANDIDATES } from "./results.ts";
import { MOST_DRAFTS } from "./speculative.ts";

/** Throws `UnknownOption` for the first name outside `known`, `InvalidArgument` if `options` is no object. */
export function checkNames(options: object, known: readonly string[]): void {
  if (typeof options !== "object" || options === null || Array.isArray(options)) {
    throw new InvalidArgument(`Options are ${describe(options)}. Pass an object such as {${known[0]}: …}.`);
  }
  for (const name of Object.keys(options)) if (!known.includes(name)) throw new UnknownOption(name, known);
}

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
  "drafter",
  "cache",
  "onProgress",
  "signal",
];

/** Checked options of one generation, with every default filled in. */
export interface Settings extends SamplingOptions, PenaltyOptions {
  /** Infinity: as many as the context holds */ maxTokens: number;
  stop: readonly string[];
  /** alternatives by token; undefined: no log-probabilities */ logprobs: number | undefined;
  ignoreEos: boolean;
  /** drafts of each forward, true: as many as pay; undefined: true where there is a drafter */
  speculative: boolean | number | undefined;
  signal: AbortSignal | undefined;
}

/** Lower temperatures count as greedy: they would differ from it only between logits that are equal in f32. */
const LEAST_TEMPERATURE = 1e-6;
const LEAST_REPETITION_PENALTY = 0.01;
const MAX_STOPS = 64;

/** Checks values and fills in the checkpoint's defaults. Throws `InvalidArgument` that names the option. */
export function settingsOf(
  options: GenerateOptions,
  suggested: SuggestedSampling,
  vocabularySize: number,
): Settings {
  const temperature = number("temperature", options.temperature, 0, 100) ?? suggested.temperature ?? 1;
  return {
    maxTokens: integer("maxTokens", options.maxTokens, 1, Number.MAX_SAFE_INTEGER) ?? Infinity,
    temperature: temperature < LEAST_TEMPERATURE ? 0 : temperature,
    topK: integer("topK", options.topK, 0, 2 ** 31) ?? suggested.topK ?? 0,
    topP: positive("topP", options.topP, 1) ?? (suggested.topP || 1),
    minP: number("minP", options.minP, 0, 1) ?? 0,
    repetitionPenalty:
      number("repetitionPenalty", options.repetitionPenalty, LEAST_REPETITION_PENALTY, 100) ?? 1,
    presencePenalty: number("presencePenalty", options.presencePenalty, -100, 100) ?? 0,
    frequencyPenalty: number("frequencyPenalty", options.frequencyPenalty, -100, 100) ?? 0,
    seed: integer("seed", options.seed, 0, Number.MAX_SAFE_INTEGER) ?? randomSeed(),
    stop: stopTexts(options.stop),
    logitBias: biases(options.logitBias, vocabularySize),
    logprobs: alternatives(options.logprobs),
    ignoreEos: flag("ignoreEos", options.ignoreEos) ?? false,
    speculative: drafts(options.speculative),
    signal: signalOf(options.signal),
  };
}

/** A whole number from `least` to `most`, or undefined. Throws `InvalidArgument`. */
export function integer(name: string, value: unknown, least: number, most: number): number | undefined {
  if (value === undefined) return undefined;
  if (Number.isSafeInteger(value) && (value as number) >= least && (value as number) <= most) {
    return value as number;
  }
  throw new InvalidArgument(
    `${name} is ${describe(value)}; it must be a whole number from ${least} to ${most}.`,
  );
}

/** One of a list of words, or undefined. Throws `InvalidArgument`. */
export function choice<T extends string>(name: string, value: unknown, choices: readonly T[]): T | undefined {
  if (value === undefined || choices.includes(value as T)) return value as T | undefined;
  throw new InvalidArgument(`${name} is ${describe(value)}; it must be one of ${choices.join(", ")}.`);
}

/** True or false, or undefined. Throws `InvalidArgument`. */
export function flag(name: string, value: unknown): boolean | undefined {
  if (value === undefined || typeof value === "boolean") return value;
  throw new InvalidArgument(`${name} is ${describe(value)}; it must be true or false.`);
}

/** An AbortSignal, or undefined. Throws `InvalidArgument`. */
export function signalOf(value: unknown): AbortSignal | undefined {
  if (value === undefined || value instanceof AbortSignal) return value;
  throw new InvalidArgument(`signal is ${describe(value)}; it must be an AbortSignal.`);
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

function number(name: string, value: unknown, least: number, most: number): number | undefined {
  if (value === undefined) return undefined;
  if (typeof value === "number" && value >= least && value <= most) return value;
  throw new InvalidArgument(`${name} is ${describe(value)}; it must be a number from ${least} to ${most}.`);
}

function positive(name: string, value: unknown, most: number): number | undefined {
  if (value === undefined) return undefined;
  if (typeof value === "number" && value > 0 && value <= most) return value;
  throw new InvalidArgument(`${name} is ${describe(value)}; it must be a number above 0, up to ${most}.`);
}

function stopTexts(value: unknown): readonly string[] {
  if (value === undefined) return [];
  const texts = typeof value === "string" ? [value] : value;
  const usable = Array.isArray(texts) && texts.length <= MAX_STOPS &&
    texts.every((text) => typeof text === "string" && text !== "");
  if (usable) return [...texts];
  throw new InvalidArgument(
    `stop is ${
      describe(value)
    }; it must be a text or a list of at most ${MAX_STOPS} texts, none of them empty.`,
  );
}

function biases(value: unknown, vocabularySize: number): ReadonlyMap<number, number> {
  if (value === undefined) return new Map();
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new InvalidArgument(
      `logitBias is ${describe(value)}; it must be an object or a Map from token id to number.`,
    );
  }
  const entries: [unknown, unknown][] = value instanceof Map ? [...value] : Object.entries(value);
  const checked = new Map<number, number>();
  for (const [key, add] of entries) {
    const id = typeof key === "string" && /^\d+$/.test(key) ? Number(key) : key;
    integer("A token id in logitBias", id, 0, vocabularySize - 1);
    checked.set(id as number, number(`logitBias of token ${id}`, add, -1e6, 1e6) ?? 0);
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

function describe(value: unknown): string {
  if (typeof value === "string") return JSON.stringify(value.length > 60 ? value.slice(0, 57) + "…" : value);
  if (typeof value === "object" && value !== null) return Array.isArray(value) ? "a list" : "an object";
  return String(value);
}
