/**
 * The ops of a plan: what each computes, with shapes. An op is a semantic contract; it names no grid sizes, thread
 * counts or kernels. `r` is the row count of an op: the symbol `rows`, or `out_rows` after the gather.
 * Activations are f32. The float64 versions in `src/conformance/oracle` are the specification, `dylib/plan.h` the byte layout.
 */
import type { Tensor } from "./tensor.ts";
import type { TowerOp } from "./tower_ops.ts";

/** y[i] = scale · table[token[i]], dequantised; where the input block gives the row a soft token, that row of `soft`. */
export interface EmbedOp {
  kind: "embed";
  /** [V, W] */ table: Tensor;
  /** f32 [S, W], rows that replace embeddings, not scaled */ soft?: Tensor;
  /** [r, W] */ y: Tensor;
  scale: number;
}

/**
 * The per-layer inputs of all layers (PLE):
 * y = (rms_norm_P(projected · projectionScale) · norm + table[token] · tableScale) · outScale, in slices of P.
 */
export interface PerLayerInputsOp {
  kind: "per_layer_inputs";
  /** [r, L·P] */ projected: Tensor;
  /** [V, L·P] */ table: Tensor;
  /** [P] */ norm: Tensor;
  /** [r, L·P] */ y: Tensor;
  /** P */ slice: number;
  eps: number;
  projectionScale: number;
  tableScale: number;
  outScale: number;
}

/** What happens to the matrix products of a `linear`. */
export type Epilogue =
  /** y = [W0·u | W1·u | W2·u], side by side */
  | { kind: "none" }
  /** y = gelu_tanh(W0·u) · (W1·u) */
  | { kind: "geglu" }
  /** y = gelu_tanh(W0·u) · other[:, column : column + n] */
  | { kind: "gelu_mul"; other: Tensor; column: number }
  /** y = cap · tanh(W0·u / cap) */
  | { kind: "softcap"; cap: number }
  /** y = W0·u · sigmoid(W0·u) */
  | { kind: "silu" };

/** Bounds of a linear, each [least, most]. */
export interface Clip {
  /** of u */ input: readonly [number, number];
  /** of the product with its bias, before the epilogue */ output: readonly [number, number];
}

/**
 * The fused matrix product:
 * h = (residual + rms_norm(x, postNorm)) · scalar   (no residual: h = x; no postNorm: h = residual + x)
 * u = rms_norm(h, preNorm)                          (no preNorm: u = h)
 * y = epilogue(weights · u + biases)                (clip: u and the products are clamped)
 * `hOut`, where given, receives h. On a GPU one decode row takes one dispatch.
 */
export interface LinearOp {
  kind: "linear";
  /** [r, K] */ x: Tensor;
  /** [r, K] */ residual?: Tensor;
  /** [K] */ postNorm?: Tensor;
  /** [1] */ scalar?: Tensor;
  /** [r, K], never the same bytes as `residual` */ hOut?: Tensor;
  /** [K] */ preNorm?: Tensor;
  /** one to three of [N_i, K] */ weights: Tensor[];
  /** [N_i] each, or undefined */ biases?: (Tensor | undefined)[];
  epilogue: Epilogue;
  /** with one weight only */ clip?: Clip;
  /** [r, ΣN_i]; geglu: [r, N_0] with N_0 = N_1 */ y: Tensor;
  eps: number;
}

/**
 * Rotary position embedding: pair (i, i + headDim/2) turns by
 * (position + positionOffset) · positionScale · theta^(-2i/headDim), i < rotatedPairs.
 */
export interface Rope {
  theta: number;
  rotatedPairs: number;
  positionScale: number;
  /** 0 unless given; a drafter stands one token after the last that it sees */ positionOffset?: number;
}

/** Which KV pages an attention reads and writes. */
export interface KvLayer {
  /**
   * [pages, 2·layers of the group, kvHeads, 32, headDim]; index 2·layer is K, 2·layer + 1 is V. f32, f16, or i8 with headDim + 4: then
   * [32, headDim] codes of a page's tokens come first and after them their 32 f32 scales; x = code · scale with
   * scale = max |x| / 127 over the head, and code = x / scale rounded to the nearest, ties to even.
   */
  pages: Tensor;
  /** index of the layer within its page group */ layer: number;
  /** page group, which selects the page tables of the input block */ group: number;
}

/**
 * What a row of an image or video block sees beside earlier keys, by the input block's block of the row: nothing more
 * (`causal`), later keys of its block too (`window`), or its whole block, even before the window (`whole`).
 */
export type BlockRule = "causal" | "window" | "whole";

/**
 * Head norms, RoPE, cache write and causal attention:
 * q = rope(rms_norm_head(q, qNorm)), k = rope(rms_norm_head(k, kNorm)), v = rms_norm_head(v);
 * k and v go to the row's page slot; y = softmax(q · Kᵀ · scoreScale) · V over keys at positions
 * (position - window, position], or [0, position] without a window. Query head j reads KV head j / (heads/kvHeads).
 */
export interface AttentionOp {
  kind: "attention";
  /** [r, heads·d + 2·kvHeads·d] = [q | k | v]; keysAreValues: [q | k]; not owning: [q] */ qkv: Tensor;
  /** [d] */ qNorm?: Tensor;
  /** [d] */ kNorm?: Tensor;
  kv: KvLayer;
  /** [r, heads·d] */ y: Tensor;
  heads: number;
  kvHeads: number;
  headDim: number;
  /** false: another layer has written K and V */ ownsKv: boolean;
  keysAreValues: boolean;
  /** v is normalised per head without weight (Gemma 4) */ normValues: boolean;
  /** tokens, the row itself included; null: full attention */ window: number | null;
  /** default causal */ block?: BlockRule;
  rope: Rope;
  eps: number;
  scoreScale: number;
}

/** y[i] = x[outRow[i]]: keeps the rows that produce output. */
export interface GatherOp {
  kind: "gather";
  /** [rows, n] */ x: Tensor;
  /** [out_rows, n] */ y: Tensor;
}

/**
 * The best 256 tokens of each row after the input block's adjustments and mask, in descending order, ties by lower
 * id; a vocabulary below 256 is padded with id 0xffffffff.
 */
export interface CandidatesOp {
  kind: "candidates";
  /** [r, V] */ logits: Tensor;
  /** u32 [r, 256] */ ids: Tensor;
  /** adjusted logits, f32 [r, 256] */ values: Tensor;
  /** f32 [r, 4]: raw log-sum-exp; log-sum-exp of adjusted / temperature; largest adjusted logit; 0 */ stats:
    Tensor;
}

/**
 * Chooses the experts of each row: u = rms_norm(x) · scale · inScale; logits = projection · u, never on rounded
 * activations; the K largest logits, ties by lower index, NaN last, in descending order;
 * y = softmax over the chosen logits · perExpertScale[expert].
 */
export interface RouteOp {
  kind: "route";
  /** [r, H] */ x: Tensor;
  /** [H] */ scale: Tensor;
  /** [E, H] */ projection: Tensor;
  /** [E] */ perExpertScale: Tensor;
  /** u32 [r, K], different ones in each row */ experts: Tensor;
  /** [r, K] shares of the chosen experts */ y: Tensor;
  eps: number;
  /** hidden^-½ */ inScale: number;
}

/**
 * Gate and up products of the chosen experts: u = rms_norm(x, preNorm); for each slot s with expert e
 * y[:, s·I : (s + 1)·I] = gelu_tanh(gate[e]·u) · (up[e]·u). Zeros for an expert that does not exist.
 */
export interface ExpertGateUpOp {
  kind: "expert_gate_up";
  /** [r, H] */ x: Tensor;
  /** [H] */ preNorm?: Tensor;
  /** u32 [r, K] */ experts: Tensor;
  /** [E, 2·I, H], gate rows first; or two of [E, I, H] */ weights: Tensor[];
  /** [r, K·I] */ y: Tensor;
  eps: number;
}

/** y = Σ over slots s of shares[:, s] · weight[experts[:, s]] · x[:, s·I : (s + 1)·I], in the order of slots. */
export interface ExpertDownOp {
  kind: "expert_down";
  /** [r, K·I] */ x: Tensor;
  /** u32 [r, K] */ experts: Tensor;
  /** [r, K] */ shares: Tensor;
  /** [E, H, I] */ weight: Tensor;
  /** [r, H] */ y: Tensor;
}

/** y = rms_norm(a, aNorm) + rms_norm(b, bNorm): the dense MLP and the experts side by side. */
export interface AddNormsOp {
  kind: "add_norms";
  /** [r, n] */ a: Tensor;
  /** [n] */ aNorm: Tensor;
  /** [r, n] */ b: Tensor;
  /** [n] */ bNorm: Tensor;
  /** [r, n] */ y: Tensor;
  eps: number;
}

/** What a drafter starts from: y[i] = [scale · table[token[i]] | state[i]], the table being its target's. */
export interface DraftInputOp {
  kind: "draft_input";
  /** [V, B] */ table: Tensor;
  /** [r, B] */ state: Tensor;
  /** [r, 2·B] */ y: Tensor;
  scale: number;
}

/**
 * Logits of the tokens of the best centroids alone: u = rms_norm(x, norm); the topK largest of `scores`, ties by lower
 * index; y[token] = table[token] · u for the tokens of their rows of `ordering`, and for all others the least of those - 1.
 * A token of `ordering` that does not exist is passed over.
 */
export interface CentroidHeadOp {
  kind: "centroid_head";
  /** [r, H] */ x: Tensor;
  /** [H] */ norm?: Tensor;
  /** [r, C] */ scores: Tensor;
  /** u32 [C, V / C]: tokens of each centroid */ ordering: Tensor;
  /** [V, H] */ table: Tensor;
  /** [r, V] */ y: Tensor;
  topK: number;
  eps: number;
}

/** The choice of experts from ready logits, as in `route`. */
export interface TopKOp {
  kind: "top_k";
  /** [r, E] */ logits: Tensor;
  /** [E] */ perExpertScale: Tensor;
  /** u32 [r, K] */ experts: Tensor;
  /** [r, K] */ y: Tensor;
}

/**
 * y[:, s·N : (s + 1)·N] = rows [firstRow, firstRow + N) of weight[experts[:, s]] · x, or · x[:, s·n : (s + 1)·n] where x
 * has a part for each slot. Zeros for an expert that does not exist.
 */
export interface ExpertLinearOp {
  kind: "expert_linear";
  /** [r, n] or [r, K·n] */ x: Tensor;
  /** u32 [r, K] */ experts: Tensor;
  /** [E, R, n] */ weight: Tensor;
  firstRow: number;
  /** [r, K·N] */ y: Tensor;
}

/** y = Σ over slots s of shares[:, s] · x[:, s·n : (s + 1)·n]. */
export interface ExpertSumOp {
  kind: "expert_sum";
  /** [r, K·n] */ x: Tensor;
  /** [r, K] */ shares: Tensor;
  /** [r, n] */ y: Tensor;
}

/** y = rms_norm(x · inScale) · weight over each `group` columns: x · (mean(x²) + eps)^-1/2 · weight. */
export interface RmsNormOp {
  kind: "rms_norm";
  /** [r, n] */ x: Tensor;
  /** [group] */ weight?: Tensor;
  /** [r, n] */ y: Tensor;
  group: number;
  eps: number;
  inScale: number;
}

/** y = (a · aScale + b · bScale) · scalar. */
export interface AddOp {
  kind: "add";
  /** [r, n] */ a: Tensor;
  /** [r, n] */ b?: Tensor;
  /** [1] */ scalar?: Tensor;
  /** [r, n] */ y: Tensor;
  aScale: number;
  bScale: number;
}

/** y = gelu_tanh(a) · b[:, column : column + n]. */
export interface GeluMulOp {
  kind: "gelu_mul";
  /** [r, n] */ a: Tensor;
  /** [r, m] */ b: Tensor;
  column: number;
  /** [r, n] */ y: Tensor;
}

/** y = cap · tanh(x / cap). */
export interface SoftcapOp {
  kind: "softcap";
  /** [r, n] */ x: Tensor;
  /** [r, n] */ y: Tensor;
  cap: number;
}

/** Rotates each head of x by its row's position. */
export interface RopeOp {
  kind: "rope";
  /** [r, heads·d] */ x: Tensor;
  /** [r, heads·d] */ y: Tensor;
  heads: number;
  headDim: number;
  rope: Rope;
}

/** Writes the rows' k and v (already normalised and rotated) to their page slots. */
export interface KvWriteOp {
  kind: "kv_write";
  /** [r, kvHeads·d] */ k: Tensor;
  /** [r, kvHeads·d] */ v: Tensor;
  kv: KvLayer;
  kvHeads: number;
  headDim: number;
}

/** Attention of ready queries over pages. */
export interface AttendOp {
  kind: "attend";
  /** [r, heads·d] */ q: Tensor;
  kv: KvLayer;
  /** [r, heads·d] */ y: Tensor;
  heads: number;
  kvHeads: number;
  headDim: number;
  window: number | null;
  /** default causal */ block?: BlockRule;
  scoreScale: number;
}

/** Any op of a plan; `layer` is for messages and statistics. */
export type Op =
  & (
    | EmbedOp
    | PerLayerInputsOp
    | LinearOp
    | AttentionOp
    | GatherOp
    | CandidatesOp
    | RouteOp
    | ExpertGateUpOp
    | ExpertDownOp
    | AddNormsOp
    | DraftInputOp
    | CentroidHeadOp
    | TopKOp
    | ExpertLinearOp
    | ExpertSumOp
    | RmsNormOp
    | AddOp
    | GeluMulOp
    | SoftcapOp
    | RopeOp
    | KvWriteOp
    | AttendOp
    | TowerOp
  )
  & { layer?: number };
