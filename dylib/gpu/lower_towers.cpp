// lower_towers.cpp: the ops of vision and audio towers. Their rows are all alike, whatever their class.
//
//   add_positions, pool, layer_norm, subsample, light_conv   1 dispatch
//   patch_attention                                          patch_heads, patch_attention
//   local_attention                                          distance_table, relative_keys, local_attention
#include <algorithm>
#include <cmath>

#include "lower.h"

namespace mb::gpu {
namespace {

#include "../../shaders/tower_params.h"

constexpr uint32_t kThreads = 256;

uint32_t width_of(const Tensor &t) { return static_cast<uint32_t>(t.dims[1]); }

Launch &bind_optional(Launch &launch, uint32_t slot, const Tensor *t) {
  return t != nullptr ? launch.reads(slot, *t) : launch.absent(slot);
}

// The format of a small matrix that the kernels read number by number.
uint32_t plain_format(const Tensor &t, const char *what) {
  if (t.format == kF32 || t.format == kF16 || t.format == kBF16) return t.format;
  fail(MB_UNSUPPORTED, "The GPU kernels of towers read %s as f32, f16 or bf16; use device \"cpu\".", what);
}

}  // namespace

void lower_add_positions(Emitter &e, const Op &op) {
  const Tensor &x = *op.operands[0], &table = *op.operands[1], &positions = *op.operands[2], &y = *op.operands[3];
  const uint32_t rows = e.rows_of(y).count;
  if (rows == 0) return;
  const AddPositionsParams p{width_of(x), plain_format(table, "position tables"), op.ints[0], op.ints[1], op.ints[2]};
  Launch launch("tower_rows", "add_positions");
  launch.reads_rows(0, x, 0, rows)
      .reads(1, table)
      .reads_rows(2, positions, 0, rows)
      .writes_rows(3, y, 0, rows)
      .params(4, p)
      .groups(divide_up(p.width, kThreads), rows)
      .threads(kThreads);
  e.emit(launch);
}

void lower_pool(Emitter &e, const Op &op) {
  const Tensor &x = *op.operands[0], &members = *op.operands[1], *bias = op.operands[2], *scale = op.operands[3];
  const Tensor &y = *op.operands[4];
  const uint32_t rows = e.rows_of(y).count;
  if (rows == 0) return;
  PoolParams p{};
  p.rows = e.rows_of(x).count;
  p.width = width_of(x);
  p.members = width_of(members);
  p.has_bias = bias != nullptr;
  p.has_scale = scale != nullptr;
  if (bias != nullptr) p.bias_format = scalar_format(*bias);
  if (scale != nullptr) p.scale_format = scalar_format(*scale);
  p.factor = op.floats[0];
  Launch launch("tower_rows", "pool");
  launch.reads_rows(0, x, 0, p.rows).reads_rows(1, members, 0, rows);
  bind_optional(launch, 2, bias);
  bind_optional(launch, 3, scale);
  launch.writes_rows(4, y, 0, rows).params(5, p).groups(divide_up(p.width, kThreads), rows).threads(kThreads);
  e.emit(launch);
}

void lower_layer_norm(Emitter &e, const Op &op) {
  const Tensor &x = *op.operands[0], &weight = *op.operands[1], *bias = op.operands[2], &y = *op.operands[3];
  const uint32_t rows = e.rows_of(y).count;
  if (rows == 0) return;
  LayerNormParams p{};
  p.width = width_of(x);
  p.weight_format = scalar_format(weight);
  p.has_bias = bias != nullptr;
  if (bias != nullptr) p.bias_format = scalar_format(*bias);
  p.eps = op.floats[0];
  Launch launch("tower_rows", "layer_norm");
  launch.reads_rows(0, x, 0, rows).reads(1, weight);
  bind_optional(launch, 2, bias);
  launch.writes_rows(3, y, 0, rows).params(4, p).groups(rows).threads(kThreads);
  e.emit(launch);
}

void lower_subsample(Emitter &e, const Op &op) {
  const Tensor &x = *op.operands[0], &valid = *op.operands[1], &w = *op.operands[2], &norm = *op.operands[3];
  const Tensor &y = *op.operands[4];
  const uint32_t rows = e.rows_of(y).count, from = e.rows_of(x).count;
  if (rows == 0) return;
  SubsampleParams p{};
  p.frames = from * op.ints[1];
  p.bins = op.ints[0];
  p.channels = static_cast<uint32_t>(w.dims[1] / 9);
  p.outputs = static_cast<uint32_t>(w.dims[0]);
  p.channels_last = (op.flags & kChannelsLast) != 0;
  p.weight_format = plain_format(w, "convolutions");
  p.norm_format = scalar_format(norm);
  p.eps = op.floats[0];
  Launch launch("subsample", "subsample");
  launch.reads_rows(0, x, 0, from)
      .reads_rows(1, valid, 0, from)
      .reads(2, w)
      .reads(3, norm)
      .writes_rows(4, y, 0, rows)
      .params(5, p)
      .groups(p.bins / 2, rows)
      .threads(kThreads);
  e.emit(launch);
}

void lower_light_conv(Emitter &e, const Op &op) {
  const Tensor &x = *op.operands[0], &w = *op.operands[1], &norm = *op.operands[2], &y = *op.operands[3];
  const uint32_t rows = e.rows_of(y).count;
  if (rows == 0) return;
  const LightConvParams p{width_of(y), width_of(w), plain_format(w, "convolutions"), scalar_format(norm), op.floats[0]};
  Launch launch("light_conv", "light_conv");
  launch.reads_rows(0, x, 0, rows)
      .reads(1, w)
      .reads(2, norm)
      .writes_rows(3, y, 0, rows)
      .params(4, p)
      .groups(rows)
      .threads(kThreads);
  e.emit(launch);
}

void lower_local_attention(Emitter &e, const Op &op) {
  const Tensor &q = *op.operands[0], &k = *op.operands[1], &v = *op.operands[2], &dim_scale = *op.operands[3];
  const Tensor &relative = *op.operands[4], &valid = *op.operands[5], &y = *op.operands[6];
  const uint32_t rows = e.rows_of(y).count, heads = op.ints[0], d = op.ints[1], left = op.ints[2], right = op.ints[3];
  const uint32_t reach = left + std::max(right, 1u) - 1, width = heads * d, columns = width_of(relative);
  if (rows == 0) return;
  const uint64_t table_bytes = uint64_t{reach} * columns * 4, key_bytes = uint64_t{reach} * width * 4;
  const uint64_t table = e.scratch(table_bytes), keys = e.scratch(key_bytes);

  Launch distances("local_attention", "distance_table");
  distances.writes_scratch(0, table, table_bytes)
      .params(1, DistanceParams{columns, static_cast<float>(left) - 1.0f + op.floats[0]})
      .groups(divide_up(columns, kThreads), reach)
      .threads(kThreads);
  e.emit(distances);

  Launch relatives("local_attention", "relative_keys");
  relatives.reads_scratch(0, table, table_bytes)
      .reads(1, relative)
      .writes_scratch(2, keys, key_bytes)
      .params(3, RelativeKeysParams{width, columns, reach, plain_format(relative, "keys of distances")})
      .groups(divide_up(width, 8), reach)
      .threads(kThreads);
  e.emit(relatives);

  const LocalAttentionParams p{rows, heads, d, left, reach, scalar_format(dim_scale), op.floats[1], op.floats[2], op.floats[3]};
  uint32_t lanes = 1;
  while (lanes * 32 < d) lanes *= 2;
  Launch launch("local_attention", "local_attention_l" + std::to_string(lanes));
  launch.reads_rows(0, q, 0, rows)
      .reads_rows(1, k, 0, rows)
      .reads_rows(2, v, 0, rows)
      .reads(3, dim_scale)
      .reads_scratch(4, keys, key_bytes)
      .reads_rows(5, valid, 0, rows)
      .writes_rows(6, y, 0, rows)
      .params(7, p)
      .groups(divide_up(uint64_t{rows} * heads, 8))
      .threads(kThreads);
  e.emit(launch);
}

void lower_patch_attention(Emitter &e, const Op &op) {
  const Tensor &q = *op.operands[0], &k = *op.operands[1], &v = *op.operands[2], &q_norm = *op.operands[3];
  const Tensor &k_norm = *op.operands[4], &positions = *op.operands[5], &y = *op.operands[6];
  const uint32_t rows = e.rows_of(y).count, heads = op.ints[0], kv_heads = op.ints[1], d = op.ints[2];
  uint32_t padded = 0;
  for (const uint32_t size : {128, 96, 64, 32}) {
    if (d <= size) padded = size;
  }
  if (padded == 0) {
    fail(MB_UNSUPPORTED, "Patch heads of %u: the GPU kernels take 128 at most; use device \"cpu\".", d);
  }
  if (rows == 0) return;
  const uint32_t vectors = heads + 2 * kv_heads;
  const std::string format = e.exact() ? "f32" : "f16";
  const uint64_t bytes = uint64_t{vectors} * rows * padded * (e.exact() ? 4 : 2);
  const uint64_t stored = e.scratch(bytes);
  PatchHeadsParams h{};
  h.rows = rows, h.heads = heads, h.kv_heads = kv_heads, h.head_dim = d, h.padded = padded;
  h.q_format = scalar_format(q_norm), h.k_format = scalar_format(k_norm);
  h.theta_log2 = static_cast<float>(std::log2(double{op.floats[0]}) * 4 / d);
  h.eps = op.floats[1];
  Launch prepare("patch_attention", "patch_heads_" + format);
  prepare.reads_rows(0, q, 0, rows)
      .reads_rows(1, k, 0, rows)
      .reads_rows(2, v, 0, rows)
      .reads(3, q_norm)
      .reads(4, k_norm)
      .reads_rows(5, positions, 0, rows)
      .writes_scratch(6, stored, bytes)
      .params(7, h)
      .groups(divide_up(vectors, 8), rows)
      .threads(kThreads);
  e.emit(prepare);

  const PatchAttentionParams p{rows, heads, kv_heads, d, static_cast<float>(double{op.floats[2]} * 1.4426950408889634)};
  Launch launch("patch_attention", "patch_attention_" + format + "_d" + std::to_string(padded));
  launch.reads_scratch(0, stored, bytes)
      .writes_rows(1, y, 0, rows)
      .params(2, p)
      .groups(divide_up(rows, 64), heads)
      .threads(128);
  e.emit(launch);
}

}  // namespace mb::gpu
