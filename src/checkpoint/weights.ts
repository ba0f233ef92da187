/** The weights of the text network by role. Shapes: H hidden size, P per-layer input size, L layers, V vocabulary. */
import type { LayerConfig, ModelConfig } from "./config.ts";
import { Modules } from "./modules.ts";
import type { Naming } from "./names.ts";
import type { IntegerTensor, RawTensor, WeightTensor } from "./tensor.ts";

/** Router and experts of one layer, beside its dense MLP. E experts of width W. */
export interface ExpertWeights {
  /** Chooses the experts of each token. */
  router: {
    /** [E, H] */
    projection: WeightTensor;
    /** [H] */
    scale: WeightTensor;
    /** [E] */
    perExpertScale: WeightTensor;
  };
  /** One tensor [E, 2W, H] with the gate rows first, or two of [E, W, H]. */
  gateUp: { kind: "fused"; weight: WeightTensor } | { kind: "split"; gate: WeightTensor; up: WeightTensor };
  /** [E, H, W] */
  down: WeightTensor;
  /** [H], after the dense MLP. */
  postFeedforwardNorm1: WeightTensor;
  /** [H], before the experts. */
  preFeedforwardNorm2: WeightTensor;
  /** [H], after the experts. */
  postFeedforwardNorm2: WeightTensor;
}

/** Projections that may have a bias. */
export type BiasedProjection = "q" | "k" | "v" | "o" | "gate" | "up" | "down";

/** Weights of one layer: A heads and K KV heads of D lanes, MLP width W. */
export interface LayerWeights {
  /** [H] */
  inputNorm: WeightTensor;
  /** [A·D, H] */
  q: WeightTensor;
  /** [K·D, H]; null where the layer reads another's keys and values. */
  k: WeightTensor | null;
  /** [K·D, H]; null where shared and where keys are values. */
  v: WeightTensor | null;
  /** [D] */
  qNorm: WeightTensor;
  /** [D]; null where shared. */
  kNorm: WeightTensor | null;
  /** [H, A·D] */
  o: WeightTensor;
  /** [H] */
  postAttentionNorm: WeightTensor;
  /** [H] */
  preFeedforwardNorm: WeightTensor;
  /** [W, H] */
  gate: WeightTensor;
  /** [W, H] */
  up: WeightTensor;
  /** [H, W] */
  down: WeightTensor;
  /** [H] */
  postFeedforwardNorm: WeightTensor;
  /** [P, H]; null if P is 0. */
  perLayerInputGate: WeightTensor | null;
  /** [H, P]; null if P is 0. */
  perLayerProjection: WeightTensor | null;
  /** [H]; null if P is 0. */
  postPerLayerInputNorm: WeightTensor | null;
  /** [1], multiplies the residual stream at the end of the layer; null in families without it. */
  layerScalar: WeightTensor | null;
  /** Biases, only where the config allows them and the file has them. */
  biases: Partial<Record<BiasedProjection, WeightTensor>>;
  /** Null without routed experts. */
  experts: ExpertWeights | null;
}

/** Weights that only a drafter has. B is the target's hidden size. */
export interface DrafterWeights {
  /** [H, 2B] */
  preProjection: WeightTensor;
  /** [B, H] */
  postProjection: WeightTensor;
  /** [centroids, H]; null with a plain head. */
  centroids: WeightTensor | null;
  /** [V]: the tokens of centroid c are entries c·n … (c+1)·n - 1; null with a plain head. */
  tokenOrdering: IntegerTensor | null;
}

/** The text network of one checkpoint. */
export interface TextWeights {
  /** [V, H] */
  embedding: WeightTensor;
  /** [V, L·P], layer-major rows; null if P is 0. */
  perLayerEmbedding: WeightTensor | null;
  /** [L·P, H]; null if P is 0. */
  perLayerModelProjection: WeightTensor | null;
  /** [P]; null if P is 0. */
  perLayerProjectionNorm: WeightTensor | null;
  /** In order. */
  layers: LayerWeights[];
  /** [H] */
  finalNorm: WeightTensor;
  /** [V, H]: the embedding itself where tied. */
  lmHead: WeightTensor;
  /** Null unless the model is a drafter. */
  drafter: DrafterWeights | null;
  /** Names of known tensors that this architecture does not read, such as the keys of KV-sharing layers. */
  ignored: string[];
  /** Names of tensors that have no known role. */
  unexpected: string[];
}

/**
 * Gives every weight of the text network its role. Throws `CheckpointError` with code `missing_tensor`,
 * `tensor_shape` or `tensor_dtype` that names the tensor. Vision and audio tensors are left out of account. `naming` is
 * that of folders unless given.
 */
export function textWeights(
  tensors: Iterable<RawTensor>,
  config: ModelConfig,
  naming?: Naming,
): TextWeights {
  const modules = new Modules([...tensors], config.quantization, {
    naming,
    normOffset: config.normWeightOffset,
  });
  const { hiddenSize: H, vocabularySize: V, perLayerInputSize: P, layers } = config;
  const ignored: string[] = [];
  const embedding = modules.matrix("embed_tokens", [V, H]);
  if (config.tiedEmbeddings) ignored.push(...modules.ignore("lm_head"));
  const weights: TextWeights = {
    embedding,
    perLayerEmbedding: P === 0
      ? null
      : modules.matrix("embed_tokens_per_layer", [config.perLayerVocabularySize, layers.length * P]),
    perLayerModelProjection: P === 0
      ? null
      : modules.matrix("per_layer_model_projection", [layers.length * P, H]),
    perLayerProjectionNorm: P === 0 ? null : modules.norm("per_layer_projection_norm", P),
    layers: layers.map((layer) => layerWeights(modules, layer, config, ignored)),
    finalNorm: modules.norm("norm", H),
    lmHead: config.tiedEmbeddings ? embedding : modules.matrix("lm_head", [V, H]),
    drafter: drafterWeights(modules, config),
    ignored,
    unexpected: [],
  };
  weights.unexpected = modules.unused().filter((name) => {
    // Rotary tables are constants that some writers store.
    if (!(naming?.pathOf(name) ?? name).includes("rotary_emb.")) return true;
    ignored.push(name);
    return false;
  });
  return weights;
}

/** The norms, scalars and other plain vectors: small enough to be read and checked at load. */
export function vectorsOf(weights: object): WeightTensor[] {
  const vectors: WeightTensor[] = [];
  const visit = (value: unknown) => {
    if (typeof value !== "object" || value === null) return;
    if (isWeightTensor(value)) {
      if (value.shape.length === 1) vectors.push(value);
    } else Object.values(value).forEach(visit);
  };
  visit(weights);
  return vectors;
}

function isWeightTensor(value: object): value is WeightTensor {
  return "format" in value && "parts" in value;
}

function layerWeights(
  modules: Modules,
  layer: LayerConfig,
  config: ModelConfig,
  ignored: string[],
): LayerWeights {
  const { hiddenSize: H, perLayerInputSize: P } = config;
  const { headDim: D, mlpWidth: W } = layer;
  const at = `layers.${layer.index}`;
  const attention = `${at}.self_attn`;
  const queryWidth = layer.heads * D;
  const keyWidth = layer.kvHeads * D;
  const ownsKeys = layer.kvOwner === layer.index;
  const ownsValues = ownsKeys && !layer.keysAreValues;
  if (!ownsKeys) {
    ignored.push(...modules.ignore(`${attention}.k_proj`), ...modules.ignore(`${attention}.k_norm`));
  }
  if (!ownsValues) ignored.push(...modules.ignore(`${attention}.v_proj`));
  return {
    inputNorm: modules.norm(`${at}.input_layernorm`, H),
    q: modules.matrix(`${attention}.q_proj`, [queryWidth, H]),
    k: ownsKeys ? modules.matrix(`${attention}.k_proj`, [keyWidth, H]) : null,
    v: ownsValues ? modules.matrix(`${attention}.v_proj`, [keyWidth, H]) : null,
    qNorm: modules.norm(`${attention}.q_norm`, D),
    kNorm: ownsKeys ? modules.norm(`${attention}.k_norm`, D) : null,
    o: modules.matrix(`${attention}.o_proj`, [H, queryWidth]),
    postAttentionNorm: modules.norm(`${at}.post_attention_layernorm`, H),
    preFeedforwardNorm: modules.norm(`${at}.pre_feedforward_layernorm`, H),
    gate: modules.matrix(`${at}.mlp.gate_proj`, [W, H]),
    up: modules.matrix(`${at}.mlp.up_proj`, [W, H]),
    down: modules.matrix(`${at}.mlp.down_proj`, [H, W]),
    postFeedforwardNorm: modules.norm(`${at}.post_feedforward_layernorm`, H),
    perLayerInputGate: P === 0 ? null : modules.matrix(`${at}.per_layer_input_gate`, [P, H]),
    perLayerProjection: P === 0 ? null : modules.matrix(`${at}.per_layer_projection`, [H, P]),
    postPerLayerInputNorm: P === 0 ? null : modules.norm(`${at}.post_per_layer_input_norm`, H),
    layerScalar: config.layerScalar ? modules.parameter(`${at}.layer_scalar`, [1]) : null,
    biases: biasesOf(modules, at, layer, config),
    experts: expertWeights(modules, at, layer, H),
  };
}

function biasesOf(
  modules: Modules,
  at: string,
  layer: LayerConfig,
  config: ModelConfig,
): LayerWeights["biases"] {
  if (!config.attentionBias) return {};
  const queryWidth = layer.heads * layer.headDim;
  const keyWidth = layer.kvHeads * layer.headDim;
  const ownsKeys = layer.kvOwner === layer.index;
  const lengths: Partial<Record<BiasedProjection, number>> = { q: queryWidth, o: config.hiddenSize };
  if (ownsKeys) lengths.k = keyWidth;
  if (ownsKeys && !layer.keysAreValues) lengths.v = keyWidth;
  const biases: LayerWeights["biases"] = {};
  for (const [role, length] of Object.entries(lengths) as [BiasedProjection, number][]) {
    const bias = modules.bias(`${at}.self_attn.${role}_proj`, length);
    if (bias !== null) biases[role] = bias;
  }
  return biases;
}

function expertWeights(modules: Modules, at: string, layer: LayerConfig, H: number): ExpertWeights | null {
  if (layer.experts === null) return null;
  const { count: E, width: W } = layer.experts;
  // One writer keeps gate and up in one tensor, the other splits them and puts all three under `switch_glu`.
  const split = `${at}.experts.switch_glu`;
  const isSplit = modules.has(`${split}.down_proj`);
  return {
    router: {
      projection: modules.matrix(`${at}.router.proj`, [E, H]),
      scale: modules.parameter(`${at}.router.scale`, [H]),
      perExpertScale: modules.parameter(`${at}.router.per_expert_scale`, [E]),
    },
    gateUp: isSplit
      ? {
        kind: "split",
        gate: modules.matrix(`${split}.gate_proj`, [E, W, H]),
        up: modules.matrix(`${split}.up_proj`, [E, W, H]),
      }
      : { kind: "fused", weight: modules.parameter(`${at}.experts.gate_up_proj`, [E, 2 * W, H]) },
    down: isSplit
      ? modules.matrix(`${split}.down_proj`, [E, H, W])
      : modules.parameter(`${at}.experts.down_proj`, [E, H, W]),
    postFeedforwardNorm1: modules.norm(`${at}.post_feedforward_layernorm_1`, H),
    preFeedforwardNorm2: modules.norm(`${at}.pre_feedforward_layernorm_2`, H),
    postFeedforwardNorm2: modules.norm(`${at}.post_feedforward_layernorm_2`, H),
  };
}

function drafterWeights(modules: Modules, config: ModelConfig): DrafterWeights | null {
  if (config.drafter === null) return null;
  const { hiddenSize: H, vocabularySize: V } = config;
  const { backboneHiddenSize: B, centroids } = config.drafter;
  return {
    preProjection: modules.matrix("pre_projection", [H, 2 * B]),
    postProjection: modules.matrix("post_projection", [B, H]),
    centroids: centroids && modules.matrix("masked_embedding.centroids", [centroids.count, H]),
    tokenOrdering: centroids && modules.integers("masked_embedding.token_ordering", V),
  };
}
