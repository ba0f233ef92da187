/**
 * markbase runs the Gemma 4 family of language models from Deno.
 *
 * ```ts
 * import { load } from "./mod.ts";
 * using model = await load("tiny");
 * for await (const part of model.stream([{ role: "user", content: "What is 27 + 45?" }])) {
 *   if (part.type === "text") console.log(part.text);
 * }
 * ```
 * @module
 */
export { explain, load } from "./src/engine/load.ts";
export { loadTokenizer, Tokenizer } from "./src/tokenizer/tokenizer.ts";
export type * from "./src/engine/api.ts";
export type {
  DecodeOptions,
  EncodeOptions,
  LoadTokenizerOptions,
  Segment,
} from "./src/tokenizer/tokenizer.ts";
export type * from "./src/checkpoint/config.ts";
export * from "./src/errors.ts";
