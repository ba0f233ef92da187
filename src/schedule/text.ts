/**
 * The text network as a plan. Two variants: `decode`, where every row produces output and so all activations have
 * `out_rows` rows, and `prefill`, where rows that produce none stop after they wrote their last keys and values, since
 * nobody reads what they would compute beyond.
 */
import type { LayerConfig, ModelConfig } from "../checkpoint/config.ts";
import type { WeightTensor } from "../checkpoint/tensor.ts";
import type { LayerWeights, TextWeights } from "../checkpoint/weights.ts";
import { MarkbaseError } from "../errors.ts";
import { elementaryLayer } from "./elementary.ts";
import { fusedLayer } from "./fused.ts";
import { type KvFormat, PAGE_TOKENS, pageBytes, type PageGroup, pageGroups, SCALE_BYTES } from "./groups.ts";
import type { BlockRule, KvLayer } from "./ops.ts";
import { type Limits, type Plan, PlanBuilder } from "./plan.ts";
import type { Dim, Tensor } from "./tensor.ts";

/** Where the weights lie: plan buffers after the arena and the KV pages, and a plan tensor for each weight. */
export interface PlacedWeights {
  /** Name and size in bytes of each weight buffer, in plan order. */
  buffers: { name: string; bytes: number }[];
  /**
   * The plan tensor of a weight, the same object at each call. `firstBuffer` is the plan index of `buffers[0]`; it
   * depends on the model only.
   */
  tensor(weight: WeightTensor): Tensor;
}

/** What a plan of the text network is for. */
export interface TextPlanOptions {
  variant: "prefill" | "decode";
  limits: Limits;
  /** Number format of the KV cache. */
  kvFormat: KvFormat;
  /** Pages that each group's buffer holds. */
  kvPages: readonly number[];
  /** f32 arithmetic in one fixed order. */
  exact: boolean;
  /** Keep the states between layers readable after a run; only for `decode`. */
  trace?: boolean;
  /** false: the smallest ops, for tests. */
  fuse?: boolean;
  /** Adds the output `state`, which a drafter starts from. */
  withState?: boolean;
  /** Look for NaN and Inf after each op. */
  checkFinite?: boolean;
  /** false: no two activations share bytes, for tests. */
  reuse?: boolean;
  /** Rows of soft tokens that the caller may put in place of embeddings; then attention knows blocks too. */
  softRows?: number;
}

/** Bits of the outputs in the input block's mask. */
export const OUTPUT: {
  /** u32 [r, 256] */ readonly ids: 0;
  /** f32 [r, 256] */ readonly values: 1;
  /** f32 [r, 4] */ readonly stats: 2;
  /** f32 [r, V] */ readonly logits: 3;
  /** f32 [r, H] after the final norm; only of plans with `withState` */ readonly state: 4;
} = { ids: 0, values: 1, stats: 2, logits: 3, state: 4 };

/** A plan of the text network. */
export interface TextPlan extends Plan {
  /**
   * f32 [r, H] each: the input of layer 0, then the output of each layer before the final norm. With `trace` they are
   * in the arena after a run.
   */
  states: Tensor[];
  /** Plan index of the buffer of soft tokens, f32 [softRows, H]; the last one, absent without `softRows`. */
  softBuffer?: number;
}

/** Index of the first weight buffer of any plan of this model: after the arena and one KV buffer for each group. */
export function firstWeightBuffer(config: ModelConfig): number {
  return 1 + pageGroups(config).length;
}

/**
 * The residual stream between two ops, as a sum that the next op completes:
 * h = (residual + rms_norm(x, postNorm)) · scalar, and plainly x without a residual.
 */
export interface Stream {
  /** [r, H] */ x: Tensor;
  /** [r, H] */ residual?: Tensor;
  /** [H] */ postNorm?: Tensor;
  /** [1] */ scalar?: Tensor;
}

/** What a layer is built from. */
export interface LayerContext {
  readonly builder: PlanBuilder;
  readonly config: ModelConfig;
  readonly layer: LayerConfig;
  readonly weights: LayerWeights;
  /** Where this layer's attention reads, and writes if it owns them, keys and values. */
  readonly kv: KvLayer;
  /** Row symbol of the layer's activations. */
  readonly rows: Dim;
  /** f32 [rows, L·P] of the present rows; absent in models without per-layer embeddings. */
  readonly perLayerInputs?: Tensor;
  /** Added to the rows' positions by the rotary embedding; default 0. */
  readonly positionOffset?: number;
  /** What rows of a block see; default causal. */
  readonly block?: BlockRule;
  tensor(weight: WeightTensor): Tensor;
  /** The plan tensor of an optional weight. */
  maybe(weight: WeightTensor | null | undefined): Tensor | undefined;
  /** Called once with the completed input of the layer, [rows, H]. */
  entered(h: Tensor): void;
  /** Called between attention and what follows; returns the rows that go on. */
  afterAttention(
    attended: Tensor,
    residual: Tensor,
  ): { attended: Tensor; residual: Tensor; rows: Dim; perLayerInputs?: Tensor };
}

/** Builds the plan. Throws `MarkbaseError` with code `unsupported` for a drafter. */
export function textPlan(
  config: ModelConfig,
  weights: TextWeights,
  placed: PlacedWeights,
  options: TextPlanOptions,
): TextPlan {
  checkSupported(config);
  const { variant, limits, kvFormat, kvPages, fuse = true, trace = false } = options;
  if (trace && variant !== "decode") throw new RangeError("Only the decode variant has a trace.");
  const builder = new PlanBuilder(limits);
  const groups = pageGroups(config);
  const pages = addPages(builder, groups, kvFormat, kvPages);
  for (const { name, bytes } of placed.buffers) builder.buffer(name, bytes, false);
  const { softRows } = options;
  const softBuffer = softRows && builder.buffer("soft_tokens", softRows * config.hiddenSize * 4, true);

  const tensor = (weight: WeightTensor) => placed.tensor(weight);
  const maybe = (weight: WeightTensor | null | undefined) => weight ? placed.tensor(weight) : undefined;
  const { hiddenSize: H, vocabularySize: V } = config;

  let rows: Dim = variant === "decode" ? "out_rows" : "rows";
  const embedded = builder.activation("embedded", [rows, H]);
  const soft: Tensor | undefined = softBuffer && softRows
    ? { name: "soft_tokens", format: { kind: "f32" }, shape: [softRows, H], buffer: softBuffer, offset: 0 }
    : undefined;
  builder.add({
    kind: "embed",
    table: tensor(weights.embedding),
    soft,
    y: embedded,
    scale: config.embeddingScale,
  });
  let perLayerInputs = addPerLayerInputs(builder, config, weights, tensor, embedded);

  const states: Tensor[] = [];
  const lastOwner = Math.max(...groups.flatMap((group) => group.layers));
  const gather = (x: Tensor): Tensor => {
    const y = builder.activation(`${x.name}.out`, ["out_rows", ...x.shape.slice(1)]);
    builder.add({ kind: "gather", x, y });
    return y;
  };
  let stream: Stream = { x: embedded };
  for (const layer of config.layers) {
    const group = groups.findIndex((g) => g.layers.includes(layer.kvOwner));
    const context: LayerContext = {
      builder,
      config,
      layer,
      weights: weights.layers[layer.index],
      kv: { pages: pages[group], layer: groups[group].layers.indexOf(layer.kvOwner), group },
      rows,
      perLayerInputs,
      block: soft && layer.mediaBlock,
      tensor,
      maybe,
      entered: (h) => states.push(h),
      afterAttention: (attended, residual) => {
        if (variant === "prefill" && layer.index === lastOwner) {
          attended = gather(attended);
          residual = gather(residual);
          perLayerInputs = perLayerInputs && gather(perLayerInputs);
          rows = "out_rows";
        }
        return { attended, residual, rows, perLayerInputs };
      },
    };
    stream = fuse ? fusedLayer(context, stream) : elementaryLayer(context, stream);
  }

  const last = addHead(builder, config, stream, tensor(weights.finalNorm), tensor(weights.lmHead), {
    rows,
    fuse,
    keep: trace || options.withState === true,
  });
  states.push(last.state);
  for (const output of [last.ids, last.values, last.stats, last.logits]) builder.output(output);
  if (options.withState) {
    builder.output(last.normed ?? addFinalNorm(builder, config, last.state, tensor(weights.finalNorm)));
  }
  const plan = builder.finish({
    groups: groups.length,
    vocabularySize: V,
    exact: options.exact,
    checkFinite: options.checkFinite,
    reuse: trace ? false : options.reuse,
    outputsApart: variant === "decode",
  });
  return { ...plan, states, softBuffer: softBuffer || undefined };
}

/** A buffer of each group's pages, and the tensor of all of them. */
export function addPages(
  builder: PlanBuilder,
  groups: readonly PageGroup[],
  kvFormat: KvFormat,
  kvPages: readonly number[],
): Tensor[] {
  return groups.map((group, g) => ({
    name: `kv.${group.name}`,
    format: { kind: kvFormat === "q8" ? "i8" : kvFormat },
    shape: [
      kvPages[g],
      2 * group.layers.length,
      group.kvHeads,
      PAGE_TOKENS,
      // The scales of 32 tokens follow their codes.
      group.headDim + (kvFormat === "q8" ? SCALE_BYTES : 0),
    ],
    buffer: builder.buffer(`kv.${group.name}`, kvPages[g] * pageBytes(group, kvFormat), true),
    offset: 0,
  }));
}

/** The per-layer inputs of all layers, f32 [rows, L·P]; undefined in models without them. */
function addPerLayerInputs(
  builder: PlanBuilder,
  config: ModelConfig,
  weights: TextWeights,
  tensor: (weight: WeightTensor) => Tensor,
  embedded: Tensor,
): Tensor | undefined {
  const { perLayerInputSize: P, hiddenSize: H, layers, rmsNormEps: eps } = config;
  const rows = embedded.shape[0];
  if (!weights.perLayerEmbedding || !weights.perLayerModelProjection || !weights.perLayerProjectionNorm) {
    return;
  }
  const width = layers.length * P;
  const projected = builder.activation("per_layer_projected", [rows, width]);
  builder.add({
    kind: "linear",
    x: embedded,
    weights: [tensor(weights.perLayerModelProjection)],
    epilogue: { kind: "none" },
    y: projected,
    eps,
  });
  const y = builder.activation("per_layer_inputs", [rows, width]);
  builder.add({
    kind: "per_layer_inputs",
    projected,
    table: tensor(weights.perLayerEmbedding),
    norm: tensor(weights.perLayerProjectionNorm),
    y,
    slice: P,
    eps,
    projectionScale: H ** -0.5,
    tableScale: P ** 0.5,
    outScale: 2 ** -0.5,
  });
  return y;
}

/** Final norm, LM head, soft cap and candidates. */
function addHead(
  builder: PlanBuilder,
  config: ModelConfig,
  stream: Stream,
  norm: Tensor,
  head: Tensor,
  options: {
    rows: Dim;
    fuse: boolean; /** the state before the norm is a tensor of its own */
    keep: boolean;
  },
): { state: Tensor; normed?: Tensor; ids: Tensor; values: Tensor; stats: Tensor; logits: Tensor } {
  const { hiddenSize: H, vocabularySize: V, finalLogitSoftcap: cap, rmsNormEps: eps } = config;
  const { rows, fuse } = options;
  let state = stream.x;
  let normed: Tensor | undefined;
  const logits = builder.activation("logits", [rows, V]);
  if (fuse) {
    const keep = options.keep && stream.residual ? builder.activation("final_state", [rows, H]) : undefined;
    builder.add({
      kind: "linear",
      ...stream,
      hOut: keep,
      preNorm: norm,
      weights: [head],
      epilogue: cap === null ? { kind: "none" } : { kind: "softcap", cap },
      y: logits,
      eps,
    });
    state = keep ?? state;
  } else {
    normed = addFinalNorm(builder, config, stream.x, norm);
    const raw = cap === null ? logits : builder.activation("raw_logits", [rows, V]);
    builder.add({ kind: "linear", x: normed, weights: [head], epilogue: { kind: "none" }, y: raw, eps });
    if (cap !== null) builder.add({ kind: "softcap", x: raw, y: logits, cap });
  }
  return { state, normed, ...addCandidates(builder, logits), logits };
}

/** rms_norm of the last state by the final norm, f32 [r, H]. */
export function addFinalNorm(builder: PlanBuilder, config: ModelConfig, state: Tensor, norm: Tensor): Tensor {
  const { hiddenSize: H, rmsNormEps: eps } = config;
  const y = builder.activation("final_norm", [state.shape[0], H]);
  builder.add({ kind: "rms_norm", x: state, weight: norm, y, group: H, eps, inScale: 1 });
  return y;
}

/** Candidates of logits [r, V]. */
export function addCandidates(
  builder: PlanBuilder,
  logits: Tensor,
): { ids: Tensor; values: Tensor; stats: Tensor } {
  const [rows] = logits.shape;
  const ids = builder.activation("candidate_ids", [rows, 256], { kind: "u32" });
  const values = builder.activation("candidate_values", [rows, 256]);
  const stats = builder.activation("candidate_stats", [rows, 4]);
  builder.add({ kind: "candidates", logits, ids, values, stats });
  return { ids, values, stats };
}

function checkSupported(config: ModelConfig): void {
  if (config.drafter === null) return;
  throw new MarkbaseError(
    "unsupported",
    `This ${config.modelType} model is a drafter: it reads the cache of a target model and cannot run alone. Load its target.`,
  );
}
