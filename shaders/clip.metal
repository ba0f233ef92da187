// clip.metal: the ends of a linear with bounds or SiLU. The product between them is that of matmul.h.
#include "clip_params.h"
#include "stream.h"
#include "tower_params.h"

// Zeros beyond k stay zeros, whatever the bounds.
static inline float4 clipped(float4 u, float least, float largest, uint column, uint k) {
  float4 v = clamp(u, float4(least), float4(largest));
  v.x = column < k ? v.x : 0.0f;
  v.y = column + 1 < k ? v.y : 0.0f;
  v.z = column + 2 < k ? v.z : 0.0f;
  v.w = column + 3 < k ? v.w : 0.0f;
  return v;
}

// In exact mode: u f32 [rows, columns].
[[kernel, max_total_threads_per_threadgroup(256)]] void clip_prologue_f32(
    STREAM_OPERANDS,
    device float4* u                [[buffer(6)]],
    constant ClipPrologueParams& p  [[buffer(7)]],
    device float* row_scale         [[buffer(8)]],
    STREAM_INDICES)
{
  threadgroup float partial[2 * kStreamSimdgroups];
  const ulong at = ulong(row) * p.stream.k;
  const StreamFactors f = stream_factors<kStreamThreads>(x + at, residual + at, post_norm, scalar, p.stream, partial, tid, simdgroup, lane);
  for (uint i = tid; i < p.columns / 4; i += kStreamThreads) {
    const float4 v = stream_u(
        x + at, residual + at, post_norm, h_out + at, pre_norm, p.stream, f, p.stream.stores_h != 0, i);
    u[ulong(row) * (p.columns / 4) + i] = clipped(v, p.least, p.largest, 4 * i, p.stream.k);
  }
  if (tid == 0) {
    row_scale[row] = 1.0f;
  }
}

// In fast mode: u f16 [rows, columns] divided by row_scale, as linear_prologue_f16.
[[kernel, max_total_threads_per_threadgroup(256)]] void clip_prologue_f16(
    STREAM_OPERANDS,
    device half4* u                 [[buffer(6)]],
    constant ClipPrologueParams& p  [[buffer(7)]],
    device float* row_scale         [[buffer(8)]],
    STREAM_INDICES)
{
  threadgroup float partial[2 * kStreamSimdgroups];
  threadgroup float largest[kStreamSimdgroups];
  const ulong at = ulong(row) * p.stream.k;
  const StreamFactors f = stream_factors<kStreamThreads>(x + at, residual + at, post_norm, scalar, p.stream, partial, tid, simdgroup, lane);
  float most = 0.0f;
  for (uint i = tid; i < p.columns / 4; i += kStreamThreads) {
    const float4 raw = stream_u(
        x + at, residual + at, post_norm, h_out + at, pre_norm, p.stream, f, p.stream.stores_h != 0, i);
    const float4 v = fabs(clipped(raw, p.least, p.largest, 4 * i, p.stream.k));
    most = max(most, max(max(v.x, v.y), max(v.z, v.w)));
  }
  most = simd_max(most);
  if (lane == 0) {
    largest[simdgroup] = most;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = 0; i < kStreamSimdgroups; i++) {
    most = max(most, largest[i]);
  }
  const uint exponent = clamp(as_type<uint>(most) >> 23, 15u, 254u);
  const float factor = as_type<float>((268 - exponent) << 23);
  for (uint i = tid; i < p.columns / 4; i += kStreamThreads) {
    const float4 v = stream_u(x + at, residual + at, post_norm, h_out + at, pre_norm, p.stream, f, false, i);
    u[ulong(row) * (p.columns / 4) + i] = half4(clipped(v, p.least, p.largest, 4 * i, p.stream.k) * factor);
  }
  if (tid == 0) {
    row_scale[row] = as_type<float>((exponent - 14) << 23);
  }
}

// y from the products: clamped, then SiLU, or gelu_tanh times a column of other. products, y [count]; other
// [rows, other_stride].
[[kernel, max_total_threads_per_threadgroup(256)]] void clip_finish(
    device const float* products  [[buffer(0)]],
    device const float* other     [[buffer(1)]],
    device float* y               [[buffer(2)]],
    constant ClipFinishParams& p  [[buffer(3)]],
    uint i                        [[thread_position_in_grid]])
{
  if (i >= p.count) {
    return;
  }
  float v = products[i];
  if (p.clips != 0) {
    v = clamp(v, p.least, p.largest);
  }
  if (p.kind == 2) {
    v = gelu_tanh(v) * other[ulong(i / p.width) * p.other_stride + p.other_column + i % p.width];
  } else if (p.kind == 4) {
    v = v / (1.0f + precise::exp(-clamp(v, -80.0f, 80.0f)));
  }
  y[i] = v;
}
