/**
 * A drafter as a plan: from its target's embedding of a token and a state it guesses the token after the next one. It has no
 * keys and values of its own; each layer reads those of the target's last owner of its kind, and no row sees another.
 *
 * A row's position in the input block is that of the last token that the target has seen: its keys end there. The rotation
 * stands one further, where the drafter begins, and stays there in every step.
 */
import type { LayerConfig, ModelConfig } from "../checkpoint/config.ts";
import type { WeightTensor } from "../checkpoint/tensor.ts";
import type { TextWeights } from "../checkpoint/weights.ts";
import { CheckpointError } from "../errors.ts";
import { elementaryLayer } from "./elementary.ts";
import { fusedLayer } from "./fused.ts";
import { type KvFormat, pageGroups } from "./groups.ts";
import type { KvLayer } from "./ops.ts";
import { type Limits, type Plan, PlanBuilder } from "./plan.ts";
import { addCandidates, addFinalNorm, addPages, type LayerContext, type Stream } from "./text.ts";
import type { Dim, Tensor } from "./tensor.ts";

/** What the plan is for. */
export interface DrafterPlanOptions {
  limits: Limits;
  /** of the target's pages */ kvFormat: KvFormat;
  /** pages of each of the target's groups */ kvPages: readonly number[];
  exact: boolean;
  /** false: the smallest ops, for tests */ fuse?: boolean;
  /** keep the states between layers readable after a run */ trace?: boolean;
  checkFinite?: boolean;
}

/** Where weights lie: the target's buffers, then the drafter's. */
export interface DrafterWeightPlaces {
  /** name and size of each weight buffer, in plan order */ buffers: { name: string; bytes: number }[];
  /** the plan tensor of a weight of either model */ tensor(weight: WeightTensor): Tensor;
}

/** A plan of a drafter. Its last buffers are the states and the token order. */
export interface DrafterPlan extends Plan {
  /** f32 [r, H] each: after pre_projection, then the output of each layer; with `trace` they are in the arena after a run */
  states: Tensor[];
  /** f32 [r, B] what a step starts from, and leaves for the next one */ state: Tensor;
  /** plan index of the buffer of states */ stateBuffer: number;
  /** plan index of the buffer with the tokens of each centroid, u32 [V]; null with a plain head */ orderingBuffer:
    | number
    | null;
}

/** Throws `CheckpointError` with code `drafter_mismatch` where the two models do not belong together. */
export function checkDrafter(drafter: ModelConfig, target: ModelConfig): void {
  const fail = (what: string) => {
    throw new CheckpointError(
      "drafter_mismatch",
      `This drafter does not fit the model: ${what}. Use the drafter that was made for it.`,
    );
  };
  if (drafter.drafter === null) return fail(`its model type is ${drafter.modelType}, which is no drafter`);
  const { backboneHiddenSize } = drafter.drafter;
  if (backboneHiddenSize !== target.hiddenSize) {
    fail(`it expects states of ${backboneHiddenSize} numbers where the model has ${target.hiddenSize}`);
  }
  if (drafter.vocabularySize !== target.vocabularySize) {
    fail(`its vocabulary has ${drafter.vocabularySize} tokens, the model's ${target.vocabularySize}`);
  }
  for (const layer of drafter.layers) {
    const owner = ownerFor(layer, target);
    if (owner === undefined) {
      return fail(`layer ${layer.index} attends to ${layer.kind} layers, and the model has none`);
    }
    if (
      owner.headDim !== layer.headDim || owner.kvHeads !== layer.kvHeads || layer.heads % owner.kvHeads !== 0
    ) {
      fail(
        `layer ${layer.index} reads ${layer.kvHeads} KV heads of ${layer.headDim} lanes where layer ${owner.index} of ` +
          `the model has ${owner.kvHeads} of ${owner.headDim}`,
      );
    }
  }
}

/** The target's layer whose keys and values a layer of the drafter reads. */
function ownerFor(layer: LayerConfig, target: ModelConfig): LayerConfig | undefined {
  return target.layers.findLast(({ kind, kvOwner, index }) => kind === layer.kind && kvOwner === index);
}

/** Builds the plan of one step. Throws as `checkDrafter`. */
export function drafterPlan(
  config: ModelConfig,
  weights: TextWeights,
  target: { config: ModelConfig; embedding: WeightTensor },
  placed: DrafterWeightPlaces,
  options: DrafterPlanOptions,
): DrafterPlan {
  checkDrafter(config, target.config);
  const { fuse = true, trace = false, limits } = options;
  const { hiddenSize: H, rmsNormEps: eps } = config;
  const B = target.config.hiddenSize;
  const own = weights.drafter!;
  const builder = new PlanBuilder(limits);
  const groups = pageGroups(target.config);
  const pages = addPages(builder, groups, options.kvFormat, options.kvPages);
  for (const { name, bytes } of placed.buffers) builder.buffer(name, bytes, false);
  const stateBuffer = builder.buffer("states", limits.out_rows * B * 4, true);
  const rows: Dim = "out_rows";
  const state: Tensor = {
    name: "state",
    format: { kind: "f32" },
    shape: [rows, B],
    buffer: stateBuffer,
    offset: 0,
  };
  const tensor = (weight: WeightTensor) => placed.tensor(weight);
  const maybe = (weight: WeightTensor | null | undefined) => weight ? placed.tensor(weight) : undefined;

  const input = builder.activation("draft_input", [rows, 2 * B]);
  const { embedding } = target;
  builder.add({
    kind: "draft_input",
    table: tensor(embedding),
    state,
    y: input,
    scale: target.config.embeddingScale,
  });
  const projected = builder.activation("pre_projected", [rows, H]);
  builder.add({
    kind: "linear",
    x: input,
    weights: [tensor(own.preProjection)],
    epilogue: { kind: "none" },
    y: projected,
    eps,
  });

  const states: Tensor[] = [];
  let stream: Stream = { x: projected };
  for (const layer of config.layers) {
    const owner = ownerFor(layer, target.config)!;
    const group = groups.findIndex((g) => g.layers.includes(owner.index));
    const kv: KvLayer = { pages: pages[group], layer: groups[group].layers.indexOf(owner.index), group };
    const context: LayerContext = {
      builder,
      config,
      // The window counts the drafter's own place, which has no key.
      layer: { ...layer, window: layer.window === null ? null : layer.window + 1 },
      weights: weights.layers[layer.index],
      kv,
      rows,
      positionOffset: 1,
      tensor,
      maybe,
      entered: (h) => states.push(h),
      afterAttention: (attended, residual) => ({ attended, residual, rows }),
    };
    stream = fuse ? fusedLayer(context, stream) : elementaryLayer(context, stream);
  }

  const head = addHead(builder, config, weights, stream, { tensor, fuse, state });
  states.push(head.last);
  const { ids, values, stats } = addCandidates(builder, head.logits);
  for (const output of [ids, values, stats, head.logits, state]) builder.output(output);
  const plan = builder.finish({
    groups: groups.length,
    vocabularySize: config.vocabularySize,
    exact: options.exact,
    checkFinite: options.checkFinite,
    reuse: !trace,
  });
  return { ...plan, states, state, stateBuffer, orderingBuffer: head.orderingBuffer };
}

/** From the last layer: the state of the next step, and logits by the plain or the centroid head. */
function addHead(
  builder: PlanBuilder,
  config: ModelConfig,
  weights: TextWeights,
  stream: Stream,
  { tensor, fuse, state }: { tensor(weight: WeightTensor): Tensor; fuse: boolean; state: Tensor },
): { last: Tensor; logits: Tensor; orderingBuffer: number | null } {
  const { hiddenSize: H, vocabularySize: V, rmsNormEps: eps } = config;
  const { postProjection, centroids } = weights.drafter!;
  const [rows] = stream.x.shape;
  const norm = tensor(weights.finalNorm);
  const product = (from: Stream & { preNorm?: Tensor; hOut?: Tensor }, weight: WeightTensor, y: Tensor) =>
    builder.add({ kind: "linear", ...from, weights: [tensor(weight)], epilogue: { kind: "none" }, y, eps });

  // Later products read h: fused ones norm it again, elementary ones take the normed row.
  let last = stream.x;
  let from: { x: Tensor; preNorm?: Tensor };
  if (fuse) {
    if (stream.residual) last = builder.activation("final_state", [rows, H]);
    product({ ...stream, hOut: stream.residual && last, preNorm: norm }, postProjection, state);
    from = { x: last, preNorm: norm };
  } else {
    from = { x: addFinalNorm(builder, config, last, norm) };
    product(from, postProjection, state);
  }
  const logits = builder.activation("logits", [rows, V]);
  if (centroids === null) {
    product(from, weights.lmHead, logits);
    return { last, logits, orderingBuffer: null };
  }
  const { count, topK } = config.drafter!.centroids!;
  const scores = builder.activation("centroid_scores", [rows, count]);
  product(from, centroids, scores);
  const orderingBuffer = builder.buffer("token_ordering", V * 4, false);
  builder.add({
    kind: "centroid_head",
    x: from.x,
    norm: from.preNorm,
    scores,
    ordering: {
      name: "token_ordering",
      format: { kind: "u32" },
      shape: [count, V / count],
      buffer: orderingBuffer,
      offset: 0,
    },
    table: tensor(weights.lmHead),
    y: logits,
    topK,
    eps,
  });
  return { last, logits, orderingBuffer };
}
