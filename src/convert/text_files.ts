/** Tokenizer, template and settings of a checkpoint, as files for its conversion. */
import { listFiles, readText } from "../checkpoint/files.ts";
import type { Checkpoint } from "../checkpoint/open.ts";

/** Files by name, and what could not be kept. */
export interface TextFiles {
  files: Map<string, string>;
  notes: string[];
}

const COPIED =
  /^(tokenizer\.json|tokenizer_config\.json|special_tokens_map\.json|added_tokens\.json|chat_template\.(jinja|json)|generation_config\.json|(video_)?(pre)?processor_config\.json|preprocessor_config\.json)$/;

/** What `load` reads beside config and weights. */
export async function textFiles({ folder, metadata }: Checkpoint): Promise<TextFiles> {
  const files = new Map<string, string>();
  if (metadata !== null) return { files, notes: ["no tokenizer"] };
  for (const name of await listFiles(folder)) {
    if (COPIED.test(name)) files.set(name, (await readText(folder, name, false))!);
  }
  const notes = files.has("tokenizer.json") ? [] : ["The original has no tokenizer.json, so this has none."];
  return { files, notes };
}
