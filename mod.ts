/**
 * markbase runs the Gemma 4 family of models, and the text of Gemma 3, from Deno.
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
export * from "./src/errors.ts";

export type * from "./src/engine/api.ts";
export type {
  DecodeOptions,
  EncodeOptions,
  LoadTokenizerOptions,
  Segment,
} from "./src/tokenizer/tokenizer.ts";
export type { TokenStream } from "./src/tokenizer/stream.ts";
export type { AddedToken, Merge, Replacement, Vocabulary } from "./src/tokenizer/vocabulary.ts";
export type { TextList } from "./src/tokenizer/texts.ts";
export type { OpenAIToolCall } from "./src/chat/messages.ts";
export type {
  DrafterConfig,
  ExpertsConfig,
  LayerConfig,
  ModelConfig,
  RopeConfig,
  TokenRoles,
} from "./src/checkpoint/config.ts";
export type { SuggestedSampling } from "./src/checkpoint/generation_config.ts";
export type {
  AudioConfig,
  AudioFramesConfig,
  AudioTowerConfig,
  VisionConfig,
  VisionPatchesConfig,
  VisionTowerConfig,
} from "./src/checkpoint/config_media.ts";
export type {
  AudioInput,
  ImageInput,
  MediaSource,
  RawPixels,
  RawSamples,
  VideoFrames,
  VideoInput,
} from "./src/media/inputs.ts";
export type { Quantization } from "./src/checkpoint/quantization.ts";
export type { GgufType } from "./src/checkpoint/gguf_types.ts";
export type { AffineBits, AffineGroupSize, Format } from "./src/checkpoint/tensor.ts";
export type { OpCost } from "./src/schedule/cost.ts";
export type { ExplainedLayer, ExplainedOp } from "./src/schedule/explain.ts";
export type { Machine } from "./src/schedule/machines.ts";
