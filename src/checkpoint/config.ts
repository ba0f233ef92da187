/**
 * `ModelConfig`: a model's architecture as data. Everything that a schedule must know is here, spelled out for each
 * layer; nothing else in the project reads `config.json`.
 */
import { CheckpointError } from "../errors.ts";
import { type AudioConfig, parseAudio, parseVision, type VisionConfig } from "./config_media.ts";
import { parseGemma3Layers } from "./config_gemma3.ts";
import { parseLayers } from "./config_layers.ts";
import { Fields } from "./fields.ts";
import { parseSampling, type SuggestedSampling, suppressedTokens } from "./generation_config.ts";
import { parseQuantization, type Quantization } from "./quantization.ts";

/** Rotary position embedding of one layer: pair i is lanes (i, i + headDim / 2). */
export interface RopeConfig {
  /** Base of the frequencies. */
  theta: number;
  /** Pairs i < rotatedPairs turn by `position / factor * theta^(-2i / headDim)`; the others are left alone. */
  rotatedPairs: number;
  /** Positions are divided by this; 1 in all of Gemma 4, 8 in the full layers of the larger Gemma 3 models. */
  factor: number;
}

/** Routed experts of one layer, beside its dense MLP. */
export interface ExpertsConfig {
  /** Experts of this layer. */
  count: number;
  /** Experts per token. */
  topK: number;
  /** Width of one expert's MLP. */
  width: number;
}

/** One layer of the text network. */
export interface LayerConfig {
  /** Position in the stack, from 0. */
  index: number;
  /** `sliding` attends within a window, `full` to all earlier keys. */
  kind: "sliding" | "full";
  /** Lanes per head. */
  headDim: number;
  /** Query heads. */
  heads: number;
  /** Key and value heads; query head j reads KV head `j / (heads / kvHeads)`. */
  kvHeads: number;
  /** Keys that a query sees, itself included; null for all. */
  window: number | null;
  /** Values are the raw key projection; the layer has no value projection. */
  keysAreValues: boolean;
  /**
   * Layer whose keys and values this one reads, its own index if it owns them; -1 in a drafter, which reads those
   * of its target's last owner of the same kind.
   */
  kvOwner: number;
  /** Width of the dense MLP. */
  mlpWidth: number;
  /** Rotary embedding of queries and keys. */
  rope: RopeConfig;
  /** Null without routed experts. */
  experts: ExpertsConfig | null;
  /**
   * What a query inside an image or video block sees of its own block beside earlier keys: nothing more (`causal`),
   * the part inside the window (`window`), or the whole block (`whole`).
   */
  mediaBlock: "causal" | "window" | "whole";
}

/** Token ids with a role. */
export interface TokenRoles {
  /** Put before a text; null for none. */
  bos: number | null;
  /** Every id that ends a reply: the union of all sources, ascending. */
  eos: number[];
  /** Never drawn, unless `logitBias` names them. */
  suppressed: number[];
  /** Stands in embedding lookups for media positions. */
  pad: number;
  /** Placeholder of one image soft token. */
  image: number | null;
  /** Placeholder of one audio soft token. */
  audio: number | null;
  /** Placeholder of one video soft token. */
  video: number | null;
  /** Opens an image or a video frame. */
  beginImage: number | null;
  /** Closes it. */
  endImage: number | null;
  /** Opens a sound. */
  beginAudio: number | null;
  /** Closes it. */
  endAudio: number | null;
}

/** What a drafter adds to the text network. */
export interface DrafterConfig {
  /** Hidden size of the target model. */
  backboneHiddenSize: number;
  /** Centroid-masked head: tokens of the best `topK` of `count` centroids get exact logits. Null for a plain head. */
  centroids: { count: number; topK: number } | null;
}

/** A checked architecture. Sizes are in elements. */
export interface ModelConfig {
  /** Family, the same for every source format. */
  architecture: "gemma3" | "gemma4";
  /** The file's own word. */
  modelType: string;
  /** V: rows of the embedding table. */
  vocabularySize: number;
  /** H: width of the residual stream. */
  hiddenSize: number;
  /** Every layer of the text network in order. */
  layers: LayerConfig[];
  /** P: width of the per-layer input of each layer; 0 without per-layer embeddings. */
  perLayerInputSize: number;
  /** Rows of the per-layer embedding table; 0 without. */
  perLayerVocabularySize: number;
  /** Added to the mean square inside the root. */
  rmsNormEps: number;
  /** Added to each stored norm weight; 0 in Gemma 4 and in GGUF files, 1 in Gemma 3. */
  normWeightOffset: number;
  /** Factor of the attention scores; 1 in Gemma 4. */
  attentionScale: number;
  /** Values are RMS-normalised for each head, without a weight: in Gemma 4. */
  valueNorm: boolean;
  /** Each layer ends with a factor of the residual stream: in Gemma 4. */
  layerScalar: boolean;
  /** Logits become `c * tanh(x / c)`. */
  finalLogitSoftcap: number | null;
  /** The exact root of the hidden size. */
  embeddingScale: number;
  /** The LM head is the embedding table. */
  tiedEmbeddings: boolean;
  /** Projections may have bias tensors. */
  attentionBias: boolean;
  /** Positions that the model was made for. */
  contextLength: number;
  /** Whether image and video blocks are attended in both directions. */
  bidirectional: "none" | "vision";
  /** Token ids with a role. */
  tokens: TokenRoles;
  /** What the makers suggest for sampling. */
  sampling: SuggestedSampling;
  /** Quantisation of the weights; null in unquantised checkpoints. */
  quantization: Quantization | null;
  /** How pictures become soft tokens; null if the model cannot see. */
  vision: VisionConfig | null;
  /** How sound becomes soft tokens; null if the model cannot hear. */
  audio: AudioConfig | null;
  /** Set if the model is a drafter for another one. */
  drafter: DrafterConfig | null;
}

/** Values of `model_type` that `parseConfig` takes. */
const SUPPORTED_MODEL_TYPES: readonly string[] = [
  "gemma3",
  "gemma3_text",
  "gemma4",
  "gemma4_text",
  "gemma4_unified",
  "gemma4_unified_text",
  "gemma4_assistant",
  "gemma4_unified_assistant",
];

/**
 * Turns the JSON of a `config.json` (and that of a `generation_config.json`, or null) into a checked `ModelConfig`.
 * Both spellings of per-layer values are read. `file` names the source in errors. Throws `CheckpointError` with code
 * `unknown_model_type` or `invalid_config` that names the key and the value.
 */
export function parseConfig(
  configJson: unknown,
  generationJson: unknown = null,
  file: string = "config.json",
): ModelConfig {
  const top = Fields.of(configJson, "", file);
  const generation = Fields.of(
    generationJson ?? {},
    "",
    file === "config.json" ? "generation_config.json" : file,
  );
  const modelType = top.get("model_type");
  if (typeof modelType !== "string" || !SUPPORTED_MODEL_TYPES.includes(modelType)) {
    const named = modelType === undefined
      ? `${file} names no model_type`
      : `Model type ${JSON.stringify(modelType)} is not supported`;
    throw new CheckpointError(
      "unknown_model_type",
      `${named}. Supported: ${SUPPORTED_MODEL_TYPES.join(", ")}.`,
    );
  }
  const isGemma3 = modelType.startsWith("gemma3");
  const unified = modelType.startsWith("gemma4_unified");
  const isDrafter = modelType.endsWith("_assistant");
  const text = modelType.endsWith("_text") ? top : top.object("text_config");
  if (text === null) throw top.wrong("text_config", "a JSON object");

  const vocabularySize = text.integer("vocab_size", { or: isGemma3 ? 262_208 : 262_144 });
  const hiddenSize = text.integer("hidden_size", { or: 2304 });
  const perLayerInputSize = isGemma3 ? 0 : readPerLayerInputSize(text, unified, isDrafter);
  text.oneOf("hidden_activation", ["gelu_pytorch_tanh"], "gelu_pytorch_tanh");
  const softcap = (text.get("final_logit_softcapping") ?? 0) === 0
    ? null
    : text.positive("final_logit_softcapping");
  const bidirectional = isGemma3 ? causalOnly(text) : readBidirectional(text, unified && !isDrafter);
  const tied = text.boolean("tie_word_embeddings", true);
  return {
    architecture: isGemma3 ? "gemma3" : "gemma4",
    modelType,
    vocabularySize,
    hiddenSize,
    layers: isGemma3 ? parseGemma3Layers(text) : parseLayers(text, { unified, isDrafter, bidirectional }),
    perLayerInputSize,
    perLayerVocabularySize: perLayerInputSize === 0
      ? 0
      : text.integer("vocab_size_per_layer_input", { or: 262_144 }),
    rmsNormEps: text.positive("rms_norm_eps", 1e-6),
    normWeightOffset: isGemma3 ? 1 : 0,
    attentionScale: isGemma3 ? text.positive("query_pre_attn_scalar", 256) ** -0.5 : 1,
    valueNorm: !isGemma3,
    layerScalar: !isGemma3,
    finalLogitSoftcap: softcap,
    embeddingScale: Math.sqrt(hiddenSize),
    tiedEmbeddings: top.boolean("tie_word_embeddings", tied),
    attentionBias: text.boolean("attention_bias", false),
    contextLength: text.integer("max_position_embeddings", { or: unified ? 262_144 : 131_072 }),
    bidirectional,
    tokens: parseTokens(top, text, generation, vocabularySize),
    sampling: parseSampling(generation),
    quantization: parseQuantization(top),
    vision: isDrafter || isGemma3 ? null : parseVision(top),
    audio: isDrafter || isGemma3 ? null : parseAudio(top),
    drafter: isDrafter ? parseDrafter(top, vocabularySize) : null,
  };
}

function readBidirectional(text: Fields, vision: boolean): ModelConfig["bidirectional"] {
  const key = "use_bidirectional_attention";
  return text.isNull(key) ? "none" : text.oneOf(key, ["none", "vision"], vision ? "vision" : "none");
}

/** Gemma 3 generates text: an embedding model, which sees both ways, and soft caps of its predecessor are refused. */
function causalOnly(text: Fields): "none" {
  if (text.boolean("use_bidirectional_attention", false)) {
    throw text.wrong("use_bidirectional_attention", "false: only models that generate text can be run");
  }
  if (text.has("attn_logit_softcapping")) {
    throw text.wrong("attn_logit_softcapping", "null in this model type");
  }
  return "none";
}

function readPerLayerInputSize(text: Fields, unified: boolean, isDrafter: boolean): number {
  const key = "hidden_size_per_layer_input";
  // The unified class and drafters have no per-layer embeddings; null means none too.
  const none = unified || isDrafter || text.isNull(key);
  const size = text.integer(key, { min: 0, or: none ? 0 : 256 });
  if (size !== 0 && none) throw text.wrong(key, "0 or absent in this model type");
  return size;
}

function parseDrafter(top: Fields, vocabularySize: number): DrafterConfig {
  const backboneHiddenSize = top.integer("backbone_hidden_size", { or: 1536 });
  if (!top.boolean("use_ordered_embeddings", false)) return { backboneHiddenSize, centroids: null };
  const count = top.integer("num_centroids", { or: 2048 });
  if (vocabularySize % count !== 0) {
    throw top.wrong("num_centroids", `a divisor of the vocabulary size ${vocabularySize}`);
  }
  const topK = top.integer("centroid_intermediate_top_k", { max: count, or: Math.min(32, count) });
  return { backboneHiddenSize, centroids: { count, topK } };
}

function parseTokens(top: Fields, text: Fields, generation: Fields, vocabularySize: number): TokenRoles {
  const sources = [top, text, generation];
  const nested = top.object("generation_config");
  if (nested !== null) sources.push(nested);
  const eos = new Set(sources.flatMap((source) => source.tokens("eos_token_id", vocabularySize)));
  if (eos.size === 0) eos.add(1);
  const role = (key: string) => top.token(key, vocabularySize);
  return {
    bos: text.isNull("bos_token_id") ? null : text.token("bos_token_id", vocabularySize) ?? 2,
    eos: [...eos].sort((a, b) => a - b),
    suppressed: suppressedTokens(generation, vocabularySize),
    pad: text.token("pad_token_id", vocabularySize) ?? 0,
    image: role("image_token_id"),
    audio: role("audio_token_id"),
    video: role("video_token_id"),
    beginImage: role("boi_token_id"),
    endImage: role("eoi_token_id"),
    beginAudio: role("boa_token_id"),
    endAudio: role("eoa_token_id") ?? role("eoa_token_index"),
  };
}
