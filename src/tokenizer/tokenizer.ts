/** Text to token ids and back, as the checkpoint's own tokenizer file says. */
import { pathOfFileUrl } from "../file_url.ts";
import { checkNames, describe, flag, signalOf } from "../arguments.ts";
import { InvalidArgument, TokenizerError } from "../errors.ts";
import { AddedMatcher } from "./added.ts";
import { Bpe } from "./bpe.ts";
import { parseJsonObject, readTokenizerFile } from "./files.ts";
import { vocabularyFromJson } from "./json.ts";
import { giveBack, readGgufVocabulary } from "./gguf.ts";
import type { IdSet } from "./id_set.ts";
import { TokenStream, Utf8Assembler } from "./stream.ts";
import { TokenIndex } from "./token_index.ts";
import { byteOfToken, controlIdsOf, replaceAll, type Replacement, type Vocabulary } from "./vocabulary.ts";

/** How to encode. */
export interface EncodeOptions {
  /**
   * Recognise control tokens in the text. By default they are not, so that text from a user can never become
   * one.
   */
  special?: boolean;
}

/** How to decode. */
export interface DecodeOptions {
  /** Leave control tokens out of the text. */
  skipSpecial?: boolean;
}

/** A part of a prompt: text that cannot become a control token, or one control token by text or id. */
export type Segment = { readonly text: string } | { readonly control: number | string };

/** How to load a tokenizer. */
export interface LoadTokenizerOptions {
  /** Cancels the load; it then rejects with the signal's reason. */
  signal?: AbortSignal;
}

/** Ids whose pieces are kept: text uses few of them over and over. */
const MAX_PIECES = 1 << 12;

/** Added tokens in the two forms that they are looked for. */
interface Matchers {
  readonly given: AddedMatcher;
  readonly normalized: AddedMatcher;
}

/** A byte-pair tokenizer over one {@link Vocabulary}; immutable, safe to share. */
export class Tokenizer {
  /** Number of ids; every id below it is a token. */
  readonly vocabularySize: number;
  /** The token that begins a sequence. `encode` does not add it. */
  readonly bos: number | undefined;
  /** The token that ends a sequence. */
  readonly eos: number | undefined;
  /** Every id after which generation stops: the union of all that the tokenizer's files name. */
  readonly stops: ReadonlySet<number>;
  /** Text → id of each control token. */
  readonly controlTokens: ReadonlyMap<string, number>;

  readonly #normalize: readonly Replacement[];
  readonly #denormalize: readonly Replacement[];
  readonly #byteFallback: boolean;
  readonly #index: TokenIndex;
  readonly #pieces = new Map<number, number | string>(); // what lately decoded ids add to the text
  readonly #controlIds: IdSet;
  readonly #bpe: Bpe;
  readonly #plain: Matchers; // ordinary added tokens
  readonly #special: Matchers; // these and the control tokens

  /** Throws TokenizerError when the vocabulary contradicts itself. */
  constructor(vocabulary: Vocabulary) {
    const { tokens, added } = vocabulary;
    // Neither list is kept: texts are in the index, and of the merges encoding needs only the table made of them.
    this.#normalize = vocabulary.normalize;
    this.#denormalize = vocabulary.denormalize;
    this.#byteFallback = vocabulary.byteFallback;
    this.vocabularySize = tokens.length;
    this.bos = vocabulary.bos;
    this.eos = vocabulary.eos;
    this.stops = new Set(vocabulary.stops);

    for (const { id, text } of added) {
      if (text !== "" && id >= 0 && tokens.at(id) === text) continue;
      throw new TokenizerError(
        "added_token_mismatch",
        `Added token ${JSON.stringify(text)} claims id ${id}, which is ${
          JSON.stringify(id < 0 ? undefined : tokens.at(id))
        }. ` +
          `The tokenizer file is damaged; fetch it again.`,
      );
    }
    this.#index = new TokenIndex(tokens);
    const controlTokens = new Map<string, number>();
    for (const { id, text, control } of added) if (control) controlTokens.set(text, id);
    this.controlTokens = controlTokens;
    this.#controlIds = controlIdsOf(vocabulary);
    this.#bpe = new Bpe(vocabulary, this.#index);
    this.#plain = matchers(vocabulary, false);
    this.#special = matchers(vocabulary, true);
  }

  /**
   * Token ids of a text, without a BOS. Lone surrogates count as U+FFFD. Without `special`, no id in the result is
   * a control token, except the unknown token of a vocabulary that cannot spell some character at all.
   */
  encode(text: string, options: EncodeOptions = {}): number[] {
    const special = flagOf(options, "special");
    if (typeof text !== "string") {
      throw new InvalidArgument(`The text to encode is ${describe(text)}; pass a string.`);
    }
    const ids: number[] = [];
    this.#encodeInto(text, special ? this.#special : this.#plain, ids);
    return ids;
  }

  /**
   * Ids of a prompt made of text and control tokens. Adjacent texts are encoded as one, so the ids do not depend on
   * where text was cut. Throws TokenizerError for a control token that this vocabulary does not have.
   */
  encodeSegments(segments: readonly Segment[]): number[] {
    const ids: number[] = [];
    let text = "";
    for (const segment of segments) {
      if ("text" in segment) {
        text += segment.text;
        continue;
      }
      this.#encodeInto(text, this.#plain, ids);
      text = "";
      ids.push(this.#controlId(segment.control));
    }
    this.#encodeInto(text, this.#plain, ids);
    return ids;
  }

  /**
   * Text of ids. Bytes that make no valid UTF-8 become U+FFFD, one for each byte. Throws TokenizerError for an id
   * outside the vocabulary.
   */
  decode(ids: Iterable<number>, options: DecodeOptions = {}): string {
    const skipSpecial = flagOf(options, "skipSpecial");
    if (typeof ids !== "object" || ids === null || !(Symbol.iterator in ids)) {
      throw new InvalidArgument(`The ids to decode are ${describe(ids)}; pass a list of token ids.`);
    }
    const bytes = new Utf8Assembler();
    const texts: string[] = [];
    for (const id of ids) {
      const piece = this.#pieceOf(id, skipSpecial);
      if (piece === undefined) continue;
      texts.push(typeof piece === "number" ? bytes.push(piece) : bytes.flush() + piece);
    }
    texts.push(bytes.flush());
    return texts.join("");
  }

  /** A decoder for ids that arrive one by one. */
  stream(options: DecodeOptions = {}): TokenStream {
    const skipSpecial = flagOf(options, "skipSpecial");
    return new TokenStream((id) => this.#pieceOf(id, skipSpecial));
  }

  /** Id of the token with exactly this raw text, control tokens included. */
  id(token: string): number | undefined {
    const id = this.#index.find(token);
    return id < 0 ? undefined : id;
  }

  /** Raw text of a token (`▁` for a space, `<0x0A>` for a byte). Throws TokenizerError for an id outside the vocabulary. */
  token(id: number): string {
    const text = typeof id === "number" && Number.isInteger(id) ? this.#index.texts.at(id) : undefined;
    if (text !== undefined) return text;
    throw new TokenizerError(
      "unknown_id",
      `Token id ${describe(id)} is outside the vocabulary of ${this.vocabularySize} tokens. ` +
        `Use ids that this tokenizer or its model made.`,
    );
  }

  /** Whether an id is a control token, such as a turn marker or a media placeholder. */
  isControl(id: number): boolean {
    return Number.isInteger(id) && id >= 0 && id < this.vocabularySize && this.#controlIds.has(id);
  }

  #encodeInto(text: string, matchers: Matchers, ids: number[]): void {
    if (text === "") return;
    const push = (id: number) => {
      ids.push(id);
    };
    const merge = (part: string) => this.#bpe.encode(part, ids);
    matchers.given.split(text.toWellFormed(), (part) => {
      matchers.normalized.split(replaceAll(part, this.#normalize), merge, push);
    }, push);
  }

  #controlId(control: number | string): number {
    const id = typeof control === "string" ? this.controlTokens.get(control) : control;
    if (id !== undefined && this.isControl(id)) return id;
    throw new TokenizerError(
      "not_control",
      `${JSON.stringify(control)} is not a control token of this vocabulary. ` +
        `Use one of controlTokens, or pass it as text.`,
    );
  }

  /** What an id adds to the text: a byte of a character, text, or nothing. */
  #pieceOf(id: number, skipSpecial: boolean): number | string | undefined {
    const control = this.isControl(id);
    if (control && skipSpecial) return undefined;
    let piece = this.#pieces.get(id);
    if (piece === undefined) {
      const text = this.token(id);
      const byte = !control && this.#byteFallback ? byteOfToken(text) : undefined;
      piece = byte ?? replaceAll(text, this.#denormalize);
      if (this.#pieces.size === MAX_PIECES) this.#pieces.clear();
      this.#pieces.set(id, piece);
    }
    return piece;
  }
}

/** The one option that a call has. Throws InvalidArgument, or UnknownOption for any other. */
function flagOf<K extends string>(options: { [name in K]?: boolean }, name: K): boolean {
  checkNames(options, [name]);
  return flag(name, options[name]) ?? false;
}

function matchers({ added, normalize }: Vocabulary, withControl: boolean): Matchers {
  const matchers = { given: new AddedMatcher(), normalized: new AddedMatcher() };
  for (const { id, text, control, normalized } of added) {
    if (control && !withControl) continue;
    if (!normalized) {
      matchers.given.add(text, id);
      continue;
    }
    const spelled = replaceAll(text, normalize);
    if (spelled !== "") matchers.normalized.add(spelled, id);
  }
  return matchers;
}

/**
 * A tokenizer from the contents of `tokenizer.json`: bytes, text or parsed. `config` is the parsed
 * `tokenizer_config.json`, `generation` the parsed `generation_config.json`. Throws TokenizerError.
 */
export function parseTokenizer(
  json: Uint8Array | string | object,
  config?: object,
  generation?: object,
): Tokenizer {
  const raw = typeof json === "string" || json instanceof Uint8Array;
  const parsed = raw ? parseJsonObject(json, "tokenizer.json") : json;
  return new Tokenizer(vocabularyFromJson(parsed, config, generation));
}

/**
 * The tokenizer inside a `.gguf` file; of a split model, its first part has it. Null where the file has none. Throws as
 * `loadTokenizer`.
 */
export async function loadGgufTokenizer(path: string): Promise<Tokenizer | null> {
  const vocabulary = await readGgufVocabulary(path);
  if (vocabulary === null) return null;
  const tokenizer = new Tokenizer(vocabulary);
  if (vocabulary.scores !== undefined) giveBack(vocabulary.scores);
  return tokenizer;
}

/**
 * The tokenizer in a folder, given as a path or as a `file:`, `http:` or `https:` URL, or inside a `.gguf` file of this
 * machine. Of a folder it reads `tokenizer.json` and, where present, `tokenizer_config.json` and
 * `generation_config.json`. Throws TokenizerError for missing and malformed files (CheckpointError for a damaged GGUF file),
 * MissingPermission when Deno forbids reading them.
 *
 * ```ts
 * const tokenizer = await loadTokenizer("examples/tiny");
 * tokenizer.decode(tokenizer.encode("What is 2 + 3?")); // "What is 2 + 3?"
 * ```
 */
export async function loadTokenizer(
  folder: string | URL,
  options: LoadTokenizerOptions = {},
): Promise<Tokenizer> {
  if (!(folder instanceof URL) && (typeof folder !== "string" || folder === "")) {
    throw new InvalidArgument(`The folder of a tokenizer is ${describe(folder)}; pass its path or URL.`);
  }
  checkNames(options, ["signal"]);
  const signal = signalOf(options.signal);
  const file = folder instanceof URL && folder.protocol === "file:" ? pathOfFileUrl(folder) : folder;
  if (
    typeof file === "string" && file.endsWith(".gguf") && (await Deno.stat(file).catch(() => null))?.isFile
  ) {
    const tokenizer = await loadGgufTokenizer(file);
    if (tokenizer !== null) return tokenizer;
    throw new TokenizerError(
      "tokenizer_missing",
      `${file} carries no vocabulary. Use the one of the model's folder.`,
    );
  }
  const [json, config, generation] = await Promise.all(
    ["tokenizer.json", "tokenizer_config.json", "generation_config.json"].map(async (name) => {
      const bytes = await readTokenizerFile(folder, name, signal);
      return bytes && parseJsonObject(bytes, name);
    }),
  );
  if (json === undefined) {
    throw new TokenizerError(
      "tokenizer_missing",
      `There is no tokenizer.json in ${folder}. Download it from the model's page into that folder.`,
    );
  }
  return parseTokenizer(json, config, generation);
}
