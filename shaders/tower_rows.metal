// tower_rows.metal: the row-wise ops of towers: add_positions, pool and layer_norm.
#include "common.h"
#include "tower_params.h"

// y = x + table[positions[0] · step] + table[positions[1] · step + second]. x, y [rows, width]; grid: columns, rows.
[[kernel, max_total_threads_per_threadgroup(256)]] void add_positions(
    device const float* x           [[buffer(0)]],
    device const uchar* table       [[buffer(1)]],
    device const uint* positions    [[buffer(2)]],
    device float* y                 [[buffer(3)]],
    constant AddPositionsParams& p  [[buffer(4)]],
    uint2 at                        [[thread_position_in_grid]])
{
  if (at.x >= p.width) {
    return;
  }
  const uint across = positions[2 * at.y];
  const uint down = positions[2 * at.y + 1];
  float v = x[ulong(at.y) * p.width + at.x];
  if (across < p.count) {
    v += load_scalar(table, p.table_format, across * p.step * p.width + at.x);
  }
  if (down < p.count) {
    v += load_scalar(table, p.table_format, (down * p.step + p.second) * p.width + at.x);
  }
  y[ulong(at.y) * p.width + at.x] = v;
}

// y[i] = (factor · Σ x[members[i]] - bias) · scale. x [rows, width], members [out rows, members]; grid: columns, out rows.
[[kernel, max_total_threads_per_threadgroup(256)]] void pool(
    device const float* x       [[buffer(0)]],
    device const uint* members  [[buffer(1)]],
    device const uchar* bias    [[buffer(2)]],
    device const uchar* scale   [[buffer(3)]],
    device float* y             [[buffer(4)]],
    constant PoolParams& p      [[buffer(5)]],
    uint2 at                    [[thread_position_in_grid]])
{
  if (at.x >= p.width) {
    return;
  }
  float sum = 0.0f;
  for (uint j = 0; j < p.members; j++) {
    const uint row = members[at.y * p.members + j];
    if (row < p.rows) {
      sum += x[ulong(row) * p.width + at.x];
    }
  }
  float v = sum * p.factor;
  if (p.has_bias != 0) {
    v -= load_scalar(bias, p.bias_format, at.x);
  }
  y[ulong(at.y) * p.width + at.x] = p.has_scale != 0 ? v * load_scalar(scale, p.scale_format, at.x) : v;
}

// y = (x - mean) · (variance + eps)^-1/2 · weight + bias. One threadgroup a row.
[[kernel, max_total_threads_per_threadgroup(256)]] void layer_norm(
    device const float* x        [[buffer(0)]],
    device const uchar* weight   [[buffer(1)]],
    device const uchar* bias     [[buffer(2)]],
    device float* y              [[buffer(3)]],
    constant LayerNormParams& p  [[buffer(4)]],
    uint row       [[threadgroup_position_in_grid]],
    uint tid       [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane      [[thread_index_in_simdgroup]])
{
  threadgroup float partial[8];
  threadgroup float squares[8];
  const ulong start = ulong(row) * p.width;
  float sum = 0.0f;
  for (uint i = tid; i < p.width; i += 256) {
    sum += x[start + i];
  }
  const float mean = threadgroup_sum(sum, partial, 8, simdgroup, lane) / float(p.width);
  sum = 0.0f;
  for (uint i = tid; i < p.width; i += 256) {
    const float v = x[start + i] - mean;
    sum = fma(v, v, sum);
  }
  const float factor = precise::rsqrt(threadgroup_sum(sum, squares, 8, simdgroup, lane) / float(p.width) + p.eps);
  for (uint i = tid; i < p.width; i += 256) {
    const float v = (x[start + i] - mean) * factor * load_scalar(weight, p.weight_format, i);
    y[start + i] = p.has_bias != 0 ? v + load_scalar(bias, p.bias_format, i) : v;
  }
}
