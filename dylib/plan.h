// plan.h: the binary plan that src/schedule/plan.ts writes and every device reads.
//
// Little-endian, records packed as declared here, in this order: header, symbols (fixed four), buffers, tensors, ops,
// outputs. A plan is untrusted: decode_plan() checks every count, operand, extent, alignment and overlap
// before a device sees it. src/schedule/ops.ts documents what each op computes; src/conformance/oracle is its specification.
#pragma once
#include <cstdint>

namespace mb {

constexpr uint32_t kPlanMagic = 0x4c50424d;  // "MBPL"
constexpr uint32_t kPlanVersion = 1;
constexpr uint32_t kNone = 0xffffffff;  // an absent operand, group or layer
constexpr uint32_t kPageTokens = 32;    // tokens in one KV page

// A dimension is a constant (>= 0) or a symbol (-1 - index).
enum Symbol : uint32_t { kRows = 0, kOutRows = 1, kSequences = 2, kPages = 3, kSymbolCount = 4 };

enum PlanFlags : uint32_t {
  kPlanExact = 1u << 0,        // f32 arithmetic in one fixed order; otherwise the device's fast mode
  kPlanCheckFinite = 1u << 1,  // after each op look for NaN and Inf in what it wrote
  kPlanInPlace = 1u << 2,      // the CPU device reads weights where they lie: a copy in another layout would serve too few runs
};

// Codes are written into files by nobody, so they may change with kPlanVersion.
enum Format : uint32_t {
  kF32 = 0, kF16 = 1, kBF16 = 2, kU32 = 3, kI8 = 4,
  // MLX affine: w = scale * code + bias; `bits` and `group` in the tensor record, scales and biases as tensors.
  kAffine = 16,
  // MLX floating-point modes: e2m1/e4m3 codes with a shared scale per group.
  kMxfp4 = 17, kMxfp8 = 18, kNvfp4 = 19,
  // GGUF block types: 32 + the type number of the file format. Their scales lie in the blocks.
  kGguf = 32,
  kQ4_0 = kGguf + 2, kQ4_1 = kGguf + 3, kQ5_0 = kGguf + 6, kQ5_1 = kGguf + 7, kQ8_0 = kGguf + 8,
  kQ2K = kGguf + 10, kQ3K = kGguf + 11, kQ4K = kGguf + 12, kQ5K = kGguf + 13, kQ6K = kGguf + 14,
  kIq4Nl = kGguf + 20, kIq4Xs = kGguf + 23,
};

constexpr bool is_gguf(Format format) { return format >= kGguf; }
// One number per element.
constexpr bool is_plain(Format format) { return format < kAffine; }

struct PlanHeader {  // 48 bytes
  uint32_t magic, version, flags;
  uint32_t buffer_count, tensor_count, op_count, output_count;
  uint32_t group_count;      // KV page groups that the input block carries tables for
  uint32_t vocabulary_size;  // tokens of an input block are below this
  uint32_t reserved[3];
};
// then uint64_t symbol_max[kSymbolCount]

struct BufferRecord {  // 16 bytes
  uint64_t min_bytes;
  uint32_t writable;  // 0: read-only (weights), 1: read-write
  uint32_t reserved;
};

struct TensorRecord {  // 80 bytes
  uint32_t format;
  uint32_t buffer;
  uint64_t offset;  // bytes from the buffer's start
  uint32_t rank;    // 1..5 row-major dimensions, last one contiguous
  uint32_t bits;    // affine: 2, 3, 4, 5, 6 or 8; otherwise 0
  uint32_t group;   // quantised: elements that share a scale; otherwise 0
  uint32_t scales;  // tensor index or kNone
  uint32_t biases;  // tensor index or kNone
  uint32_t reserved;
  int64_t dims[5];
};

constexpr uint32_t kMaxOperands = 20;

struct OpRecord {  // 160 bytes
  uint32_t kind;
  uint32_t flags;
  uint32_t layer;  // for messages and statistics; kNone outside layers
  uint32_t reserved;
  uint32_t operands[kMaxOperands];  // tensor indices or kNone, in the order given below
  uint32_t ints[8];
  float floats[8];
};

struct OutputRecord {  // 8 bytes
  uint32_t tensor;  // dim 0 is a symbol; only live rows are copied out
  uint32_t reserved;
};

// Op kinds. Operand, int and float slots of each are listed beside it: in → out.
enum OpKind : uint32_t {
  // y[r] = scale * table[token[r]], or soft[soft_row[r]] where the input block gives one.
  //   operands: table, y, soft f32 [S, W] (or none).                            floats: scale
  kEmbed = 1,
  // y = rms_norm_P(projected * projection_scale, norm) * out_scale + table[token] * table_scale * out_scale
  //   operands: projected [r, L*P], table [V, L*P], norm [P], y [r, L*P].     ints: P
  //   floats: eps, projection_scale, table_scale, out_scale
  kPerLayerInputs = 2,
  // The fused matrix product, see ops.ts `linear`.
  //   operands: x, residual, post_norm, scalar, h_out, pre_norm, w0, w1, w2, bias0, bias1, bias2, other, y
  //   ints: epilogue (Epilogue), other_column.   floats: eps, softcap; with kClip least and largest of u, and of the product
  //   flags: kClip, with w0 alone
  kLinear = 3,
  // Head norms + RoPE + cache write + attention, see ops.ts `attention`.
  //   operands: qkv, q_norm, k_norm, kv, y.
  //   ints: heads, kv_heads, head_dim, rotated_pairs, kv_layer, group, window (0: none)
  //   floats: theta, eps, score_scale, position_scale, position_offset (rotation alone).   flags: AttentionFlags
  kAttention = 4,
  // y[i] = x[out_row[i]].                      operands: x [rows, n], y [out_rows, n]
  kGather = 5,
  // The best 256 of each adjusted row.         operands: logits [r, V], ids u32 [r, 256], values f32 [r, 256],
  //   stats f32 [r, 4] = raw log-sum-exp, log-sum-exp of adjusted/temperature, largest adjusted logit, 0
  kCandidates = 6,

  // Routed experts (src/schedule/ops.ts). An expert id of E or more stands for an expert whose products are zero.
  // Chooses experts.                           operands: x [r, H], scale [H], projection [E, H], per_expert_scale [E],
  //   experts u32 [r, K], y [r, K].            floats: eps, in_scale
  kRoute = 7,
  // Gate and up of the chosen experts.         operands: x [r, H], pre_norm [H] (or none), experts u32 [r, K],
  //   w0 [E, 2I, H] (gate rows first), or w0 and w1 [E, I, H], y [r, K*I].      floats: eps
  kExpertGateUp = 8,
  // Their weighted sum.                        operands: x [r, K*I], experts u32 [r, K], shares [r, K], w [E, H, I], y [r, H]
  kExpertDown = 9,
  // y = rms_norm(a, a_norm) + rms_norm(b, b_norm).  operands: a, a_norm, b, b_norm, y.   floats: eps
  kAddNorms = 10,
  // y = [scale * table[token] | state].        operands: table [V, B], state [r, B], y [r, 2B].   floats: scale
  kDraftInput = 11,
  // Logits of the tokens of the best centroids, the least of them - 1 for the others; ids of V or more are passed over.
  //   operands: x [r, H], norm [H] (or none), scores [r, C], ordering u32 [C, V/C], table [V, H], y [r, V].
  //   ints: top_k.   floats: eps
  kCentroidHead = 12,

  // Towers (src/schedule/tower_ops.ts). An index that points outside contributes nothing.
  // y = x + table[positions[0] * step] + table[positions[1] * step + second].
  //   operands: x [r, n], table [T, n], positions u32 [r, 2], y.    ints: count, step, second
  kAddPositions = 13,
  // Head norms, rotation by two axes, attention of every row to every row.
  //   operands: q [r, heads*d], k, v [r, kv_heads*d], q_norm [d], k_norm [d], positions u32 [r, 2], y [r, heads*d].
  //   ints: heads, kv_heads, head_dim.   floats: theta, eps, score_scale
  kPatchAttention = 14,
  // y = (factor * sum of x[members] - bias) * scale.
  //   operands: x [rows, n], members u32 [out_rows, m], bias [n] (or none), scale [n] (or none), y [out_rows, n].
  //   floats: factor
  kPoolRows = 15,
  // 3 x 3 convolution of stride 2 over time and frequency, layer norm over channels, ReLU.
  //   operands: x [r, frames_per_row*bins*C], valid u32 [r, frames_per_row], w [C', 9*C], norm [C'], y [r', bins/2*C'].
  //   ints: bins, frames_per_row (1 or 2).   floats: eps.   flags: kChannelsLast
  kSubsample = 16,
  // Attention to rows around each row, with keys for distances.
  //   operands: q, k, v [r, heads*d], per_dim_scale [d], relative [heads*d, n], valid u32 [r, 1], y [r, heads*d].
  //   ints: heads, head_dim, left, right.   floats: shift, q_scale, k_scale, cap
  kLocalAttention = 17,
  // Gate, causal depthwise convolution, norm, SiLU. operands: x [r, 2n], w [n, k], norm [n], y [r, n].   floats: eps
  kLightConv = 18,
  // operands: x [r, n], weight [n], bias [n] (or none), y.   floats: eps
  kLayerNorm = 19,

  // Elementary ops: the schedule with fuse: false is made of these and of kLinear without prologue or epilogue.
  // y = x * (mean(x^2 over each `group` columns) + eps)^-1/2 * weight, x first multiplied by in_scale
  //   operands: x, weight (or none), y.          ints: group.      floats: eps, in_scale
  kRmsNorm = 32,
  // y = (a * a_scale + b * b_scale) * scalar.  operands: a, b (or none), scalar [1] (or none), y.
  //   floats: a_scale, b_scale
  kAdd = 33,
  // y = gelu_tanh(a) * b[:, column : column + n].  operands: a [r, n], b [r, m], y.   ints: column
  kGeluMul = 34,
  // y = cap * tanh(x / cap).                   operands: x, y.      floats: cap
  kSoftcap = 35,
  // Half-split rotation of each head.          operands: x [r, heads*d], y.  ints: heads, head_dim, rotated_pairs
  //   floats: theta, position_scale, position_offset
  kRope = 36,
  // Writes each row's k and v to its page slot. operands: k, v, kv.   ints: kv_heads, head_dim, kv_layer, group
  kKvWrite = 37,
  // Attention over pages.                      operands: q, kv, y.
  //   ints: heads, kv_heads, head_dim, kv_layer, group, window.   floats: score_scale.   flags: kBlockWindow, kBlockWhole
  kAttend = 38,
  // The choice of kRoute from ready logits.    operands: logits [r, E], per_expert_scale [E], experts u32 [r, K], y [r, K]
  kTopK = 39,
  // Rows [first_row, first_row + N) of the chosen experts times x, or times the slot's part of x.
  //   operands: x [r, n] or [r, K*n], experts u32 [r, K], w [E, R, n], y [r, K*N].   ints: first_row
  kExpertLinear = 40,
  // y = sum of shares * x over slots.          operands: x [r, K*n], shares [r, K], y [r, n]
  kExpertSum = 41,
};

enum Epilogue : uint32_t {
  kEpilogueNone = 0,     // y = [W0 u | W1 u | W2 u], side by side in y's columns
  kEpilogueGeglu = 1,    // y = gelu_tanh(W0 u) * (W1 u)
  kEpilogueGeluMul = 2,  // y = gelu_tanh(W0 u) * other[:, other_column : other_column + n]
  kEpilogueSoftcap = 3,  // y = softcap * tanh(W0 u / softcap)
  kEpilogueSilu = 4,     // y = W0 u * sigmoid(W0 u)
};

enum LinearFlags : uint32_t { kClip = 1u << 0 };            // u and the product are clamped
enum SubsampleFlags : uint32_t { kChannelsLast = 1u << 0 };  // w is [C', 3, 3, C] instead of [C', C, 3, 3]

enum AttentionFlags : uint32_t {
  kOwnsKv = 1u << 0,         // qkv = [q | k | v]; k and v are written to the pages. Otherwise qkv = [q] alone
  kKeysAreValues = 1u << 1,  // qkv = [q | k]; v is the raw k, normalised without weight, not rotated
  kNormValues = 1u << 2,     // v is RMS-normalised per head without weight (Gemma 4); Gemma 3 leaves it raw
  // What a row of a block (input.h) sees beside earlier keys; also of attend.
  kBlockWindow = 1u << 3,    // later keys of its block
  kBlockWhole = 1u << 4,     // all keys of its block, even before the window
};

}  // namespace mb
