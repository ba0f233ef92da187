/**
 * The ops that only vision and audio towers have; towers use `linear`, `rms_norm` and `add` beside them. Rows are patches,
 * frames or soft tokens; no row knows a page or a token. `r` is `rows` or `out_rows`. An index that lies outside what it
 * points into contributes nothing.
 */
import type { Tensor } from "./tensor.ts";

/** y = x + table[positions[:, 0] · step] + table[positions[:, 1] · step + second]; a position of `count` or more adds nothing. */
export interface AddPositionsOp {
  kind: "add_positions";
  /** [r, n] */ x: Tensor;
  /** [T, n], one row for each position of each axis */ table: Tensor;
  /** u32 [r, 2]: (x, y) */ positions: Tensor;
  /** [r, n] */ y: Tensor;
  /** positions of an axis */ count: number;
  /** rows of the table from one position of an axis to the next */ step: number;
  /** row of position 0 of the second axis */ second: number;
}

/**
 * Attention of every row to every row: q and k are normalised per head and rotated, v is normalised per head without
 * weight. The first half of a head turns by positions[:, 0] and the second by positions[:, 1], each half-split: pair
 * (i, i + d/4) of a half by position · theta^(-4i/d), i < d/4. y = softmax(q · Kᵀ · scoreScale) · V.
 */
export interface PatchAttentionOp {
  kind: "patch_attention";
  /** [r, heads·d] */ q: Tensor;
  /** [r, kvHeads·d] */ k: Tensor;
  /** [r, kvHeads·d] */ v: Tensor;
  /** [d] */ qNorm: Tensor;
  /** [d] */ kNorm: Tensor;
  /** u32 [r, 2]: (x, y) */ positions: Tensor;
  /** [r, heads·d] */ y: Tensor;
  heads: number;
  kvHeads: number;
  /** d, a multiple of 4 */ headDim: number;
  theta: number;
  eps: number;
  scoreScale: number;
}

/** y[i] = (factor · Σ_j x[members[i, j]] - bias) · scale, bias and scale where given. */
export interface PoolOp {
  kind: "pool";
  /** [rows, n] */ x: Tensor;
  /** u32 [out_rows, m]: rows of x */ members: Tensor;
  /** [n] */ bias?: Tensor;
  /** [n] */ scale?: Tensor;
  /** [out_rows, n] */ y: Tensor;
  factor: number;
}

/**
 * A 3 × 3 convolution of stride 2 over time and frequency with one row and column of zeros around, a layer norm over
 * channels without bias, and ReLU. Frame t of x has `bins` numbers for each of C channels, channel fastest, and is in
 * x[t / framesPerRow]; a frame whose `valid` is 0 counts as zeros. Frame t of y is y[t], [bins / 2, C']:
 * y[t, f, c] = relu(layer_norm_c(Σ_{i, j, b} weight[c, …] · x[2t - 1 + i, 2f - 1 + j, b]) · norm[c]).
 */
export interface SubsampleOp {
  kind: "subsample";
  /** [r, framesPerRow · bins · C] */ x: Tensor;
  /** u32 [r, framesPerRow] */ valid: Tensor;
  /** [C', 9·C]: [C', C, 3, 3], or channelsLast [C', 3, 3, C]; time before frequency */ weight: Tensor;
  /** [C'] */ norm: Tensor;
  /** [r', bins/2 · C'], r' being r, or out_rows */ y: Tensor;
  bins: number;
  framesPerRow: 1 | 2;
  channelsLast: boolean;
  eps: number;
}

/**
 * Attention of each row to rows around it, with keys for distances:
 * q' = q · qScale · softplus(perDimScale), k' = k · kScale; for key b of row a, visible if 0 <= a - b < left or
 * 0 < b - a < right, and valid[b] is not 0: score = cap · tanh((q'[a] · k'[b] + q'[a] · rel[a - b]) / cap);
 * y = softmax over the visible keys · V, zeros where there is none. rel[p] = relative · s(p + shift), where s holds
 * sin(p · t_i) for i < n/2, then cos(p · t_i), t_i = 10000^(-i / (n/2 - 1)).
 */
export interface LocalAttentionOp {
  kind: "local_attention";
  /** [r, heads·d] */ q: Tensor;
  /** [r, heads·d] */ k: Tensor;
  /** [r, heads·d] */ v: Tensor;
  /** [d] */ perDimScale: Tensor;
  /** [heads·d, n], n even */ relative: Tensor;
  /** u32 [r, 1] */ valid: Tensor;
  /** [r, heads·d] */ y: Tensor;
  heads: number;
  headDim: number;
  /** keys at and before a row */ left: number;
  /** 1 + keys after a row, or 0 */ right: number;
  shift: number;
  qScale: number;
  kScale: number;
  cap: number;
}

/**
 * The light convolution of a conformer: g = x[:, :n] · sigmoid(x[:, n:]);
 * c[t] = Σ_j weight[:, j] · g[t - (k - 1) + j], rows before the first being zeros; y = silu(rms_norm(c, norm)).
 */
export interface LightConvOp {
  kind: "light_conv";
  /** [r, 2n] */ x: Tensor;
  /** [n, k] */ weight: Tensor;
  /** [n] */ norm: Tensor;
  /** [r, n] */ y: Tensor;
  eps: number;
}

/** y = (x - mean(x)) · (variance(x) + eps)^-1/2 · weight + bias. */
export interface LayerNormOp {
  kind: "layer_norm";
  /** [r, n] */ x: Tensor;
  /** [n] */ weight: Tensor;
  /** [n] */ bias?: Tensor;
  /** [r, n] */ y: Tensor;
  eps: number;
}

/** Any of them. */
export type TowerOp =
  | AddPositionsOp
  | PatchAttentionOp
  | PoolOp
  | SubsampleOp
  | LocalAttentionOp
  | LightConvOp
  | LayerNormOp;
