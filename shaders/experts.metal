// experts.metal: what goes on around the products of routed experts: their order, their sum, and the sum of two norms.
#include "common.h"
#include "experts_params.h"
#include "stream.h"

// order [pairs]: all pairs by expert, those of one expert ascending; ids [pairs], those from `experts` on count as one expert
// more, the last. starts [experts + 1]: where each expert's begin. One threadgroup an expert.
[[kernel, max_total_threads_per_threadgroup(256)]] void expert_order(
    device const uint* ids           [[buffer(0)]],
    device uint* order               [[buffer(1)]],
    device uint* starts              [[buffer(2)]],
    constant ExpertOrderParams& p    [[buffer(3)]],
    uint expert    [[threadgroup_position_in_grid]],
    uint tid       [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane      [[thread_index_in_simdgroup]])
{
  threadgroup uint before_simdgroup[8];
  threadgroup uint below_simdgroup[8];
  const uint each = (p.pairs + 255) / 256;
  const uint first = min(tid * each, p.pairs);
  const uint last = min(first + each, p.pairs);
  uint below = 0;
  uint mine = 0;
  for (uint q = first; q < last; q++) {
    const uint id = min(ids[q], p.experts);
    below += id < expert ? 1 : 0;
    mine += id == expert ? 1 : 0;
  }
  const uint before_lane = simd_prefix_exclusive_sum(mine);
  const uint of_simdgroup = simd_sum(mine);
  const uint below_all = simd_sum(below);
  if (lane == 0) {
    before_simdgroup[simdgroup] = of_simdgroup;
    below_simdgroup[simdgroup] = below_all;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint start = 0;
  uint before = 0;
  for (uint i = 0; i < 8; i++) {
    start += below_simdgroup[i];
    before += i < simdgroup ? before_simdgroup[i] : 0;
  }
  if (tid == 0) {
    starts[expert] = start;
  }
  uint to = start + before + before_lane;
  for (uint q = first; q < last && mine > 0; q++) {
    if (min(ids[q], p.experts) == expert) {
      order[to] = q;
      to++;
    }
  }
}

// y = Σ over slots s of shares[:, s] · x[:, s·width : (s + 1)·width], in the order of slots. x [rows, slots · width],
// y [rows, width]; grid: rows, columns.
[[kernel, max_total_threads_per_threadgroup(256)]] void expert_sum(
    device const float* x        [[buffer(0)]],
    device const float* shares   [[buffer(1)]],
    device float* y              [[buffer(2)]],
    constant ExpertSumParams& p  [[buffer(3)]],
    uint2 tg  [[threadgroup_position_in_grid]],
    uint tid  [[thread_index_in_threadgroup]])
{
  const uint column = tg.y * 256 + tid;
  if (column >= p.width) {
    return;
  }
  const ulong row = tg.x;
  float total = 0.0f;
  for (uint s = 0; s < p.slots; s++) {
    total = fma(shares[row * p.slots + s], x[(row * p.slots + s) * p.width + column], total);
  }
  y[row * p.width + column] = total;
}

constant constexpr uint kNormQuads = 4;  // of a thread of add_norms

// y = rms_norm(a, a_norm) + rms_norm(b, b_norm). a, b, y [rows, width]; norms [width]. One threadgroup a row.
[[kernel, max_total_threads_per_threadgroup(256)]] void add_norms(
    device const float* a        [[buffer(0)]],
    device const uchar* a_norm   [[buffer(1)]],
    device const float* b        [[buffer(2)]],
    device const uchar* b_norm   [[buffer(3)]],
    device float* y              [[buffer(4)]],
    constant AddNormsParams& p   [[buffer(5)]],
    uint row       [[threadgroup_position_in_grid]],
    uint tid       [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane      [[thread_index_in_simdgroup]])
{
  threadgroup float partial[16];
  const ulong start = ulong(row) * p.width;
  // Rows of a usual width are read once, into registers.
  const uint quads = p.width / 4;
  const bool held = p.width % 4 == 0 && quads <= kNormQuads * 256 && p.a_format != kF32 && p.b_format != kF32;
  float4 u[kNormQuads];
  float4 v[kNormQuads];
  uint2 a_weight[kNormQuads];
  uint2 b_weight[kNormQuads];
  float a_sum = 0.0f;
  float b_sum = 0.0f;
  if (held) {
    #pragma clang loop unroll(full)
    for (uint j = 0; j < kNormQuads; j++) {
      const uint i = min(tid + 256 * j, quads - 1);
      u[j] = ((device const float4*)(a + start))[i];
      v[j] = ((device const float4*)(b + start))[i];
      a_weight[j] = ((device const uint2*)a_norm)[i];
      b_weight[j] = ((device const uint2*)b_norm)[i];
    }
    #pragma clang loop unroll(full)
    for (uint j = 0; j < kNormQuads; j++) {
      if (tid + 256 * j < quads) {
        a_sum = sum_of_squares(u[j], a_sum);
        b_sum = sum_of_squares(v[j], b_sum);
      }
    }
  } else {
    for (uint i = tid; i < p.width; i += 256) {
      a_sum = fma(a[start + i], a[start + i], a_sum);
      b_sum = fma(b[start + i], b[start + i], b_sum);
    }
  }
  a_sum = simd_sum(a_sum);
  b_sum = simd_sum(b_sum);
  if (lane == 0) {
    partial[2 * simdgroup] = a_sum;
    partial[2 * simdgroup + 1] = b_sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  a_sum = 0.0f;
  b_sum = 0.0f;
  for (uint i = 0; i < 8; i++) {
    a_sum += partial[2 * i];
    b_sum += partial[2 * i + 1];
  }
  const float a_factor = precise::rsqrt(a_sum / float(p.width) + p.eps);
  const float b_factor = precise::rsqrt(b_sum / float(p.width) + p.eps);
  if (held) {
    #pragma clang loop unroll(full)
    for (uint j = 0; j < kNormQuads; j++) {
      if (tid + 256 * j < quads) {
        ((device float4*)(y + start))[tid + 256 * j] =
            fma(u[j] * a_factor, stored4(a_weight[j], p.a_format), v[j] * b_factor * stored4(b_weight[j], p.b_format));
      }
    }
  } else {
    for (uint i = tid; i < p.width; i += 256) {
      y[start + i] = fma(a[start + i] * a_factor, load_scalar(a_norm, p.a_format, i),
                         b[start + i] * b_factor * load_scalar(b_norm, p.b_format, i));
    }
  }
}
