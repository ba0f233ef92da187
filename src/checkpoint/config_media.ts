/** Vision and audio parts of a config: either an encoder ("tower") or a bare projection of patches or samples. */
import type { Fields } from "./fields.ts";

/** Vision encoder of the `gemma4` class. */
export interface VisionTowerConfig {
  /** An encoder. */
  kind: "tower";
  /** Width of the residual stream. */
  hiddenSize: number;
  /** Layers of the encoder. */
  layers: number;
  /** Query heads. */
  heads: number;
  /** Key and value heads. */
  kvHeads: number;
  /** Lanes per head. */
  headDim: number;
  /** Width of the gated MLP. */
  mlpWidth: number;
  /** Pixels along one side of a patch. */
  patchSize: number;
  /** Patches along one side of the square that becomes one soft token. */
  poolingKernelSize: number;
  /** Rows of the position table of each axis. */
  positionRows: number;
  /** Added to the mean square inside the root. */
  rmsNormEps: number;
  /** Base of the two-axis rotary frequencies. */
  ropeTheta: number;
  /** Soft tokens are shifted and scaled by stored vectors. */
  standardize: boolean;
  /** Linears clamp their inputs and outputs to stored bounds. */
  clippedLinears: boolean;
  /** Soft tokens per image unless the caller says otherwise; null if the file does not say. */
  softTokens: number | null;
}

/** Encoder-free vision of the `gemma4_unified` class. */
export interface VisionPatchesConfig {
  /** A bare projection of merged patches. */
  kind: "patches";
  /** Width of the patch embedding. */
  embedDim: number;
  /** Rows of the position table. */
  positionRows: number;
  /** Width that goes into the projection to the hidden size. */
  outputDim: number;
  /** Pixels along one side of a patch. */
  patchSize: number;
  /** Patches along one side of the square that becomes one soft token. */
  poolingKernelSize: number;
  /** Of the norm before the last projection. */
  rmsNormEps: number;
}

/** How pictures become soft tokens. */
export type VisionConfig = VisionTowerConfig | VisionPatchesConfig;

/** Conformer of the `gemma4` class. */
export interface AudioTowerConfig {
  /** An encoder. */
  kind: "tower";
  /** Width of the residual stream. */
  hiddenSize: number;
  /** Layers of the encoder. */
  layers: number;
  /** Attention heads. */
  heads: number;
  /** Frames that the depthwise convolution sees, the current one included. */
  convKernelSize: number;
  /** Weight of each feed-forward residual. */
  residualWeight: number;
  /** Queries per attention block. */
  chunkSize: number;
  /** Keys to the left of a query, itself included, plus one. */
  contextLeft: number;
  /** Keys to the right of a query, plus one. */
  contextRight: number;
  /** Scores become `c * tanh(x / c)`. */
  logitCap: number;
  /** Channels of the two subsampling convolutions. */
  subsamplingChannels: [number, number];
  /** Width that goes into the projection to the hidden size. */
  outputDim: number;
  /** Of the convolution norms. */
  rmsNormEps: number;
  /** Linears clamp their inputs and outputs to stored bounds. */
  clippedLinears: boolean;
}

/** Encoder-free audio of the `gemma4_unified` class. */
export interface AudioFramesConfig {
  /** A bare projection of raw samples. */
  kind: "frames";
  /** Samples per soft token. */
  frameSize: number;
  /** Of the norm before the projection. */
  rmsNormEps: number;
}

/** How sound becomes soft tokens. */
export type AudioConfig = AudioTowerConfig | AudioFramesConfig;

/** The reference clamps states at the audio config's `gradient_clipping`, which no state comes near; below this some might. */
const LEAST_CLIPPING = 1e6;
/** What the towers' attention ops take: sizes of a head, and keys to either side of a frame of sound. */
const MOST_HEAD = { vision: 256, audio: 512 } as const;
const MOST_CONTEXT = 4096;

/** Reads `vision_config`; null without one. Throws `CheckpointError` that names the key and the value. */
export function parseVision(top: Fields): VisionConfig | null {
  const vision = top.object("vision_config");
  if (vision === null) return null;
  const type = vision.oneOf("model_type", ["gemma4_vision", "gemma4_unified_vision"]);
  const patchSize = vision.integer("patch_size", { or: 16 });
  const poolingKernelSize = vision.integer("pooling_kernel_size", { or: 3 });
  const rmsNormEps = vision.positive("rms_norm_eps", 1e-6);
  if (type === "gemma4_unified_vision") {
    return {
      kind: "patches",
      embedDim: vision.integer("mm_embed_dim", { or: 3840 }),
      positionRows: vision.integer("mm_posemb_size", { or: 1120 }),
      outputDim: vision.integer("output_proj_dims", { or: 3840 }),
      patchSize,
      poolingKernelSize,
      rmsNormEps,
    };
  }
  const heads = vision.integer("num_attention_heads", { or: 12 });
  const kvHeads = vision.integer("num_key_value_heads", { or: 12 });
  if (heads % kvHeads !== 0) {
    throw vision.wrong("num_key_value_heads", `a divisor of num_attention_heads = ${heads}`);
  }
  vision.oneOf("hidden_activation", ["gelu_pytorch_tanh"], "gelu_pytorch_tanh");
  if (vision.boolean("attention_bias", false)) throw vision.wrong("attention_bias", "false or absent");
  const rope = vision.object("rope_parameters");
  rope?.oneOf("rope_type", ["axial", "default"], "default");
  const headDim = vision.integer("head_dim", { or: 64 });
  // Two axes, each rotated in pairs.
  if (headDim % 4 !== 0 || headDim > MOST_HEAD.vision) {
    throw vision.wrong("head_dim", `a multiple of 4 up to ${MOST_HEAD.vision}`);
  }
  const softTokens = top.has("vision_soft_tokens_per_image")
    ? top.integer("vision_soft_tokens_per_image")
    : vision.has("default_output_length")
    ? vision.integer("default_output_length")
    : null;
  return {
    kind: "tower",
    hiddenSize: vision.integer("hidden_size", { or: 768 }),
    layers: vision.integer("num_hidden_layers", { max: 1024, or: 16 }),
    heads,
    kvHeads,
    headDim,
    mlpWidth: vision.integer("intermediate_size", { or: 3072 }),
    patchSize,
    poolingKernelSize,
    positionRows: vision.integer("position_embedding_size", { or: 10_240 }),
    rmsNormEps,
    ropeTheta: rope?.positive("rope_theta", 100) ?? 100,
    standardize: vision.boolean("standardize", false),
    clippedLinears: vision.boolean("use_clipped_linears", false),
    softTokens,
  };
}

/** Reads `audio_config`; null without one. Throws `CheckpointError` that names the key and the value. */
export function parseAudio(top: Fields): AudioConfig | null {
  const audio = top.object("audio_config");
  if (audio === null) return null;
  const type = audio.oneOf("model_type", ["gemma4_audio", "gemma4_unified_audio"]);
  const rmsNormEps = audio.positive("rms_norm_eps", 1e-6);
  if (type === "gemma4_unified_audio") {
    return { kind: "frames", frameSize: audio.integer("audio_embed_dim", { or: 640 }), rmsNormEps };
  }
  audio.oneOf("hidden_act", ["silu"], "silu");
  audio.number("gradient_clipping", { min: LEAST_CLIPPING, or: 1e10 });
  const hiddenSize = audio.integer("hidden_size", { or: 1024 });
  const heads = audio.integer("num_attention_heads", { or: 8 });
  if (hiddenSize % heads !== 0 || hiddenSize / heads > MOST_HEAD.audio) {
    const rule = `a divisor of hidden_size = ${hiddenSize} that leaves heads of ${MOST_HEAD.audio} at most`;
    throw audio.wrong("num_attention_heads", rule);
  }
  return {
    kind: "tower",
    hiddenSize,
    layers: audio.integer("num_hidden_layers", { max: 1024, or: 12 }),
    heads,
    convKernelSize: audio.integer("conv_kernel_size", { max: 1024, or: 5 }),
    residualWeight: audio.number("residual_weight", { or: 0.5 }),
    chunkSize: audio.integer("attention_chunk_size", { max: 65_536, or: 12 }),
    contextLeft: audio.integer("attention_context_left", { min: 2, max: MOST_CONTEXT + 1, or: 13 }),
    contextRight: audio.integer("attention_context_right", { min: 0, max: MOST_CONTEXT, or: 0 }),
    logitCap: audio.positive("attention_logit_cap", 50),
    subsamplingChannels: channels(audio),
    outputDim: audio.integer("output_proj_dims", { or: 1536 }),
    rmsNormEps,
    clippedLinears: audio.boolean("use_clipped_linears", true),
  };
}

function channels(audio: Fields): [number, number] {
  const value = audio.get("subsampling_conv_channels") ?? [128, 32];
  const valid = Array.isArray(value) && value.length === 2 &&
    value.every((n) => Number.isInteger(n) && n > 0 && n <= 65_536);
  if (!valid) throw audio.wrong("subsampling_conv_channels", "two integers from 1 to 65536");
  return [value[0], value[1]];
}
