// patch_attention.metal: attention of every patch to every patch. patch_heads stores normalised, rotated heads one after
// another; patch_attention takes 64 rows of one query head in a threadgroup, 16 in each simdgroup, and walks the keys in tiles
// of 32. Q and the result stay in registers; softmax is relative to a largest score that is raised only when another would
// weigh much more.
#include "common.h"
#include "tower_params.h"

constant constexpr uint kQueryRows = 16;       // of a simdgroup
constant constexpr uint kKeys = 32;            // of a tile
constant constexpr uint kScoreStride = 36;     // of a row of scores, in floats
constant constexpr float kFarBelow = -1.0e30f;
constant constexpr float kSlack = 8.0f;        // a weight may be this power of two

// One vector of q, k or v: rms_norm, weight, rotation of each half by one axis; padded with zeros. T: storage type.
// q [rows, heads · d], k and v [rows, kv_heads · d]; to T [heads + 2 · kv_heads, rows, padded]. One simdgroup for each vector;
// lanes hold pairs (i, i + d/4) of both halves. Grid: vectors by 8, rows.
template <typename T>
[[kernel, max_total_threads_per_threadgroup(256)]] void patch_heads(
    device const float* q          [[buffer(0)]],
    device const float* k          [[buffer(1)]],
    device const float* v          [[buffer(2)]],
    device const uchar* q_norm     [[buffer(3)]],
    device const uchar* k_norm     [[buffer(4)]],
    device const uint* positions   [[buffer(5)]],
    device T* heads                [[buffer(6)]],
    constant PatchHeadsParams& p   [[buffer(7)]],
    uint2 group    [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane      [[thread_index_in_simdgroup]])
{
  const uint vector = group.x * 8 + simdgroup;
  if (vector >= p.heads + 2 * p.kv_heads) {
    return;
  }
  const uint row = group.y;
  const bool is_query = vector < p.heads;
  const bool is_key = !is_query && vector < p.heads + p.kv_heads;
  device const float* from = q + (ulong(row) * p.heads + vector) * p.head_dim;
  if (is_key) {
    from = k + (ulong(row) * p.kv_heads + vector - p.heads) * p.head_dim;
  } else if (!is_query) {
    from = v + (ulong(row) * p.kv_heads + vector - p.heads - p.kv_heads) * p.head_dim;
  }
  device T* to = heads + (ulong(vector) * p.rows + row) * p.padded;
  float sum = 0.0f;
  for (uint i = lane; i < p.head_dim; i += 32) {
    sum = fma(from[i], from[i], sum);
  }
  const float factor = precise::rsqrt(simd_sum(sum) / float(p.head_dim) + p.eps);
  const uint pairs = p.head_dim / 4;
  for (uint i = lane; i < 2 * pairs; i += 32) {
    const uint axis = i / pairs;
    const uint pair = i % pairs;
    const uint low = 2 * axis * pairs + pair;
    const uint high = low + pairs;
    float a = from[low] * factor;
    float b = from[high] * factor;
    if (is_query || is_key) {
      a *= is_query ? load_scalar(q_norm, p.q_format, low) : load_scalar(k_norm, p.k_format, low);
      b *= is_query ? load_scalar(q_norm, p.q_format, high) : load_scalar(k_norm, p.k_format, high);
      const float angle = float(positions[2 * row + axis]) * precise::exp2(-p.theta_log2 * float(pair));
      const float c = precise::cos(angle);
      const float s = precise::sin(angle);
      const float turned = fma(a, c, -b * s);
      b = fma(b, c, a * s);
      a = turned;
    }
    to[low] = T(a);
    to[high] = T(b);
  }
  for (uint i = p.head_dim + lane; i < p.padded; i += 32) {
    to[i] = T(0.0f);
  }
}

// Distance of rows of the key tile, so that rows start in different banks.
#define TILE_STRIDE(T, D) (D + 16 / sizeof(T))

// 32 rows of a head from row `first` on, zeros beyond the last.
template <typename T, uint D>
static inline void load_tile(device const T* from, uint first, uint rows, uint tid, threadgroup T* to) {
  for (uint i = tid; i < kKeys * (D / 4); i += 128) {
    const uint row = i / (D / 4);
    const uint column = i % (D / 4) * 4;
    vec<T, 4> v = vec<T, 4>(T(0.0f));
    if (first + row < rows) {
      v = *(device const vec<T, 4>*)(from + ulong(first + row) * D + column);
    }
    *(threadgroup vec<T, 4>*)(to + row * TILE_STRIDE(T, D) + column) = v;
  }
}

// heads T [heads + 2 · kv_heads, rows, D]; y f32 [rows, heads · head_dim]. Grid: 64 rows, heads.
template <typename T, uint D>
[[kernel, max_total_threads_per_threadgroup(128)]] void patch_attention(
    device const T* heads              [[buffer(0)]],
    device float* y                    [[buffer(1)]],
    constant PatchAttentionParams& p   [[buffer(2)]],
    uint2 group    [[threadgroup_position_in_grid]],
    uint tid       [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane      [[thread_index_in_simdgroup]])
{
  threadgroup float4 tile_memory[(kKeys * TILE_STRIDE(T, D) * sizeof(T) + 15) / 16];
  threadgroup float region_memory[4 * kQueryRows * kScoreStride];
  threadgroup float row_memory[4 * kQueryRows];
  threadgroup T* tile = (threadgroup T*)tile_memory;
  threadgroup float* region = region_memory + simdgroup * kQueryRows * kScoreStride;
  threadgroup T* weights = (threadgroup T*)region;
  threadgroup float* row_value = row_memory + simdgroup * kQueryRows;
  constexpr uint weight_stride = kScoreStride * (sizeof(float) / sizeof(T));

  const uint head = group.y;
  const uint kv_head = head / (p.heads / p.kv_heads);
  const uint first_row = group.x * 4 * kQueryRows + simdgroup * kQueryRows;
  device const T* queries = heads + ulong(head) * p.rows * D;
  device const T* keys = heads + ulong(p.heads + kv_head) * p.rows * D;
  device const T* values = heads + ulong(p.heads + p.kv_heads + kv_head) * p.rows * D;

  // Q through the tile, 32 rows at a time.
  simdgroup_matrix<T, 8, 8> q[D / 4];  // of 8 columns after 8, the upper 8 rows and the lower
  for (uint half_of = 0; half_of < 2; half_of++) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    load_tile<T, D>(queries, group.x * 4 * kQueryRows + half_of * kKeys, p.rows, tid, tile);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup / 2 == half_of) {
      #pragma clang loop unroll(full)
      for (uint n = 0; n < D / 8; n++) {
        threadgroup const T* at = tile + simdgroup % 2 * kQueryRows * TILE_STRIDE(T, D) + 8 * n;
        simdgroup_load(q[2 * n], at, TILE_STRIDE(T, D));
        simdgroup_load(q[2 * n + 1], at + 8 * TILE_STRIDE(T, D), TILE_STRIDE(T, D));
      }
    }
  }
  simdgroup_matrix<float, 8, 8> o[D / 8][2];
  #pragma clang loop unroll(full)
  for (uint n = 0; n < D / 8; n++) {
    o[n][0] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    o[n][1] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }

  // Two lanes share a row: each takes every second key.
  const uint my_row = lane / 2;
  float largest = kFarBelow;
  float sum = 0.0f;
  for (uint start = 0; start < p.rows; start += kKeys) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    load_tile<T, D>(keys, start, p.rows, tid, tile);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    #pragma clang loop unroll(full)
    for (uint slot = 0; slot < kKeys; slot += 8) {
      simdgroup_matrix<float, 8, 8> scores[2];
      scores[0] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      scores[1] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      #pragma clang loop unroll(full)
      for (uint n = 0; n < D / 8; n += 2) {
        threadgroup const T* at = tile + slot * TILE_STRIDE(T, D) + 8 * n;
        simdgroup_matrix<T, 8, 8> key[2];
        simdgroup_load(key[0], at, TILE_STRIDE(T, D), ulong2(0, 0), true);
        simdgroup_load(key[1], at + 8, TILE_STRIDE(T, D), ulong2(0, 0), true);
        tile_mma_pair(scores, q + 2 * n, key);
      }
      simdgroup_store(scores[0], region + slot, kScoreStride);
      simdgroup_store(scores[1], region + 8 * kScoreStride + slot, kScoreStride);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);

    float score[kKeys / 2];
    float best = kFarBelow;
    #pragma clang loop unroll(full)
    for (uint c = 0; c < kKeys / 2; c++) {
      const uint slot = 2 * c + lane % 2;
      score[c] = start + slot < p.rows ? region[my_row * kScoreStride + slot] * p.score_scale : kFarBelow;
      best = max(best, score[c]);
    }
    best = max(best, simd_shuffle_xor(best, ushort(1)));
    float fade = 1.0f;
    if (sum == 0.0f) {
      largest = best;
    } else if (best - largest > kSlack) {
      fade = precise::exp2(largest - best);
      largest = best;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    float added = 0.0f;
    #pragma clang loop unroll(full)
    for (uint c = 0; c < kKeys / 2; c++) {
      const float weight = score[c] == kFarBelow ? 0.0f : precise::exp2(score[c] - largest);
      weights[my_row * weight_stride + 2 * c + lane % 2] = T(weight);
      added += weight;
    }
    sum = fma(sum, fade, added + simd_shuffle_xor(added, ushort(1)));
    if (lane % 2 == 0) {
      row_value[my_row] = fade;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    load_tile<T, D>(values, start, p.rows, tid, tile);

    simdgroup_matrix<T, 8, 8> weight[kKeys / 4];
    #pragma clang loop unroll(full)
    for (uint slot = 0; slot < kKeys / 8; slot++) {
      simdgroup_load(weight[2 * slot], weights + 8 * slot, weight_stride);
      simdgroup_load(weight[2 * slot + 1], weights + 8 * weight_stride + 8 * slot, weight_stride);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // The result so far, relative to the new largest scores: through memory, since matrices have no elements.
    if (simd_any(row_value[lane % kQueryRows] != 1.0f)) {
      #pragma clang loop unroll(full)
      for (uint n = 0; n < D / 8; n++) {
        simdgroup_store(o[n][0], region, 8);
        simdgroup_store(o[n][1], region + 64, 8);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = lane; i < 128; i += 32) {
          region[i] *= row_value[i / 8];
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_load(o[n][0], region, 8);
        simdgroup_load(o[n][1], region + 64, 8);
        simdgroup_barrier(mem_flags::mem_threadgroup);
      }
    }
    #pragma clang loop unroll(full)
    for (uint slot = 0; slot < kKeys / 8; slot += 2) {
      #pragma clang loop unroll(full)
      for (uint n = 0; n < D / 8; n++) {
        threadgroup const T* at = tile + 8 * slot * TILE_STRIDE(T, D) + 8 * n;
        simdgroup_matrix<T, 8, 8> value[2];
        simdgroup_load(value[0], at, TILE_STRIDE(T, D));
        simdgroup_load(value[1], at + 8 * TILE_STRIDE(T, D), TILE_STRIDE(T, D));
        tile_mma_pair(o[n], weight + 2 * slot, value);
      }
    }
  }

  simdgroup_barrier(mem_flags::mem_threadgroup);
  if (lane % 2 == 0) {
    row_value[my_row] = sum;
  }
  #pragma clang loop unroll(full)
  for (uint n = 0; n < D / 8; n++) {
    simdgroup_store(o[n][0], region, 8);
    simdgroup_store(o[n][1], region + 64, 8);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = lane; i < 128; i += 32) {
      const uint row = first_row + i / 8;
      const uint column = 8 * n + i % 8;
      if (row < p.rows && column < p.head_dim) {
        y[(ulong(row) * p.heads + head) * p.head_dim + column] = region[i] / row_value[i / 8];
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}

INSTANTIATE(patch_heads_f32, patch_heads<float>)
INSTANTIATE(patch_heads_f16, patch_heads<half>)
INSTANTIATE(patch_attention_f32_d32, patch_attention<float, 32>)
INSTANTIATE(patch_attention_f16_d32, patch_attention<half, 32>)
INSTANTIATE(patch_attention_f32_d64, patch_attention<float, 64>)
INSTANTIATE(patch_attention_f16_d64, patch_attention<half, 64>)
INSTANTIATE(patch_attention_f32_d96, patch_attention<float, 96>)
INSTANTIATE(patch_attention_f16_d96, patch_attention<half, 96>)
INSTANTIATE(patch_attention_f32_d128, patch_attention<float, 128>)
INSTANTIATE(patch_attention_f16_d128, patch_attention<half, 128>)
