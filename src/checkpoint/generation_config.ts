/** What `generation_config.json` says of sampling. */
import { LEAST_REPETITION_PENALTY, MOST_REPETITION_PENALTY } from "../sample/adjustments.ts";
import type { Fields } from "./fields.ts";

/** Defaults of generation that `generation_config.json` suggests; null where it says nothing. */
export interface SuggestedSampling {
  /** 0 is greedy. */
  temperature: number | null;
  /** Most likely tokens kept; 0 for all. */
  topK: number | null;
  /** Probability mass kept. */
  topP: number | null;
  /** Least share of the likeliest token's probability; 0 for all. */
  minP: number | null;
  /** Above 1 discourages tokens that occurred; greedy replies too. */
  repetitionPenalty: number | null;
  /** Most tokens of a reply. */
  maxTokens: number | null;
}

/** What the file suggests. Throws `CheckpointError` that names the key and the value. */
export function parseSampling(fields: Fields): SuggestedSampling {
  const greedy = !fields.boolean("do_sample", true); // what it says of temperature counts only where it samples
  const number = (key: string, min: number, max?: number) =>
    fields.has(key) ? fields.number(key, { min, max }) : null;
  return {
    temperature: greedy ? 0 : number("temperature", 0),
    topK: fields.has("top_k") ? fields.integer("top_k", { min: 0 }) : null,
    topP: number("top_p", 0, 1),
    minP: number("min_p", 0, 1),
    repetitionPenalty: number("repetition_penalty", LEAST_REPETITION_PENALTY, MOST_REPETITION_PENALTY),
    maxTokens: fields.has("max_new_tokens") ? fields.integer("max_new_tokens") : null,
  };
}

/** Ids below the vocabulary size that are never drawn, ascending; the reference passes over others too. */
export function suppressedTokens(fields: Fields, vocabularySize: number): number[] {
  const ids = fields.get("suppress_tokens") ?? [];
  if (!Array.isArray(ids) || !ids.every((id) => Number.isInteger(id) && id >= 0)) {
    throw fields.wrong("suppress_tokens", "a list of token ids");
  }
  return [...new Set<number>(ids)].filter((id) => id < vocabularySize).sort((a, b) => a - b);
}

/** Keys that change what the reference generates and are not read here, with the value that changes nothing. */
const UNREAD: Readonly<Record<string, number | null>> = {
  bad_words_ids: null,
  begin_suppress_tokens: null,
  epsilon_cutoff: 0,
  eta_cutoff: 0,
  exponential_decay_length_penalty: null,
  forced_bos_token_id: null,
  forced_eos_token_id: null,
  guidance_scale: 1,
  min_length: 0,
  min_new_tokens: 0,
  no_repeat_ngram_size: 0,
  num_beams: 1,
  penalty_alpha: 0,
  sequence_bias: null,
  stop_strings: null,
  top_h: null,
  typical_p: 1,
};

/** Keys of the file that ask for something which is not done. */
export function unreadKeys(fields: Fields): string[] {
  return Object.keys(UNREAD).filter((key) => fields.has(key) && fields.get(key) !== UNREAD[key]);
}
