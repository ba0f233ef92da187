/**
 * Reads Hugging Face `tokenizer.json` (with `tokenizer_config.json` and `generation_config.json`) into a
 * {@link Vocabulary}. Strict: what this tokenizer does not implement is an error that names it, never ignored.
 */
import { TokenizerError } from "../errors.ts";
import type { AddedToken, Merge, Replacement, Vocabulary } from "./vocabulary.ts";

/** An id beyond this is damage, not a vocabulary. */
const MAX_TOKENS = 1 << 22;

type JsonObject = { readonly [key: string]: unknown };

/**
 * The vocabulary in a parsed `tokenizer.json`. `config` is a parsed `tokenizer_config.json` (names of special
 * tokens), `generation` a parsed `generation_config.json` (further end tokens). Throws TokenizerError.
 */
export function vocabularyFromJson(json: object, config: object = {}, generation: object = {}): Vocabulary {
  const file = json as JsonObject;
  const model = object(file.model, "model");
  checkModel(model);
  const tokens = readTokens(object(model.vocab, "model.vocab"));
  const named = specialNames(config as JsonObject);
  const added = readAdded(file.added_tokens ?? [], tokens, named);
  const idOfAdded = new Map(added.map((token) => [token.text, token.id]));
  const normalize = readReplacements(file.normalizer, "normalizer", "normalizers").replacements;
  checkPreTokenizer(file.pre_tokenizer, normalize);
  const decoder = readReplacements(file.decoder, "decoder", "decoders");
  const byteFallback = model.byte_fallback === true;
  if (decoder.bytes !== byteFallback) {
    throw unsupported("decoder", "byte fallback in only one of model and decoder");
  }
  const settings = config as JsonObject, defaults = generation as JsonObject;
  const eos = idOfAdded.get(contentOf(settings.eos_token) ?? "<eos>") ?? idList(defaults.eos_token_id)[0];
  const endOfTurn = idOfAdded.get(contentOf(settings.eot_token) ?? "");
  const stops = new Set([eos, endOfTurn, ...idList(defaults.eos_token_id)].filter((id) => id !== undefined));
  for (const id of stops) {
    if (id >= tokens.length) {
      throw malformed("eos_token_id", `names id ${id} but there are ${tokens.length} tokens`);
    }
  }
  return {
    tokens,
    merges: readMerges(model.merges),
    added,
    unknown: readUnknown(model.unk_token, tokens),
    fuseUnknown: model.fuse_unk === true,
    byteFallback,
    normalize,
    denormalize: decoder.replacements,
    bos: idOfAdded.get(contentOf(settings.bos_token) ?? "<bos>") ?? idList(defaults.bos_token_id)[0],
    eos,
    stops: [...stops],
  };
}

function checkModel(model: JsonObject): void {
  if (model.type !== undefined && model.type !== "BPE") {
    throw unsupported("model.type", `${JSON.stringify(model.type)} (only BPE)`);
  }
  if (model.dropout) throw unsupported("model.dropout", `${model.dropout}`);
  if (model.continuing_subword_prefix) throw unsupported("model.continuing_subword_prefix", "a prefix");
  if (model.end_of_word_suffix) throw unsupported("model.end_of_word_suffix", "a suffix");
  if (model.ignore_merges === true) throw unsupported("model.ignore_merges", "true");
}

function readTokens(vocab: JsonObject): string[] {
  const texts = Object.keys(vocab);
  const tokens = new Array<string>(texts.length).fill("");
  let filled = 0;
  for (const text of texts) {
    const id = vocab[text];
    if (!isId(id)) {
      throw malformed("model.vocab", `gives ${JSON.stringify(text)} the id ${JSON.stringify(id)}`);
    }
    if (text === "") throw malformed("model.vocab", `has an empty token, id ${id}`);
    // Added tokens may fill gaps at the end only; a gap elsewhere means lost or doubled entries.
    if (id >= texts.length) throw malformed("model.vocab", `has ${texts.length} tokens but an id ${id}`);
    if (tokens[id] !== "") {
      throw malformed(
        "model.vocab",
        `gives id ${id} to ${JSON.stringify(tokens[id])} and ${JSON.stringify(text)}`,
      );
    }
    tokens[id] = text;
    filled++;
  }
  if (filled === 0) throw malformed("model.vocab", "is empty");
  return tokens;
}

/** Also appends added tokens beyond the vocabulary to `tokens`. `named` are control tokens by other sources. */
function readAdded(list: unknown, tokens: string[], named: ReadonlySet<string>): AddedToken[] {
  if (!Array.isArray(list)) throw malformed("added_tokens", "is not a list");
  const added: AddedToken[] = [];
  const seen = new Set<string>();
  const byId = list.map((entry, i) => object(entry, `added_tokens[${i}]`))
    .sort((a, b) => Number(a.id) - Number(b.id));
  for (const entry of byId) {
    const { id, content: text } = entry;
    if (!isId(id) || typeof text !== "string" || text === "") {
      throw malformed(
        "added_tokens",
        `has an entry with id ${JSON.stringify(id)} and text ${JSON.stringify(text)}`,
      );
    }
    if (id > tokens.length) {
      throw malformed(
        "added_tokens",
        `jumps to id ${id} after ${tokens.length} tokens (${JSON.stringify(text)})`,
      );
    }
    if (id === tokens.length) tokens.push(text);
    if (tokens[id] !== text || seen.has(text)) {
      throw malformed(
        "added_tokens",
        `gives id ${id} to ${JSON.stringify(text)}, which is ${JSON.stringify(tokens[id])}`,
      );
    }
    for (const flag of ["lstrip", "rstrip", "single_word"]) {
      if (entry[flag] === true) throw unsupported(`added_tokens.${flag}`, `true, at ${JSON.stringify(text)}`);
    }
    seen.add(text);
    const control = entry.special === true || named.has(text);
    added.push({ id, text, control, normalized: entry.normalized === true });
  }
  if (named.size > 0) {
    tokens.forEach((text, id) => {
      if (named.has(text) && !seen.has(text)) added.push({ id, text, control: true, normalized: false });
    });
  }
  return added;
}

function readMerges(list: unknown): Merge[] {
  if (!Array.isArray(list)) throw malformed("model.merges", "is not a list");
  for (let i = 0; i < list.length; i++) {
    const merge: unknown = list[i];
    if (typeof merge === "string") continue;
    if (
      Array.isArray(merge) && merge.length === 2 && typeof merge[0] === "string" &&
      typeof merge[1] === "string"
    ) {
      continue;
    }
    throw malformed("model.merges", `has ${JSON.stringify(merge)} at ${i}; a pair of tokens is wanted`);
  }
  return list;
}

function readUnknown(text: unknown, tokens: readonly string[]): number | undefined {
  if (text === undefined || text === null) return undefined;
  const id = tokens.indexOf(text as string);
  if (id >= 0) return id;
  throw malformed("model.unk_token", `is ${JSON.stringify(text)}, which is not in the vocabulary`);
}

/** A Replace, or a Sequence with Replace and, for decoders, ByteFallback and Fuse. */
function readReplacements(
  part: unknown,
  where: string,
  listName: "normalizers" | "decoders",
): { replacements: Replacement[]; bytes: boolean } {
  if (part === undefined || part === null) return { replacements: [], bytes: false };
  const step = object(part, where);
  if (step.type === "Sequence") {
    const list = step[listName];
    if (!Array.isArray(list)) throw malformed(`${where}.${listName}`, "is not a list");
    const parts = list.map((entry, i) => {
      const inner = object(entry, `${where}.${listName}[${i}]`);
      if (inner.type === "Sequence") throw unsupported(where, "a Sequence inside a Sequence");
      return readReplacements(inner, `${where}.${listName}[${i}]`, listName);
    });
    return {
      replacements: parts.flatMap((inner) => inner.replacements),
      bytes: parts.some((inner) => inner.bytes),
    };
  }
  if (step.type === "Replace") {
    const from = patternOf(step.pattern, where);
    if (typeof step.content !== "string") throw malformed(where, "replaces by something that is not text");
    return { replacements: [{ from, to: step.content }], bytes: false };
  }
  if (listName === "decoders" && step.type === "ByteFallback") return { replacements: [], bytes: true };
  if (listName === "decoders" && step.type === "Fuse") return { replacements: [], bytes: false };
  throw unsupported(where, JSON.stringify(step.type));
}

/** A pre-tokenizer is fine as long as normalization leaves it nothing to split at. */
function checkPreTokenizer(part: unknown, normalize: readonly Replacement[]): void {
  if (part === undefined || part === null) return;
  const step = object(part, "pre_tokenizer");
  if (step.type !== "Split") throw unsupported("pre_tokenizer", JSON.stringify(step.type));
  const at = patternOf(step.pattern, "pre_tokenizer");
  const last = normalize.at(-1);
  if (last?.from !== at || last.to.includes(at)) {
    throw unsupported(
      "pre_tokenizer",
      `a split at ${JSON.stringify(at)}, which normalization does not remove`,
    );
  }
}

function patternOf(pattern: unknown, where: string): string {
  const text = object(pattern, `${where}.pattern`).String;
  if (typeof text === "string" && text !== "") return text;
  throw unsupported(`${where}.pattern`, JSON.stringify(pattern));
}

/** Texts that `tokenizer_config.json` declares special. */
function specialNames(config: JsonObject): Set<string> {
  const names = new Set<string>();
  const add = (value: unknown) => {
    const text = contentOf(value);
    if (text !== undefined && text !== "") names.add(text);
  };
  for (const [key, value] of Object.entries(config)) {
    if (key.endsWith("_token")) add(value);
  }
  for (const key of ["additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens"]) {
    const list = config[key];
    if (typeof list === "object" && list !== null) Object.values(list).forEach(add);
  }
  const decoder = config.added_tokens_decoder;
  if (typeof decoder === "object" && decoder !== null) {
    for (const entry of Object.values(decoder)) if ((entry as JsonObject)?.special === true) add(entry);
  }
  return names;
}

/** A token named as text or as `{ "content": text }`. */
function contentOf(value: unknown): string | undefined {
  if (typeof value === "string") return value;
  if (typeof value !== "object" || value === null) return undefined;
  const content = (value as JsonObject).content;
  return typeof content === "string" ? content : undefined;
}

function idList(value: unknown): number[] {
  return (Array.isArray(value) ? value : [value]).filter(isId);
}

function isId(value: unknown): value is number {
  return typeof value === "number" && Number.isInteger(value) && value >= 0 && value < MAX_TOKENS;
}

function object(value: unknown, where: string): JsonObject {
  if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as JsonObject;
  throw malformed(where, value === undefined ? "is missing" : "is not an object");
}

function malformed(where: string, what: string): TokenizerError {
  return new TokenizerError(
    "tokenizer_malformed",
    `In tokenizer.json, ${where} ${what}. The file is damaged; fetch it again.`,
  );
}

function unsupported(where: string, what: string): TokenizerError {
  return new TokenizerError(
    "tokenizer_unsupported",
    `In tokenizer.json, ${where} has ${what}, which this tokenizer does not do. ` +
      `Gemma 3 and Gemma 4 files do not need it; use the model's original tokenizer.json.`,
  );
}
