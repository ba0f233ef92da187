// local_attention.metal: attention of audio frames to frames around them, with keys for distances.
#include "common.h"
#include "tower_params.h"

// Sines, then cosines, of each distance: table [distances, columns]. Grid: columns, distances.
[[kernel, max_total_threads_per_threadgroup(256)]] void distance_table(
    device float* table         [[buffer(0)]],
    constant DistanceParams& p  [[buffer(1)]],
    uint2 at                    [[thread_position_in_grid]])
{
  if (at.x >= p.columns) {
    return;
  }
  const uint pairs = p.columns / 2;
  const uint i = at.x % pairs;
  const float time = precise::exp2(-13.287712379549449f * float(i) / float(pairs - 1));  // 10000^(-i / (pairs - 1))
  const float angle = (p.first - float(at.y)) * time;
  table[at.y * p.columns + at.x] = at.x < pairs ? precise::sin(angle) : precise::cos(angle);
}

// keys [distances, width] = table [distances, columns] · weightᵀ, weight [width, columns]. One simdgroup for each key's number.
// Grid: numbers by 8, distances.
[[kernel, max_total_threads_per_threadgroup(256)]] void relative_keys(
    device const float* table       [[buffer(0)]],
    device const uchar* weight      [[buffer(1)]],
    device float* keys              [[buffer(2)]],
    constant RelativeKeysParams& p  [[buffer(3)]],
    uint2 group    [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane      [[thread_index_in_simdgroup]])
{
  const uint row = group.x * 8 + simdgroup;
  if (row >= p.width) {
    return;
  }
  float sum = 0.0f;
  for (uint i = lane; i < p.columns; i += 32) {
    sum = fma(table[group.y * p.columns + i], load_scalar(weight, p.weight_format, row * p.columns + i), sum);
  }
  sum = simd_sum(sum);
  if (lane == 0) {
    keys[group.y * p.width + row] = sum;
  }
}

// log(1 + e^x)
static inline float softplus(float x) {
  return max(x, 0.0f) + precise::log(1.0f + precise::exp(-fabs(x)));
}

// q, k, v, y [rows, heads · head_dim]; relative [reach, heads · head_dim], the farthest key before a row first. One simdgroup
// for each row and head, L numbers of a head in each lane. Grid: rows times heads by 8.
template <uint L>
[[kernel, max_total_threads_per_threadgroup(256)]] void local_attention(
    device const float* q             [[buffer(0)]],
    device const float* k             [[buffer(1)]],
    device const float* v             [[buffer(2)]],
    device const uchar* dim_scale     [[buffer(3)]],
    device const float* relative      [[buffer(4)]],
    device const uint* valid          [[buffer(5)]],
    device float* y                   [[buffer(6)]],
    constant LocalAttentionParams& p  [[buffer(7)]],
    uint group     [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane      [[thread_index_in_simdgroup]])
{
  const uint unit = group * 8 + simdgroup;
  if (unit >= p.rows * p.heads) {
    return;
  }
  const uint row = unit / p.heads;
  const uint head = unit % p.heads;
  const uint width = p.heads * p.head_dim;
  const uint column = head * p.head_dim;
  float query[L];
  float result[L];
  #pragma clang loop unroll(full)
  for (uint m = 0; m < L; m++) {
    const uint i = 32 * m + lane;
    const bool inside = i < p.head_dim;
    query[m] = inside ? q[ulong(row) * width + column + i] * p.query_scale * softplus(load_scalar(dim_scale, p.scale_format, i))
                      : 0.0f;
    result[m] = 0.0f;
  }
  float largest = 0.0f;
  float sum = 0.0f;
  for (uint j = p.left - min(p.left, row + 1); j < p.reach && row + 1 + j - p.left < p.rows; j++) {
    const uint key = row + 1 + j - p.left;
    if (valid[key] == 0) {
      continue;
    }
    float product = 0.0f;
    #pragma clang loop unroll(full)
    for (uint m = 0; m < L; m++) {
      const uint i = 32 * m + lane;
      if (i < p.head_dim) {
        const float there = fma(k[ulong(key) * width + column + i], p.key_scale, relative[j * width + column + i]);
        product = fma(query[m], there, product);
      }
    }
    const float score = soft_cap(simd_sum(product), p.cap);
    const float top = sum == 0.0f ? score : max(largest, score);
    const float fade = sum == 0.0f ? 0.0f : precise::exp(largest - top);
    const float weight = precise::exp(score - top);
    sum = sum == 0.0f ? weight : fma(sum, fade, weight);
    largest = top;
    #pragma clang loop unroll(full)
    for (uint m = 0; m < L; m++) {
      const uint i = 32 * m + lane;
      const float value = i < p.head_dim ? v[ulong(key) * width + column + i] : 0.0f;
      result[m] = fma(weight, value, result[m] * fade);
    }
  }
  #pragma clang loop unroll(full)
  for (uint m = 0; m < L; m++) {
    const uint i = 32 * m + lane;
    if (i < p.head_dim) {
      y[ulong(row) * width + column + i] = sum == 0.0f ? 0.0f : result[m] / sum;
    }
  }
}

INSTANTIATE(local_attention_l1, local_attention<1>)
INSTANTIATE(local_attention_l2, local_attention<2>)
INSTANTIATE(local_attention_l4, local_attention<4>)
INSTANTIATE(local_attention_l8, local_attention<8>)
INSTANTIATE(local_attention_l16, local_attention<16>)
