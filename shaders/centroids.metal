// centroids.metal: logits of the tokens of the best centroids alone: centroid_head, behind linear_prologue_chunked and best.
// Candidate c of a row is token c % each of its chosen centroid c / each.
#include "centroids_params.h"
#include "row_products.h"

constant constexpr uint kFillTokens = 4096;           // of a threadgroup
constant constexpr float kNoLogit = 3.402823466e38f;  // of a candidate that is no token

// logits [rows, chosen · each] = table rows of the candidates · u. u [rows, row_floats], centroids [rows, chosen],
// ordering [C, each]. Half a simdgroup makes a candidate; grid: candidates by 16, rows.
template <uint32_t W, uint32_t S>
[[kernel, max_total_threads_per_threadgroup(256)]] void centroid_logits(
    device const float4* u         [[buffer(0)]],
    device const uint* centroids   [[buffer(1)]],
    device const uint* ordering    [[buffer(2)]],
    device const uchar* table      [[buffer(3)]],
    device const uchar* scales     [[buffer(4)]],
    device const uchar* biases     [[buffer(5)]],
    device float* logits           [[buffer(6)]],
    constant CentroidsParams& p    [[buffer(7)]],
    uint2 tg       [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane      [[thread_index_in_simdgroup]])
{
  const uint candidates = p.chosen * p.each;
  const uint candidate = (tg.x * 8 + simdgroup) * 2 + lane / 16;
  const uint c = min(candidate, candidates - 1);
  const uint token = ordering[ulong(centroids[tg.y * p.chosen + c / p.each]) * p.each + c % p.each];
  const MatvecRows rows = product_rows<W, S>(table, scales, biases, p.row, min(token, p.tokens - 1), 0, 1);
  float acc[1];
  multiply_rows<W, S, 1>(rows, p.row, 0, 1, lane, u + ulong(tg.y) * (p.row.row_floats / 4), acc);
  const float v = half_sum<W, 1>(acc, lane);
  if (lane % 16 == 0 && candidate < candidates) {
    logits[ulong(tg.y) * candidates + candidate] = token < p.tokens ? v : kNoLogit;
  }
}

// y = the least logit of the row - 1, for all tokens. logits [rows, chosen · each], y [rows, tokens]; grid: tokens by
// kFillTokens, rows.
[[kernel, max_total_threads_per_threadgroup(256)]] void centroid_fill(
    device const float* logits    [[buffer(0)]],
    device float* y               [[buffer(1)]],
    constant CentroidsParams& p   [[buffer(2)]],
    uint2 tg       [[threadgroup_position_in_grid]],
    uint tid       [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane      [[thread_index_in_simdgroup]])
{
  threadgroup float partial[8];
  const uint candidates = p.chosen * p.each;
  float least = kNoLogit;
  for (uint i = tid; i < candidates; i += 256) {
    least = min(least, logits[ulong(tg.y) * candidates + i]);
  }
  least = simd_min(least);
  if (lane == 0) {
    partial[simdgroup] = least;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = 0; i < 8; i++) {
    least = min(least, partial[i]);
  }
  const float fill = (least == kNoLogit ? 0.0f : least) - 1.0f;
  const uint last = min((tg.x + 1) * kFillTokens, p.tokens);
  for (uint i = tg.x * kFillTokens + tid; i < last; i += 256) {
    y[ulong(tg.y) * p.tokens + i] = fill;
  }
}

// y[token] = its logit, for the candidates. Grid: candidates by 256, rows.
[[kernel, max_total_threads_per_threadgroup(256)]] void centroid_scatter(
    device const float* logits    [[buffer(0)]],
    device const uint* centroids  [[buffer(1)]],
    device const uint* ordering   [[buffer(2)]],
    device float* y               [[buffer(3)]],
    constant CentroidsParams& p   [[buffer(4)]],
    uint2 at  [[thread_position_in_grid]])
{
  const uint candidates = p.chosen * p.each;
  if (at.x >= candidates) {
    return;
  }
  const uint token = ordering[ulong(centroids[at.y * p.chosen + at.x / p.each]) * p.each + at.x % p.each];
  if (token < p.tokens) {
    y[ulong(at.y) * p.tokens + token] = logits[ulong(at.y) * candidates + at.x];
  }
}

#define INSTANTIATE_CENTROIDS(name, W, S) INSTANTIATE(centroid_logits_##name, centroid_logits<W, S>)

#define INSTANTIATE_AFFINE_CENTROIDS(bits) \
  INSTANTIATE_CENTROIDS(affine##bits##_bf16, kAffine + bits, kBF16) \
  INSTANTIATE_CENTROIDS(affine##bits##_f16, kAffine + bits, kF16) \
  INSTANTIATE_CENTROIDS(affine##bits##_f32, kAffine + bits, kF32)

INSTANTIATE_CENTROIDS(f32, kF32, kF32)
INSTANTIATE_CENTROIDS(f16, kF16, kF16)
INSTANTIATE_CENTROIDS(bf16, kBF16, kBF16)
INSTANTIATE_AFFINE_CENTROIDS(2)
INSTANTIATE_AFFINE_CENTROIDS(3)
INSTANTIATE_AFFINE_CENTROIDS(4)
INSTANTIATE_AFFINE_CENTROIDS(5)
INSTANTIATE_AFFINE_CENTROIDS(6)
INSTANTIATE_AFFINE_CENTROIDS(8)
INSTANTIATE_CENTROIDS(q4_0, kAffine + 4, kSymmetric)
INSTANTIATE_CENTROIDS(q5_0, kAffine + 5, kSymmetric)
INSTANTIATE_CENTROIDS(q8_0, kAffine + 8, kSymmetric)
INSTANTIATE_CENTROIDS(q2_k, kFine + kAffine + 2, kMinimums)
INSTANTIATE_CENTROIDS(q3_k, kFine + kAffine + 3, kSigned)
INSTANTIATE_CENTROIDS(q4_k, kAffine + 4, kMinimums)
INSTANTIATE_CENTROIDS(q5_k, kAffine + 5, kMinimums)
INSTANTIATE_CENTROIDS(q6_k, kFine + kAffine + 6, kSigned)
INSTANTIATE_CENTROIDS(iq4_nl, kIq4, kSymmetric)
INSTANTIATE_CENTROIDS(iq4_xs, kIq4, kSigned)
INSTANTIATE_CENTROIDS(mxfp4, kE2m1, kPowers)
INSTANTIATE_CENTROIDS(mxfp8, kE4m3, kPowers)
INSTANTIATE_CENTROIDS(nvfp4, kFine + kE2m1, kBytes)
