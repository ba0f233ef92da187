/**
 * Reads the vocabulary that a GGUF file carries into a {@link Vocabulary}: ranked merges (`gemma4`), or SentencePiece
 * pieces with scores (`llama`, as Gemma 3 files have it). What this tokenizer does not do is an error that names it.
 */
import { type ByteSource, fileSource } from "../checkpoint/byte_source.ts";
import { openFile } from "../checkpoint/files.ts";
import { parseGguf } from "../checkpoint/gguf.ts";
import { type GgufMetadata, readNumbers, readTexts } from "../checkpoint/gguf_metadata.ts";
import { TokenizerError } from "../errors.ts";
import { IdSet } from "./id_set.ts";
import type { Texts } from "./texts.ts";
import type { AddedToken, Vocabulary } from "./vocabulary.ts";

/** Types of tokens, by number. */
const NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6;

/**
 * Tokens of the chat format and of media that writers mark as user-defined, so that other programs print them. Text
 * must not become one of them.
 */
const STRUCTURE = new Set([
  "<|channel>",
  "<channel|>",
  "<|tool_call>",
  "<tool_call|>",
  "<|tool_response>",
  "<tool_response|>",
  '<|"|>',
  "<start_of_turn>",
  "<end_of_turn>",
  "<start_of_image>",
  "<end_of_image>",
  "<image_soft_token>",
]);

const SPACE = "\u2581"; // how a space is spelled in tokens
const MAX_TOKENS = 1 << 22;
/** UTF-16 units of all control and user-defined tokens, each of which becomes a node to match; real files have 80,000. */
const MAX_ADDED_UNITS = 1 << 18;

/**
 * The vocabulary in `metadata`, whose long lists are read from `source`, the file that it came from. Null where the file
 * has none. Throws TokenizerError, or CheckpointError for a list of the wrong type.
 */
export function vocabularyFromGguf(metadata: GgufMetadata, source: ByteSource): Vocabulary | null {
  const key = (name: string) => `tokenizer.ggml.${name}`;
  if (!metadata.has(key("tokens"))) return null;
  const model = metadata.string(key("model"));
  if (model !== "gemma4" && model !== "llama") {
    throw unsupported(metadata, key("model"), `"${model}" (only gemma4 and llama)`);
  }
  const scored = model === "llama";
  if (metadata.boolean(key("add_space_prefix"), scored)) {
    throw unsupported(metadata, key("add_space_prefix"), "true");
  }
  const tokens = readTexts(source, metadata, key("tokens"));
  if (tokens.length === 0 || tokens.length > MAX_TOKENS) {
    throw malformed(metadata, key("tokens"), `holds ${tokens.length} tokens`);
  }
  const types = readNumbers(source, metadata, key("token_type"));
  checkTypes(metadata, key("token_type"), types, tokens);
  const scores = scored ? readNumbers(source, metadata, key("scores")) : undefined;
  if (scores !== undefined) checkScores(metadata, key("scores"), scores, tokens.length);
  // Writers spell the spaces of user-defined pieces as spaces.
  if (scored) {
    for (let id = 0; id < tokens.length; id++) {
      if (types[id] !== USER_DEFINED) continue;
      const units = tokens.units.subarray(tokens.starts[id], tokens.starts[id + 1]);
      units.forEach((unit, i) => unit === 0x20 && (units[i] = SPACE.charCodeAt(0)));
    }
  }
  const token = (name: string): number | undefined => {
    const full = key(`${name}_token_id`);
    if (!metadata.has(full)) return undefined;
    const id = metadata.integer(full);
    if (id >= tokens.length) throw malformed(metadata, full, `is ${id} of ${tokens.length} tokens`);
    return id;
  };
  const eos = token("eos");
  const pieces = new IdSet(tokens.length);
  for (let id = 0; id < tokens.length; id++) if (types[id] === NORMAL) pieces.add(id);
  const added = addedTokens(metadata, tokens, types);
  giveBack(types);
  return {
    tokens,
    merges: scored ? [] : readTexts(source, metadata, key("merges")),
    scores,
    pieces: (id) => pieces.has(id),
    added,
    unknown: token("unknown"),
    fuseUnknown: true,
    byteFallback: true,
    normalize: [{ from: " ", to: SPACE }],
    denormalize: [{ from: SPACE, to: " " }],
    bos: token("bos"),
    eos,
    stops: [...new Set([eos, token("eot"), token("eom")].filter((id) => id !== undefined))],
  };
}

/** Gives back the memory of numbers that nobody will read again: a collector would leave a megabyte where it is for long. */
export function giveBack(numbers: ArrayLike<number>): void {
  if (ArrayBuffer.isView(numbers) && numbers.buffer instanceof ArrayBuffer) numbers.buffer.transfer(0);
}

/** The vocabulary of the file at `path`, as `vocabularyFromGguf`; of a split model, its first part has it. */
export async function readGgufVocabulary(path: string): Promise<Vocabulary | null> {
  using file = await openFile(null, path);
  const source = fileSource(file);
  return vocabularyFromGguf(parseGguf(source, path, 0).metadata, source);
}

/** The chat template of the file; undefined where it has none. */
export function templateFromGguf(metadata: GgufMetadata): string | undefined {
  const key = "tokenizer.chat_template";
  return metadata.has(key) ? metadata.string(key) : undefined;
}

/** Control tokens, matched in the text as given, and user-defined ones, matched with its spaces spelled. */
function addedTokens(
  metadata: GgufMetadata,
  tokens: Texts,
  types: ArrayLike<number>,
): AddedToken[] {
  const added: AddedToken[] = [];
  let units = 0;
  for (let id = 0; id < tokens.length; id++) {
    if (types[id] !== CONTROL && types[id] !== USER_DEFINED) continue;
    const text = tokens.at(id)!;
    const control = types[id] === CONTROL || STRUCTURE.has(text);
    added.push({ id, text, control, normalized: !control });
    units += text.length;
    if (units > MAX_ADDED_UNITS) {
      throw malformed(
        metadata,
        "tokenizer.ggml.token_type",
        `makes texts of ${units} characters control tokens`,
      );
    }
  }
  return added;
}

function checkTypes(
  metadata: GgufMetadata,
  key: string,
  types: ArrayLike<number>,
  tokens: Texts,
): void {
  if (types.length !== tokens.length) {
    throw malformed(metadata, key, `holds ${types.length} types for ${tokens.length} tokens`);
  }
  const known = [NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE];
  for (let id = 0; id < types.length; id++) {
    if (!known.includes(types[id])) throw malformed(metadata, key, `gives token ${id} the type ${types[id]}`);
    if (
      tokens.starts[id] === tokens.starts[id + 1] && (types[id] === CONTROL || types[id] === USER_DEFINED)
    ) {
      throw malformed(metadata, key, `gives the empty token ${id} the type ${types[id]}`);
    }
  }
}

function checkScores(metadata: GgufMetadata, key: string, scores: ArrayLike<number>, tokens: number): void {
  if (scores.length !== tokens) {
    throw malformed(metadata, key, `holds ${scores.length} scores for ${tokens} tokens`);
  }
  for (let id = 0; id < tokens; id++) {
    if (!Number.isFinite(scores[id])) {
      throw malformed(metadata, key, `gives token ${id} the score ${scores[id]}`);
    }
  }
}

function malformed({ file }: GgufMetadata, key: string, what: string): TokenizerError {
  return new TokenizerError(
    "tokenizer_malformed",
    `In ${file}, "${key}" ${what}. The file is damaged; download or convert it again.`,
  );
}

function unsupported({ file }: GgufMetadata, key: string, what: string): TokenizerError {
  return new TokenizerError(
    "tokenizer_unsupported",
    `In ${file}, "${key}" is ${what}, which this tokenizer does not do. Gemma 3 and Gemma 4 files do not need it; ` +
      `use a conversion that keeps the model's own tokenizer.`,
  );
}
