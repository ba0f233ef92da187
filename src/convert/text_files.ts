/** Tokenizer, template and settings of a checkpoint, as files for its conversion. */
import { fileSource } from "../checkpoint/byte_source.ts";
import { listFiles, openFile, readText } from "../checkpoint/files.ts";
import { ggufSuggestions } from "../checkpoint/gguf_config.ts";
import type { Checkpoint } from "../checkpoint/open.ts";
import { CheckpointError, TokenizerError } from "../errors.ts";
import { SIDE_FILES } from "../hub/select.ts";
import { templateFromGguf, vocabularyFromGguf } from "../tokenizer/gguf.ts";
import { mergesOf } from "../tokenizer/merges.ts";
import { TokenIndex } from "../tokenizer/token_index.ts";
import { Tokenizer } from "../tokenizer/tokenizer.ts";
import type { Merge, Replacement, Vocabulary } from "../tokenizer/vocabulary.ts";

/** Files by name, and what could not be kept. */
export interface TextFiles {
  files: Map<string, string>;
  notes: string[];
}

/** All that is read beside weights but the config, which is written anew. */
const COPIED = new Set(SIDE_FILES.filter((name) => name !== "config.json"));

/** What `load` reads beside config and weights: copies, or files with what a GGUF file carries. */
export async function textFiles(checkpoint: Checkpoint): Promise<TextFiles> {
  if (checkpoint.metadata !== null) return await fromGguf(checkpoint);
  const { folder } = checkpoint;
  const files = new Map<string, string>();
  for (const name of await listFiles(folder)) {
    if (COPIED.has(name)) files.set(name, (await readText(folder, name, false))!);
  }
  const notes = files.has("tokenizer.json") ? [] : ["The original has no tokenizer.json, so this has none."];
  return { files, notes };
}

async function fromGguf({ metadata, files: [{ path }] }: Checkpoint): Promise<TextFiles> {
  const files = new Map<string, string>();
  const json = (value: unknown) => JSON.stringify(value, null, 2) + "\n";
  using file = await openFile(null, path);
  let vocabulary: Vocabulary | null;
  try {
    vocabulary = vocabularyFromGguf(metadata!, fileSource(file));
    if (vocabulary !== null) {
      new Tokenizer(vocabulary); // throws where the file would be of no use
      files.set("tokenizer.json", JSON.stringify(tokenizerJson(vocabulary)));
    }
  } catch (error) {
    if (!(error instanceof TokenizerError || error instanceof CheckpointError)) throw error;
    return { files, notes: [`The vocabulary in the file cannot be kept: ${error.message}`] };
  }
  if (vocabulary === null) {
    return { files, notes: ["The original has no vocabulary, so this has no tokenizer.json."] };
  }
  const text = (id: number | undefined) => id === undefined ? undefined : vocabulary.tokens.at(id);
  files.set(
    "tokenizer_config.json",
    json({ bos_token: text(vocabulary.bos), eos_token: text(vocabulary.eos) }),
  );
  const suggested = ggufSuggestions(metadata!);
  const generation = { bos_token_id: vocabulary.bos, eos_token_id: vocabulary.stops, ...suggested };
  files.set("generation_config.json", json(generation));
  const template = templateFromGguf(metadata!);
  if (template !== undefined) files.set("chat_template.jinja", template);
  return { files, notes: [] };
}

/**
 * A vocabulary as `tokenizer.json`. Pieces with scores become the merges that they imply. Throws `TokenizerError` for two
 * tokens of one text, which that file cannot hold.
 */
export function tokenizerJson(vocabulary: Vocabulary): Record<string, unknown> {
  const { tokens, scores, unknown, bos, byteFallback, fuseUnknown, added, normalize, denormalize } =
    vocabulary;
  const vocab = new Map<string, number>();
  let id = 0;
  for (const token of tokens) {
    if (token === "" || vocab.has(token)) {
      throw new TokenizerError(
        "tokenizer_unsupported",
        `Tokens ${vocab.get(token) ?? id} and ${id} are both ${
          JSON.stringify(token)
        }, which tokenizer.json cannot hold.`,
      );
    }
    vocab.set(token, id++);
  }
  const merges: Merge[] = scores === undefined ? [...vocabulary.merges] : [];
  if (scores !== undefined) {
    mergesOf(vocabulary, new TokenIndex(tokens), (left, right) => {
      merges.push([tokens.at(left)!, tokens.at(right)!]);
    });
  }
  const replace = ({ from, to }: Replacement) => ({
    type: "Replace",
    pattern: { String: from },
    content: to,
  });
  return {
    version: "1.0",
    truncation: null,
    padding: null,
    added_tokens: added.map(({ id, text, control, normalized }) => ({
      id,
      content: text,
      single_word: false,
      lstrip: false,
      rstrip: false,
      normalized,
      special: control,
    })),
    normalizer: { type: "Sequence", normalizers: normalize.map(replace) },
    pre_tokenizer: null,
    post_processor: bos === undefined ? null : beginningWith(tokens.at(bos)!, bos),
    decoder: {
      type: "Sequence",
      decoders: [...denormalize.map(replace), ...(byteFallback ? [{ type: "ByteFallback" }] : []), {
        type: "Fuse",
      }],
    },
    model: {
      type: "BPE",
      dropout: null,
      unk_token: unknown === undefined ? null : tokens.at(unknown),
      continuing_subword_prefix: null,
      end_of_word_suffix: null,
      fuse_unk: fuseUnknown,
      byte_fallback: byteFallback,
      vocab: Object.fromEntries(vocab),
      merges,
    },
  };
}

/** Puts a token before every text. */
function beginningWith(text: string, id: number): object {
  const token = { SpecialToken: { id: text, type_id: 0 } };
  const sequence = (name: string, type: number) => ({ Sequence: { id: name, type_id: type } });
  return {
    type: "TemplateProcessing",
    single: [token, sequence("A", 0)],
    pair: [token, sequence("A", 0), { SpecialToken: { id: text, type_id: 1 } }, sequence("B", 1)],
    special_tokens: { [text]: { id: text, ids: [id], tokens: [text] } },
  };
}
