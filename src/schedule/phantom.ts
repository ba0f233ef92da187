/** The weights of a model that has only a config: right names, shapes and formats, no bytes. For `explain`. */
import type { LayerConfig, ModelConfig } from "../checkpoint/config.ts";
import { formatOf } from "../checkpoint/quantization.ts";
import { bitsOf, type Format, groupSizeOf, type WeightTensor } from "../checkpoint/tensor.ts";
import type { ExpertWeights, LayerWeights, TextWeights } from "../checkpoint/weights.ts";

/** Weights in bf16, or as the config's quantisation says. */
export function phantomWeights(config: ModelConfig): TextWeights {
  const { hiddenSize: H, vocabularySize: V, perLayerInputSize: P, layers } = config;
  const width = layers.length * P;
  const embedding = matrix(config, "embed_tokens", [V, H]);
  return {
    embedding,
    perLayerEmbedding: P === 0
      ? null
      : matrix(config, "embed_tokens_per_layer", [config.perLayerVocabularySize, width]),
    perLayerModelProjection: P === 0 ? null : matrix(config, "per_layer_model_projection", [width, H]),
    perLayerProjectionNorm: P === 0 ? null : vector("per_layer_projection_norm", P),
    layers: layers.map((layer) => phantomLayer(config, layer)),
    finalNorm: vector("norm", H),
    lmHead: config.tiedEmbeddings ? embedding : matrix(config, "lm_head", [V, H]),
    drafter: null,
    ignored: [],
    unexpected: [],
  };
}

function phantomLayer(config: ModelConfig, layer: LayerConfig): LayerWeights {
  const { hiddenSize: H, perLayerInputSize: P } = config;
  const { headDim: D, mlpWidth: W, index } = layer;
  const path = (name: string) => `layers.${index}.${name}`;
  const of = (name: string, shape: number[]) => matrix(config, path(name), shape);
  const ownsKeys = layer.kvOwner === index;
  return {
    inputNorm: vector(path("input_layernorm"), H),
    q: of("self_attn.q_proj", [layer.heads * D, H]),
    k: ownsKeys ? of("self_attn.k_proj", [layer.kvHeads * D, H]) : null,
    v: ownsKeys && !layer.keysAreValues ? of("self_attn.v_proj", [layer.kvHeads * D, H]) : null,
    qNorm: vector(path("self_attn.q_norm"), D),
    kNorm: ownsKeys ? vector(path("self_attn.k_norm"), D) : null,
    o: of("self_attn.o_proj", [H, layer.heads * D]),
    postAttentionNorm: vector(path("post_attention_layernorm"), H),
    preFeedforwardNorm: vector(path("pre_feedforward_layernorm"), H),
    gate: of("mlp.gate_proj", [W, H]),
    up: of("mlp.up_proj", [W, H]),
    down: of("mlp.down_proj", [H, W]),
    postFeedforwardNorm: vector(path("post_feedforward_layernorm"), H),
    perLayerInputGate: P === 0 ? null : of("per_layer_input_gate", [P, H]),
    perLayerProjection: P === 0 ? null : of("per_layer_projection", [H, P]),
    postPerLayerInputNorm: P === 0 ? null : vector(path("post_per_layer_input_norm"), H),
    layerScalar: config.layerScalar ? vector(path("layer_scalar"), 1) : null,
    biases: {},
    experts: phantomExperts(config, layer),
  };
}

/** As converters write them: one tensor for gate and up in plain checkpoints, two in quantised ones. */
function phantomExperts(config: ModelConfig, layer: LayerConfig): ExpertWeights | null {
  if (layer.experts === null) return null;
  const { hiddenSize: H } = config;
  const { count: E, width: W } = layer.experts;
  const at = `layers.${layer.index}`;
  const of = (name: string, shape: number[]) => matrix(config, `${at}.${name}`, shape);
  const split = config.quantization !== null;
  return {
    router: {
      projection: of("router.proj", [E, H]),
      scale: vector(`${at}.router.scale`, H),
      perExpertScale: vector(`${at}.router.per_expert_scale`, E),
    },
    gateUp: split
      ? {
        kind: "split",
        gate: of("experts.switch_glu.gate_proj", [E, W, H]),
        up: of("experts.switch_glu.up_proj", [E, W, H]),
      }
      : { kind: "fused", weight: of("experts.gate_up_proj", [E, 2 * W, H]) },
    down: of(split ? "experts.switch_glu.down_proj" : "experts.down_proj", [E, H, W]),
    postFeedforwardNorm1: vector(`${at}.post_feedforward_layernorm_1`, H),
    preFeedforwardNorm2: vector(`${at}.pre_feedforward_layernorm_2`, H),
    postFeedforwardNorm2: vector(`${at}.post_feedforward_layernorm_2`, H),
  };
}

function vector(name: string, length: number): WeightTensor {
  return weight(name, [length], { kind: "bf16" });
}

function matrix(config: ModelConfig, path: string, shape: number[]): WeightTensor {
  const format = config.quantization === null ? false : formatOf(config.quantization, path);
  const group = format === false ? null : groupSizeOf(format);
  // Converters leave a module alone whose width the group does not divide.
  const fits = format !== false && (group === null || shape[shape.length - 1] % group === 0);
  return weight(path, shape, fits ? format : { kind: "bf16" });
}

function weight(name: string, shape: number[], format: Format): WeightTensor {
  const elements = shape.reduce((product, size) => product * size, 1);
  const range = (length: number) => ({ file: 0, offset: 0, length });
  const group = groupSizeOf(format);
  const parts: WeightTensor["parts"] = { data: range(elements * bitsOf(format) / 8) };
  const byteScales = format.kind !== "affine";
  if (group !== null) parts.scales = range(elements / group * (byteScales ? 1 : 2));
  if (format.kind === "affine") parts.biases = range(elements / format.groupSize * 2);
  return { name, shape, format, parts, scaleDtype: group === null ? null : byteScales ? "u8" : "bf16" };
}
