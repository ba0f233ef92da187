/** Tokenizer and chat template of a checkpoint, where it has them. */
import { ChatTemplate, chatTemplateSource } from "../chat/template.ts";
import { readText } from "../checkpoint/files.ts";
import type { Checkpoint } from "../checkpoint/open.ts";
import { CheckpointError, TokenizerError } from "../errors.ts";
import { parseJsonObject } from "../tokenizer/files.ts";
import { templateFromGguf } from "../tokenizer/gguf.ts";
import { loadGgufTokenizer, loadTokenizer, type Tokenizer } from "../tokenizer/tokenizer.ts";
import type { Warning } from "../warning.ts";

/** What a model needs to take and give text. */
export interface TextParts {
  /** Undefined where the checkpoint has none that can be used. */
  tokenizer: Tokenizer | undefined;
  /** Undefined where the checkpoint has none. */
  template: ChatTemplate | undefined;
  /** Why there is no tokenizer although the checkpoint has one. */
  textError: TokenizerError | undefined;
  /** Says the same. */
  textWarnings: Warning[];
}

/**
 * Reads `tokenizer.json` and the template beside it, or what a GGUF file carries. Rejects for damaged tokenizer files; a
 * vocabulary inside the weights' own file that cannot be used leaves a model that takes token ids, and a warning.
 */
export async function openText(checkpoint: Checkpoint, signal: AbortSignal | undefined): Promise<TextParts> {
  const none = { tokenizer: undefined, template: undefined, textError: undefined, textWarnings: [] };
  if (checkpoint.metadata !== null) {
    let tokenizer: Tokenizer | undefined;
    try {
      tokenizer = await embeddedTokenizer(checkpoint);
    } catch (error) {
      if (!(error instanceof TokenizerError || error instanceof CheckpointError)) throw error;
      const message = `The vocabulary in the file cannot be used: ${error.message}`;
      const textError = new TokenizerError("tokenizer_unusable", message, { cause: error });
      return { ...none, textError, textWarnings: [{ code: "tokenizer_unusable", message }] };
    }
    if (tokenizer === undefined) return none;
    return { ...none, tokenizer, template: templateOf(templateFromGguf(checkpoint.metadata), tokenizer) };
  }
  const { folder } = checkpoint;
  let tokenizer: Tokenizer;
  try {
    tokenizer = await loadTokenizer(folder, { signal });
  } catch (error) {
    if (error instanceof TokenizerError && error.code === "tokenizer_missing") return none;
    throw error;
  }
  const [jinja, json, config] = await Promise.all(
    ["chat_template.jinja", "chat_template.json", "tokenizer_config.json"].map((name) =>
      readText(folder, name, true)
    ),
  );
  const source = chatTemplateSource({
    jinja: jinja ?? undefined,
    tokenizerConfig: json !== null
      ? parseJsonObject(json, "chat_template.json")
      : config !== null
      ? parseJsonObject(config, "tokenizer_config.json")
      : undefined,
  });
  return { ...none, tokenizer, template: templateOf(source, tokenizer) };
}

async function embeddedTokenizer({ files }: Checkpoint): Promise<Tokenizer | undefined> {
  return await loadGgufTokenizer(files[0].path) ?? undefined;
}

function templateOf(source: string | undefined, tokenizer: Tokenizer): ChatTemplate | undefined {
  if (source === undefined) return undefined;
  const nameOf = (id: number | undefined) => id === undefined ? undefined : tokenizer.token(id);
  return new ChatTemplate(source, {
    controlTokens: tokenizer.controlTokens,
    bosToken: nameOf(tokenizer.bos),
    eosToken: nameOf(tokenizer.eos),
  });
}
