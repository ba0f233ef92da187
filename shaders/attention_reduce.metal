// attention_reduce.metal: the second half of split decode attention.
#include "attention_head.h"

constant constexpr uint kParts = 8;  // loads that are under way at once

// y = the parts of a row's context, added in order, for 128 dimensions of a head. Grid: heads · slices, rows.
// parts: f32 [rows, heads, splits, d]; stats: f32 [rows, heads, splits, 2]; y: f32 [rows, heads, d].
[[kernel]] [[max_total_threads_per_threadgroup(128)]] void attention_reduce(
    device const float* parts [[buffer(0)]],
    device const float2* stats [[buffer(1)]],
    device const uint* input [[buffer(2)]],
    device float* y [[buffer(3)]],
    constant AttentionReduceParams& r [[buffer(4)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
  const uint i = group.y;
  const uint row = r.gathered ? input[r.out_row_word + r.first_row + i] : r.first_row + i;
  const uint position = input[r.position_word + row];
  const uint keys = r.least != 0 ? spread_keys(position, r.least) : part_keys(position);
  const uint begin = r.window == 0 || position < r.window ? 0 : (position - r.window + 1) / keys;
  const uint count = position / keys + 1 - begin;
  const uint slices = (r.head_dim + kReduceThreads - 1) / kReduceThreads;
  const uint at = i * r.heads + group.x / slices;
  const uint d = group.x % slices * kReduceThreads + tid;
  device const float* part = parts + (at * r.splits + begin) * r.head_dim + min(d, r.head_dim - 1);
  device const float2* stat = stats + at * r.splits + begin;

  // Lane i has parts i and i + 32.
  float largest[kMostSplits / 32];
  float weight[kMostSplits / 32];
  float best = kNoScore;
  #pragma clang loop unroll(full)
  for (uint n = 0; n < kMostSplits / 32; n++) {
    const uint s = lane + 32 * n;
    const float2 both = stat[min(s, count - 1)];
    largest[n] = both.x;
    weight[n] = s < count ? both.y : 0.0f;
    best = max(best, both.x);
  }
  best = simd_max(best);
  float sum = 0.0f;
  #pragma clang loop unroll(full)
  for (uint n = 0; n < kMostSplits / 32; n++) {
    const float fade = weight_of(largest[n], best, r.score_scale);
    sum = fma(weight[n], fade, sum);
    weight[n] = lane + 32 * n < count ? fade : 0.0f;
  }
  sum = simd_sum(sum);

  float value = 0.0f;
  for (uint s = 0; s < count; s += kParts) {
    float x[kParts];
    #pragma clang loop unroll(full)
    for (uint n = 0; n < kParts; n++) {
      x[n] = part[min(s + n, count - 1) * r.head_dim];
    }
    #pragma clang loop unroll(full)
    for (uint n = 0; n < kParts; n++) {
      value = fma(x[n], simd_shuffle(s < 32 ? weight[0] : weight[1], ushort((s + n) % 32)), value);
    }
  }
  if (d < r.head_dim) {
    y[at * r.head_dim + d] = value / sum;
  }
}
