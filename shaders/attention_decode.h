// attention_decode.h: attention of decode rows. A page of 32 keys is the unit of work: simdgroup s of the 8 takes the
// pages whose index is s modulo 8, each with a running softmax, and the eight results are added in order. Which keys go
// where follows from absolute positions alone, so a row's result does not depend on the rows beside it.
//
// attention_decode: the whole context of a row in one threadgroup, for sliding windows.
// attention_split: parts of whole 256-key blocks, at most 64 of them, which attention_reduce adds in order.
#ifndef MARKBASE_ATTENTION_DECODE_H
#define MARKBASE_ATTENTION_DECODE_H
#include "attention_head.h"

constant constexpr uint kSimdgroups = 8;

// Heads are handled in pieces of at most 256 dimensions, of which a lane holds 1 to 8 consecutive ones.
#define PIECE(D) (D < 256 ? D : 256)
#define PIECES(D) (D < 256 ? 1 : D / 256)
#define LANE_DIMS(D) (D < 256 ? D / 32 : 8)
// For scores, eight lanes share a key: each takes runs of 8 dimensions (4 of a head of 32).
#define RUN(D) (D < 64 ? 4 : 8)

// What one simdgroup has seen so far: per query head the largest score, the sum of the weights, and the sum of weight · v,
// of which this lane holds LANE_DIMS in each piece.
template <int D, int HEADS>
struct Running {
  float largest[HEADS];
  float sum[HEADS];
  float values[HEADS * PIECES(D) * LANE_DIMS(D)];
};

// scores[h · 8 + i] += q[h] · k of keys i = 0…7 of this lane's eight lanes, over the lane's share of dimensions.
// `from` and `end` are the slots of the page that the row sees; others are not read.
template <typename T, int D, int HEADS>
static inline void page_products(
    device const T* keys, threadgroup const float* q, uint from, uint end, uint lane, thread float* scores)
{
  #pragma clang loop unroll(full)
  for (uint i = 0; i < 8 * HEADS; i++) {
    scores[i] = 0.0f;
  }
  for (uint d = lane % 8 * RUN(D); d < D; d += 8 * RUN(D)) {
    float query[HEADS * RUN(D)];
    #pragma clang loop unroll(full)
    for (uint i = 0; i < HEADS * RUN(D); i++) {
      query[i] = q[i / RUN(D) * D + d + i % RUN(D)];
    }
    #pragma clang loop unroll(full)
    for (uint i = 0; i < 8; i++) {
      const uint slot = clamp(lane / 8 * 8 + i, from, end - 1);
      float key[RUN(D)];
      load_values<RUN(D)>(keys + slot * D + d, key);
      #pragma clang loop unroll(full)
      for (uint j = 0; j < HEADS * RUN(D); j++) {
        scores[j / RUN(D) * 8 + i] = fma(query[j], key[j % RUN(D)], scores[j / RUN(D) * 8 + i]);
      }
    }
  }
}

// One step of scatter_sums: of 2·N values a lane keeps the half that its bit N names, and gets its partner's part of it.
template <uint N>
static inline void halve_sums(thread float* x, uint lane) {
  const bool upper = (lane & N) != 0;
  #pragma clang loop unroll(full)
  for (uint i = 0; i < N; i++) {
    const float a = x[i];
    const float b = x[i + N];
    x[i] = (upper ? b : a) + simd_shuffle_xor(upper ? a : b, ushort(N));
  }
}

// Sums over eight lanes of eight values each; lane i of the eight gets the sum of value i.
static inline float scatter_sums(thread float* x, uint lane) {
  halve_sums<4>(x, lane);
  halve_sums<2>(x, lane);
  halve_sums<1>(x, lane);
  return x[0];
}

// Adds slots [from, end) of a page to what has been seen.
template <typename T, int D, int HEADS>
static inline void add_page(
    device const T* keys, device const T* values, threadgroup const float* q, float scale, uint from, uint end, uint lane,
    thread Running<D, HEADS>& seen)
{
  float scores[8 * HEADS];
  page_products<T, D, HEADS>(keys, q, from, end, lane, scores);
  const bool visible = lane >= from && lane < end;
  float weight[HEADS];
  #pragma clang loop unroll(full)
  for (uint h = 0; h < HEADS; h++) {
    const float score = scatter_sums(scores + 8 * h, lane);
    const float largest = max(seen.largest[h], simd_max(visible ? score : kNoScore));
    const float fade = weight_of(seen.largest[h], largest, scale);
    weight[h] = visible ? weight_of(score, largest, scale) : 0.0f;
    seen.largest[h] = largest;
    seen.sum[h] = fma(seen.sum[h], fade, simd_sum(weight[h]));
    #pragma clang loop unroll(full)
    for (uint i = 0; i < PIECES(D) * LANE_DIMS(D); i++) {
      seen.values[h * PIECES(D) * LANE_DIMS(D) + i] *= fade;
    }
  }
  #pragma clang loop unroll_count(4)
  for (uint slot = from; slot < end; slot++) {
    float value[PIECES(D) * LANE_DIMS(D)];
    #pragma clang loop unroll(full)
    for (uint c = 0; c < PIECES(D); c++) {
      load_values<LANE_DIMS(D)>(values + slot * D + c * PIECE(D) + lane * LANE_DIMS(D), value + c * LANE_DIMS(D));
    }
    #pragma clang loop unroll(full)
    for (uint h = 0; h < HEADS; h++) {
      const float w = simd_shuffle(weight[h], ushort(slot));
      #pragma clang loop unroll(full)
      for (uint i = 0; i < PIECES(D) * LANE_DIMS(D); i++) {
        const uint at = h * PIECES(D) * LANE_DIMS(D) + i;
        seen.values[at] = fma(w, value[i], seen.values[at]);
      }
    }
  }
}

// The row's own key, which no page holds yet, as the first that simdgroup 0 sees.
template <int D, int HEADS>
static inline void begin_with_own_key(
    threadgroup const float* q, threadgroup const float* k, threadgroup const float* v, uint lane,
    thread Running<D, HEADS>& seen)
{
  #pragma clang loop unroll(full)
  for (uint h = 0; h < HEADS; h++) {
    float product = 0.0f;
    for (uint i = lane; i < D; i += 32) {
      product = fma(q[h * D + i], k[i], product);
    }
    seen.largest[h] = simd_sum(product);
    seen.sum[h] = 1.0f;
    #pragma clang loop unroll(full)
    for (uint i = 0; i < PIECES(D) * LANE_DIMS(D); i++) {
      seen.values[h * PIECES(D) * LANE_DIMS(D) + i] =
          v[i / LANE_DIMS(D) * PIECE(D) + lane * LANE_DIMS(D) + i % LANE_DIMS(D)];
    }
  }
}

// HEADS query heads of one KV head for one row. Grid: head groups, rows, parts (SPLIT) or 1.
// qkv: f32 [rows, stride]; pages: T [pages, planes, kv_heads, 32, D]
// SPLIT: out f32 [rows, heads, splits, D] and stats f32 [rows, heads, splits, 2] = largest score, sum of weights.
// Otherwise out is y, f32 [rows, heads, D].
template <typename T, int D, int HEADS, bool SPLIT>
[[kernel]] [[max_total_threads_per_threadgroup(256)]] void attention_decode(
    device const float* qkv [[buffer(0)]],
    device const uchar* q_norm [[buffer(1)]],
    device const uchar* k_norm [[buffer(2)]],
    device T* pages [[buffer(3)]],
    device const uint* input [[buffer(4)]],
    device float* out [[buffer(5)]],
    device float* stats [[buffer(6)]],
    constant AttentionParams& p [[buffer(7)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
  threadgroup float q[HEADS * D];
  threadgroup float own_k[D];
  threadgroup float own_v[D];
  threadgroup float parts[kSimdgroups * PIECE(D)];
  threadgroup float part_largest[HEADS * kSimdgroups];
  threadgroup float part_sum[HEADS * kSimdgroups];

  const uint i = group.y;
  const uint head = group.x * HEADS;
  const uint ratio = p.heads / p.kv_heads;
  const uint kv_head = head / ratio;
  const uint row = input_row(input, p, i);
  const uint position = input_position(input)[row];
  const uint sequence = input_sequence(input)[row];
  const bool own_key = (p.flags & kOwnKey) != 0;
  // Keys [begin, end) are read from pages, and `own` says whether the row's own comes on top of them.
  uint begin = first_key(p, position);
  uint end = own_key ? position : position + 1;
  bool own = own_key;
  if (SPLIT) {
    const uint keys = part_keys(position);
    const uint from = group.z * keys;
    if (from > position || from + keys <= begin) {
      return;
    }
    begin = max(begin, from);
    end = min(end, from + keys);
    own = own_key && position < from + keys;
  }

  device const float* x = qkv + i * p.stride;
  float low[PAIRS(D)];
  float high[PAIRS(D)];
  if (simdgroup < HEADS) {
    head_q<D>(x, q_norm, p, head + simdgroup, position, lane, low, high);
    head_share<float, D>(q + simdgroup * D, lane, low, high);
  } else if (own && simdgroup < HEADS + 2) {
    const uint plane = simdgroup - HEADS;
    if (plane == 0) {
      head_k<T, D>(x, k_norm, p, kv_head, position, lane, low, high);
      head_share<float, D>(own_k, lane, low, high);
    } else {
      head_v<T, D>(x, p, kv_head, lane, low, high);
      head_share<float, D>(own_v, lane, low, high);
    }
    if ((p.flags & kStoreOwnKey) != 0 && head % ratio == 0) {
      const uint page = input_page(input, p.groups, p.group, sequence, position);
      const ulong at = page_offset<D>(p, page, p.plane + plane, kv_head) + position % kTokensPerPage * D;
      head_store<T, D>(pages + at, lane, low, high);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  Running<D, HEADS> seen;
  #pragma clang loop unroll(full)
  for (uint h = 0; h < HEADS; h++) {
    seen.largest[h] = kNoScore;
    seen.sum[h] = 0.0f;
  }
  #pragma clang loop unroll(full)
  for (uint j = 0; j < HEADS * PIECES(D) * LANE_DIMS(D); j++) {
    seen.values[j] = 0.0f;
  }
  if (own && simdgroup == 0) {
    begin_with_own_key<D, HEADS>(q, own_k, own_v, lane, seen);
  }
  if (begin < end) {
    uint page = begin / kTokensPerPage;
    page += (simdgroup + kSimdgroups - page % kSimdgroups) % kSimdgroups;
    for (; page * kTokensPerPage < end; page += kSimdgroups) {
      const uint first = page * kTokensPerPage;
      const uint id = input_page(input, p.groups, p.group, sequence, first);
      add_page<T, D, HEADS>(
          pages + page_offset<D>(p, id, p.plane, kv_head), pages + page_offset<D>(p, id, p.plane + 1, kv_head), q,
          p.score_scale, max(begin, first) - first, min(end - first, kTokensPerPage), lane, seen);
    }
  }

  if (lane == 0) {
    #pragma clang loop unroll(full)
    for (uint h = 0; h < HEADS; h++) {
      part_largest[h * kSimdgroups + simdgroup] = seen.largest[h];
      part_sum[h * kSimdgroups + simdgroup] = seen.sum[h];
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  #pragma clang loop unroll(full)
  for (uint h = 0; h < HEADS; h++) {
    float largest = kNoScore;
    for (uint s = 0; s < kSimdgroups; s++) {
      largest = max(largest, part_largest[h * kSimdgroups + s]);
    }
    float sum = 0.0f;
    for (uint s = 0; s < kSimdgroups; s++) {
      const float fade = weight_of(part_largest[h * kSimdgroups + s], largest, p.score_scale);
      sum = fma(part_sum[h * kSimdgroups + s], fade, sum);
    }
    const float fade = weight_of(seen.largest[h], largest, p.score_scale);
    const uint at = i * p.heads + head + h;
    #pragma clang loop unroll(full)
    for (uint c = 0; c < PIECES(D); c++) {
      #pragma clang loop unroll(full)
      for (uint j = 0; j < LANE_DIMS(D); j++) {
        parts[simdgroup * PIECE(D) + lane * LANE_DIMS(D) + j] =
            seen.values[(h * PIECES(D) + c) * LANE_DIMS(D) + j] * fade;
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (tid < PIECE(D)) {
        float value = 0.0f;
        for (uint s = 0; s < kSimdgroups; s++) {
          value += parts[s * PIECE(D) + tid];
        }
        if (SPLIT) {
          out[(at * p.splits + group.z) * D + c * PIECE(D) + tid] = value;
        } else {
          out[at * D + c * PIECE(D) + tid] = value / sum;
        }
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (SPLIT && tid == 0) {
      stats[2 * (at * p.splits + group.z)] = largest;
      stats[2 * (at * p.splits + group.z) + 1] = sum;
    }
  }
}

// The kernels of one head size, for pages of format F and type T.
#define ATTENTION_DECODE(F, T, D) \
  template [[host_name(TEXT(attention_decode_##F##_d##D))]] [[kernel]] \
  decltype(attention_decode<T, D, 1, false>) attention_decode<T, D, 1, false>;
#define ATTENTION_SPLIT(F, T, D, H) \
  template [[host_name(TEXT(attention_split_##F##_d##D##_h##H))]] [[kernel]] \
  decltype(attention_decode<T, D, H, true>) attention_decode<T, D, H, true>;

#endif
