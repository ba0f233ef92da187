// pointwise.metal: gather, rms_norm, add, gelu_mul, softcap and rope: the elementary ops. Fused schedules use gather alone.
#include "common.h"
#include "input_block.h"
#include "pointwise_params.h"
#include "rows_params.h"

// y[i] = x[out_row[i]]. x [rows, width], y [out_rows, width]; grid: columns, out rows.
[[kernel, max_total_threads_per_threadgroup(256)]] void gather(
    device const float* x       [[buffer(0)]],
    device const uint* input    [[buffer(1)]],
    device float* y             [[buffer(2)]],
    constant GatherParams& p    [[buffer(3)]],
    uint2 at                    [[thread_position_in_grid]])
{
  if (at.x < p.width) {
    y[ulong(at.y) * p.width + at.x] = x[ulong(input_out_row(input)[at.y]) * p.width + at.x];
  }
}

// y = x · in_scale · (mean((x · in_scale)²) + eps)^-1/2 · weight over each group. x, y [groups, group], weight [group].
// One threadgroup a group.
[[kernel, max_total_threads_per_threadgroup(256)]] void rms_norm(
    device const float* x       [[buffer(0)]],
    device const uchar* weight  [[buffer(1)]],
    device float* y             [[buffer(2)]],
    constant RmsNormParams& p   [[buffer(3)]],
    uint index     [[threadgroup_position_in_grid]],
    uint tid       [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane      [[thread_index_in_simdgroup]])
{
  threadgroup float partial[8];
  const ulong start = ulong(index) * p.group;
  float sum = 0.0f;
  for (uint i = tid; i < p.group; i += 256) {
    const float v = x[start + i] * p.in_scale;
    sum = fma(v, v, sum);
  }
  sum = threadgroup_sum(sum, partial, 8, simdgroup, lane);
  const float factor = precise::rsqrt(sum / float(p.group) + p.eps);
  for (uint i = tid; i < p.group; i += 256) {
    const float v = x[start + i] * p.in_scale * factor;
    y[start + i] = p.has_weight != 0 ? v * load_scalar(weight, p.weight_format, i) : v;
  }
}

// y = (a · a_scale + b · b_scale) · scalar. a, b, y [count], scalar [1].
[[kernel, max_total_threads_per_threadgroup(256)]] void add(
    device const float* a       [[buffer(0)]],
    device const float* b       [[buffer(1)]],
    device const uchar* scalar  [[buffer(2)]],
    device float* y             [[buffer(3)]],
    constant AddParams& p       [[buffer(4)]],
    uint i                      [[thread_position_in_grid]])
{
  if (i >= p.count) {
    return;
  }
  float v = a[i] * p.a_scale;
  if (p.has_b != 0) {
    v = fma(b[i], p.b_scale, v);
  }
  y[i] = p.has_scalar != 0 ? v * load_scalar(scalar, p.scalar_format, 0) : v;
}

// y = gelu_tanh(a) · b[:, column : column + width]. a, y [rows, width], b [rows, b_width]; grid: columns, rows.
[[kernel, max_total_threads_per_threadgroup(256)]] void gelu_mul(
    device const float* a        [[buffer(0)]],
    device const float* b        [[buffer(1)]],
    device float* y              [[buffer(2)]],
    constant GeluMulParams& p    [[buffer(3)]],
    uint2 at                     [[thread_position_in_grid]])
{
  if (at.x < p.width) {
    const ulong i = ulong(at.y) * p.width + at.x;
    y[i] = gelu_tanh(a[i]) * b[ulong(at.y) * p.b_width + p.column + at.x];
  }
}

// y = cap · tanh(x / cap). x, y [count].
[[kernel, max_total_threads_per_threadgroup(256)]] void softcap(
    device const float* x        [[buffer(0)]],
    device float* y              [[buffer(1)]],
    constant SoftcapParams& p    [[buffer(2)]],
    uint i                       [[thread_position_in_grid]])
{
  if (i < p.count) {
    y[i] = soft_cap(x[i], p.cap);
  }
}

// Half-split rotation of each head by its row's position. x, y [rows, heads · head_dim]; grid: halves of heads, rows.
[[kernel, max_total_threads_per_threadgroup(256)]] void rope(
    device const float* x        [[buffer(0)]],
    device const uint* input     [[buffer(1)]],
    device float* y              [[buffer(2)]],
    constant RopeParams& p       [[buffer(3)]],
    uint2 at                     [[thread_position_in_grid]])
{
  const uint half_dim = p.head_dim / 2;
  if (at.x >= p.heads * half_dim) {
    return;
  }
  const uint pair = at.x % half_dim;
  const ulong i = (ulong(at.y) * p.heads + at.x / half_dim) * p.head_dim + pair;
  const float a = x[i];
  const float b = x[i + half_dim];
  if (pair >= p.rotated_pairs) {
    y[i] = a;
    y[i + half_dim] = b;
    return;
  }
  const uint row = p.gathered != 0 ? input_out_row(input)[at.y] : at.y;
  const uint position = input_position(input)[row] + p.position_offset;
  const uint turn = position * p.turns_high[pair] + mulhi(position, p.turns_low[pair]);  // of 2^32
  const float angle = float(int(turn)) * 1.462918079267160e-9f;  // 2π / 2^32
  const float c = precise::cos(angle);
  const float s = precise::sin(angle);
  y[i] = fma(a, c, -b * s);
  y[i + half_dim] = fma(b, c, a * s);
}
