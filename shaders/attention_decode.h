// attention_decode.h: attention of decode rows. Keys go in groups of eight, group n of a chunk to simdgroup n modulo 8 (or
// 16), and the results of simdgroups are added in order. Which keys go where follows from the row's position alone, so its result does not
// depend on the rows beside it. A chunk is all of a 512-key window, or one 256-key block: its scores come first, then, relative
// to the largest of them, the sum of its values.
//
// attention_decode: the whole context of a row in one threadgroup, for sliding windows; wide: of sixteen simdgroups, for CUDA alone,
// since a pipeline of Metal may take fewer threads than its device.
// attention_split: parts of whole 256-key blocks, at most 64 of them, which attention_reduce adds in order.
//
// A decode row is a matter of latency: few threadgroups, each with little to do. So loads are issued before what they are
// combined with is there: the row's own vectors first, keys before the query, values before the weights.
#ifndef MARKBASE_ATTENTION_DECODE_H
#define MARKBASE_ATTENTION_DECODE_H
#include "attention_head.h"

constant constexpr uint kGroupKeys = 8;
// SG: simdgroups of a threadgroup, eight or sixteen. Keys from one group of a simdgroup to its next:
#define STRIDE(SG) (SG * kGroupKeys)

// Dimensions that a lane loads at once, W below: 16 codes, or 8 where heads are so small that 32 lanes would load more keys
// than a group has.
#define LANE_DIMS(T, D) (IS_CODES(T) && D >= 64 ? 16 : 8)
// Keys: KEY_LANES lanes share one, with W consecutive dimensions of every 32 · W each, so a load takes LOAD_KEYS keys.
#define KEY_LANES(D, W) (D / W < 32 ? D / W : 32)
#define LOAD_KEYS(D, W) (32 / KEY_LANES(D, W))
#define KEY_LOADS(D, W) (kGroupKeys / LOAD_KEYS(D, W))
#define KEY_PARTS(D, W) (D / W / KEY_LANES(D, W))
// Values: a threadgroup adds up VALUE_SLICE(D) of the dimensions, and D / VALUE_SLICE(D) threadgroups share a head's work.
#define SLICE_LANES(D, W) (VALUE_SLICE(D) / W)
#define SLICE_KEYS(D, W) (32 / SLICE_LANES(D, W))
#define SLICE_LOADS(D, W) (kGroupKeys / SLICE_KEYS(D, W))
#define VALUE_LOADS(W) (64 / W)
// A window of 512 keys touches 65 groups at most, one of eight simdgroups nine.
#define CHUNK_GROUPS(SPLIT, SG) (SPLIT ? 32 / SG : 64 / SG + 1)
#define CHUNK(SPLIT, SG) (CHUNK_GROUPS(SPLIT, SG) * STRIDE(SG))
// Keys of a simdgroup's share that one lane weighs.
#define LANE_KEYS(SPLIT, SG) ((CHUNK_GROUPS(SPLIT, SG) + 3) / 4)
// Groups that VALUE_LOADS loads of values take.
#define VALUE_GROUPS(D, W) (VALUE_LOADS(W) / SLICE_LOADS(D, W))

static inline void load_shared(threadgroup const float4* from, thread float* to) {
  const float4 a = from[0];
  const float4 b = from[1];
  #pragma clang loop unroll(full)
  for (uint i = 0; i < 4; i++) {
    to[i] = a[i];
    to[4 + i] = b[i];
  }
}

// The keys of a chunk that one simdgroup takes: groups of eight that begin STRIDE(SG) apart.
struct Share {
  uint ids;         // lane i has the id of page first_page + i
  uint first_page;
  uint first;       // position of its first key
  uint begin;       // first position that the row sees
  uint groups;
  uint count;       // keys of the chunk from `first` on, those of other simdgroups too
};

// Whether the row sees key `key` of the share, counted from `first`.
static inline bool is_visible(thread const Share& share, uint key) {
  return key < share.count && share.first + key >= share.begin;
}

// Where key `key` of group g is. Groups begin at multiples of eight, so a page holds all eight. Slots that the row does not
// see may hold anything; in their place others are read.
template <typename T, int D, uint SG>
static inline ulong key_at(constant AttentionParams& p, thread const Share& share, uint g, uint kv_head, uint key) {
  const uint first = share.first + g * STRIDE(SG);
  const uint low = max(first, share.begin) - first;
  const uint high = min(share.count - g * STRIDE(SG), kGroupKeys) - 1;
  const uint id = simd_shuffle(share.ids, ushort(first / kTokensPerPage - share.first_page));
  return page_offset<T, D>(p, id, p.plane, kv_head) + (first % kTokensPerPage + clamp(key, low, high)) * D;
}

// KEY_LOADS loads: part u % KEY_PARTS of the keys of group u / KEY_PARTS.
template <typename T, int D, uint W, uint SG>
static inline void load_keys(
    device const T* pages, constant AttentionParams& p, thread const Share& share, uint u, uint kv_head, uint lane,
    thread Run<T, W>* raw)
{
  device const T* from = pages + u % KEY_PARTS(D, W) * (32 * W) + lane % KEY_LANES(D, W) * W;
  #pragma clang loop unroll(full)
  for (uint j = 0; j < KEY_LOADS(D, W); j++) {
    const uint key = j * LOAD_KEYS(D, W) + lane / KEY_LANES(D, W);
    load_raw(from + key_at<T, D, SG>(p, share, u / KEY_PARTS(D, W), kv_head, key), raw[j]);
  }
}

// VALUE_LOADS loads: this slice of the values of VALUE_GROUPS groups from g on. Past the last group its values are read again.
template <typename T, int D, uint W, uint SG>
static inline void load_values(
    device const T* pages, constant AttentionParams& p, thread const Share& share, uint g, uint kv_head, uint slice,
    uint lane, thread Run<T, W>* raw)
{
  device const T* from =
      pages + p.kv_heads * HEAD_ELEMENTS(T, D) + slice * VALUE_SLICE(D) + lane % SLICE_LANES(D, W) * W;
  #pragma clang loop unroll(full)
  for (uint j = 0; j < VALUE_LOADS(W); j++) {
    const uint key = j % SLICE_LOADS(D, W) * SLICE_KEYS(D, W) + lane / SLICE_LANES(D, W);
    load_raw(
        from + key_at<T, D, SG>(p, share, min(g + j / SLICE_LOADS(D, W), share.groups - 1), kv_head, key), raw[j]);
  }
}

// Key n of those of a share that a lane weighs.
template <uint SG>
static inline uint lane_key(uint lane, uint n) {
  return (lane / kGroupKeys + 4 * n) * STRIDE(SG) + lane % kGroupKeys;
}

// Scales of the keys and values that this lane weighs; 0 where the row does not see them.
template <typename T, int D, bool SPLIT, uint SG>
static inline void load_scales(
    device const T* pages, constant AttentionParams& p, thread const Share& share, uint kv_head, uint lane,
    thread float* key_scales, thread float* value_scales)
{
  #pragma clang loop unroll(full)
  for (uint n = 0; n < LANE_KEYS(SPLIT, SG); n++) {
    const uint key = lane_key<SG>(lane, n);
    const uint page = (share.first + key) / kTokensPerPage - share.first_page;
    const uint id = simd_shuffle(share.ids, ushort(min(page, 31u)));
    key_scales[n] = 0.0f;
    value_scales[n] = 0.0f;
    if (is_visible(share, key)) {
      device const T* head = pages + page_offset<T, D>(p, id, p.plane, kv_head);
      key_scales[n] = slot_scale<T, D>(head, (share.first + key) % kTokensPerPage);
      value_scales[n] =
          slot_scale<T, D>(head + p.kv_heads * HEAD_ELEMENTS(T, D), (share.first + key) % kTokensPerPage);
    }
  }
}

// Sums of N values over LANES lanes halving the values while there are several: a lane keeps the half that its
// bit names and gets its partner's part of it. Lane i ends with value i · N / LANES.
template <uint BIT, uint N>
static inline void fold(thread float* x, uint lane) {
  if (N > 1) {
    const bool upper = (lane & BIT) != 0;
    #pragma clang loop unroll(full)
    for (uint i = 0; i < N / 2; i++) {
      const float a = x[i];
      const float b = x[i + N / 2];
      x[i] = (upper ? b : a) + simd_shuffle_xor(upper ? a : b, ushort(BIT));
    }
  } else {
    x[0] += simd_shuffle_xor(x[0], ushort(BIT));
  }
}
#define HALVED(N, TIMES) (((N) >> (TIMES)) > 1 ? (N) >> (TIMES) : 1)
template <uint LANES, uint N>
static inline float fold_all(thread float* x, uint lane) {
  fold<LANES / 2, N>(x, lane);
  fold<LANES / 4, HALVED(N, 1)>(x, lane);
  if (LANES >= 8) {
    fold<LANES / 8, HALVED(N, 2)>(x, lane);
  }
  if (LANES >= 16) {
    fold<LANES / 16, HALVED(N, 3)>(x, lane);
  }
  if (LANES >= 32) {
    fold<LANES / 32, HALVED(N, 4)>(x, lane);
  }
  return x[0];
}

template <int D, int HEADS, bool SPLIT, uint SG>
struct DecodeMemory {
  float4 q[HEADS * D / 4];
  float4 parts[SG * VALUE_SLICE(D) / 4];
  float4 part_largest[HEADS * SG / 4];
  float own_k[D];
  float own_v[D];
  float own_score[HEADS];
  float scores[HEADS * CHUNK(SPLIT, SG)];  // then weights
  float part_sum[HEADS * SG];
};

#define DECODE_OPERANDS(T) \
    device const float* qkv [[buffer(0)]], device const uchar* q_norm [[buffer(1)]], device const uchar* k_norm [[buffer(2)]], \
    device T* pages [[buffer(3)]], device const uint* input [[buffer(4)]], device float* out [[buffer(5)]], \
    device float* stats [[buffer(6)]], constant AttentionParams& p [[buffer(7)]], \
    uint3 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]], \
    uint simdgroup_index [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]

// HEADS query heads of one KV head for one row. Grid: (head groups · slices of a value), rows, parts (SPLIT) or 1.
// qkv: f32 [rows, stride]; pages: T [pages, planes, kv_heads, HEAD_ELEMENTS]
// SPLIT: out f32 [rows, heads, splits, D] and stats f32 [rows, heads, splits, 2] = largest score, sum of weights.
// Otherwise out is y, f32 [rows, heads, D].
template <typename T, int D, int HEADS, bool SPLIT, uint SG>
static inline void decode_row(
    device const float* qkv, device const uchar* q_norm, device const uchar* k_norm, device T* pages, device const uint* input,
    device float* out, device float* stats, constant AttentionParams& p, threadgroup DecodeMemory<D, HEADS, SPLIT, SG>& memory,
    uint3 group, uint tid, uint simdgroup_index, uint lane)
{
  threadgroup float4* q = memory.q;
  threadgroup float* own_k = memory.own_k;
  threadgroup float* own_v = memory.own_v;
  threadgroup float* own_score = memory.own_score;
  threadgroup float* scores = memory.scores;
  threadgroup float4* parts = memory.parts;
  threadgroup float4* part_largest = memory.part_largest;
  threadgroup float* part_sum = memory.part_sum;

  constexpr uint W = LANE_DIMS(T, D);
  const uint simdgroup = simd_broadcast_first(simdgroup_index);  // compilers see that branches on it are uniform
  const uint i = group.y;
  const uint slices = D / VALUE_SLICE(D);
  const uint slice = group.x % slices;
  const uint head = group.x / slices * HEADS;
  const uint ratio = p.heads / p.kv_heads;
  const uint kv_head = head / ratio;
  const bool has_own_key = (p.flags & kOwnKey) != 0;

  // The last simdgroups, which have the fewest keys, ready a vector of the row each: query heads, its own k, its own v.
  const uint task = SG - 1 - simdgroup;
  float low[PAIRS(D)];
  float high[PAIRS(D)];
  float weight_low[PAIRS(D)];
  float weight_high[PAIRS(D)];
  ulong turns[PAIRS(D)];
  uint format = kNoNorm;
  if (task < HEADS + (has_own_key ? 2 : 0)) {
    uint column = p.v_column + kv_head * D;
    if (task < HEADS) {
      format = p.q_norm;
      column = (head + task) * D;
    } else if (task == HEADS) {
      format = p.k_norm;
      column = p.k_column + kv_head * D;
    }
    head_load<D>(qkv + i * p.stride + column, lane, low, high);
    if (format != kNoNorm) {
      head_weights<D>(task == HEADS ? k_norm : q_norm, format, lane, weight_low, weight_high);
    }
  }

  const uint row = input_row(input, p, i);
  const uint position = input[p.position_word + row];
  const uint sequence = input[p.sequence_word + row];
  // Keys [begin, end) are read from pages, and `own` says whether the row's own comes on top of them.
  uint begin = first_key(p, position);
  uint end = has_own_key ? position : position + 1;
  bool own = has_own_key;
  if (SPLIT) {
    const uint keys = part_keys(position);
    const uint from = group.z * keys;
    if (from > position || from + keys <= begin) {
      return;
    }
    begin = max(begin, from);
    end = min(end, from + keys);
    own = own && position < from + keys;
  }

  float largest[HEADS];
  float sum[HEADS];  // this lane's part
  float values[HEADS * W];
  #pragma clang loop unroll(full)
  for (uint h = 0; h < HEADS; h++) {
    largest[h] = kNoScore;
    sum[h] = 0.0f;
  }
  #pragma clang loop unroll(full)
  for (uint d = 0; d < HEADS * W; d++) {
    values[d] = 0.0f;
  }

  const uint start = begin / kGroupKeys * kGroupKeys;
  for (uint base = start; base == start || base < end; base += CHUNK(SPLIT, SG)) {
    const uint keys = begin < end ? min(end, base + CHUNK(SPLIT, SG)) - base : 0;
    const uint offset = simdgroup * kGroupKeys;
    Share share;
    share.first_page = base / kTokensPerPage;
    share.first = base + offset;
    share.begin = begin;
    share.count = keys - min(keys, offset);
    share.groups = (share.count + STRIDE(SG) - 1) / STRIDE(SG);
    share.ids = 0;
    if ((share.first_page + lane) * kTokensPerPage < base + keys) {
      share.ids = row_page(input, p, sequence, share.first_page + lane);
    }

    Run<T, W> raw[8];
    Run<T, W> next[8];
    float key_scales[LANE_KEYS(SPLIT, SG)];
    float value_scales[LANE_KEYS(SPLIT, SG)];
    const uint units = share.groups * KEY_PARTS(D, W);
    if (units > 0) {
      load_keys<T, D, W, SG>(pages, p, share, 0, kv_head, lane, next);
    }
    if (IS_CODES(T)) {
      load_scales<T, D, SPLIT, SG>(pages, p, share, kv_head, lane, key_scales, value_scales);
    }

    if (base == start) {
      if (task < HEADS + (own ? 2 : 0)) {
        if (task <= HEADS) {
          head_turns<D>(p, lane, turns);
        }
        if (task > HEADS ? (p.flags & kNormaliseValue) != 0 : format != kNoNorm) {
          head_normalise<D>(p.eps, low, high);
        }
        if (format != kNoNorm) {
          head_multiply<D>(weight_low, weight_high, low, high);
        }
        if (task <= HEADS) {
          head_rotate<D>(turns, p.rotated_pairs, position + p.position_offset, lane, low, high);
        }
        if (task < HEADS) {
          head_share<float, D>((threadgroup float*)q + task * D, lane, low, high, 1.0f);
        } else {
          const float scale = head_round<T, D>(low, high);
          head_share<float, D>(task == HEADS ? own_k : own_v, lane, low, high, scale);
          if ((p.flags & kStoreOwnKey) != 0 && head % ratio == 0 && slice == 0) {
            const uint page = row_page(input, p, sequence, position / kTokensPerPage);
            device T* own_head = pages + page_offset<T, D>(p, page, p.plane + task - HEADS, kv_head);
            head_store<T, D>(own_head, position % kTokensPerPage, lane, low, high, scale);
          }
        }
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }

    constexpr uint loads = KEY_LOADS(D, W);
    float products[HEADS * loads];
    #pragma clang loop unroll(disable)
    for (uint u = 0; u < units; u++) {
      const uint part = u % KEY_PARTS(D, W);
      #pragma clang loop unroll(full)
      for (uint j = 0; j < loads; j++) {
        raw[j] = next[j];
      }
      if (u + 1 < units) {
        load_keys<T, D, W, SG>(pages, p, share, u + 1, kv_head, lane, next);
      }
      if (part == 0) {
        #pragma clang loop unroll(full)
        for (uint j = 0; j < HEADS * loads; j++) {
          products[j] = 0.0f;
        }
      }
      #pragma clang loop unroll(full)
      for (uint eight = 0; eight < W / 8; eight++) {
        float query[HEADS * 8];
        #pragma clang loop unroll(full)
        for (uint h = 0; h < HEADS; h++) {
          const uint column = h * D + part * (32 * W) + lane % KEY_LANES(D, W) * W + 8 * eight;
          load_shared(q + column / 4, query + 8 * h);
        }
        #pragma clang loop unroll(full)
        for (uint j = 0; j < loads; j++) {
          float key[8];
          widen(raw[j], eight, key);
          #pragma clang loop unroll(full)
          for (uint d = 0; d < HEADS * 8; d++) {
            products[d / 8 * loads + j] = fma(query[d], key[d % 8], products[d / 8 * loads + j]);
          }
        }
      }
      if (part == KEY_PARTS(D, W) - 1) {
        // Of the lanes that shared a key, 4 / HEADS have the score of head h.
        const float score = fold_all<KEY_LANES(D, W), HEADS * loads>(products, lane);
        const uint value = lane % KEY_LANES(D, W) * HEADS / 4;
        const uint h = value / loads;
        const uint key = value % loads * LOAD_KEYS(D, W) + lane / KEY_LANES(D, W);
        if (lane % (4 / HEADS) == 0) {
          scores[h * CHUNK(SPLIT, SG) + offset + u / KEY_PARTS(D, W) * STRIDE(SG) + key] = score;
        }
      }
    }
    if (base == start && own && task < HEADS) {
      float product = 0.0f;
      for (uint d = lane; d < D; d += 32) {
        product = fma(((threadgroup const float*)q)[task * D + d], own_k[d], product);
      }
      product = simd_sum(product);
      if (lane == 0) {
        own_score[task] = product;
      }
    }
    if (share.groups > 0) {
      load_values<T, D, W, SG>(pages, p, share, 0, kv_head, slice, lane, next);
    }

    // Lane i has keys i, i + 32 … of this simdgroup's, of each head.
    simdgroup_barrier(mem_flags::mem_threadgroup);
    float weight[HEADS * LANE_KEYS(SPLIT, SG)];
    #pragma clang loop unroll(full)
    for (uint h = 0; h < HEADS; h++) {
      float best = kNoScore;
      #pragma clang loop unroll(full)
      for (uint n = 0; n < LANE_KEYS(SPLIT, SG); n++) {
        const uint key = lane_key<SG>(lane, n);
        float score = is_visible(share, key) ? scores[h * CHUNK(SPLIT, SG) + offset + key] : kNoScore;
        if (IS_CODES(T)) {
          score = is_visible(share, key) ? score * key_scales[n] : kNoScore;
        }
        weight[h * LANE_KEYS(SPLIT, SG) + n] = score;
        best = max(best, score);
      }
      best = simd_max(best);
      if (lane == 0) {
        ((threadgroup float*)part_largest)[h * SG + simdgroup] = best;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    #pragma clang loop unroll(full)
    for (uint h = 0; h < HEADS; h++) {
      const float before = largest[h];
      #pragma clang loop unroll(full)
      for (uint s = 0; s < SG / 4; s++) {
        const float4 four = part_largest[h * (SG / 4) + s];
        largest[h] = max(largest[h], max(max(four.x, four.y), max(four.z, four.w)));
      }
      if (own) {
        largest[h] = max(largest[h], own_score[h]);
      }
      if (base != start) {
        const float fade = weight_of(before, largest[h], p.score_scale);
        sum[h] *= fade;
        #pragma clang loop unroll(full)
        for (uint d = 0; d < W; d++) {
          values[W * h + d] *= fade;
        }
      }
      #pragma clang loop unroll(full)
      for (uint n = 0; n < LANE_KEYS(SPLIT, SG); n++) {
        const uint key = lane_key<SG>(lane, n);
        const float w =
            is_visible(share, key) ? weight_of(weight[h * LANE_KEYS(SPLIT, SG) + n], largest[h], p.score_scale) : 0.0f;
        sum[h] += w;
        if (key + offset < CHUNK(SPLIT, SG)) {
          scores[h * CHUNK(SPLIT, SG) + offset + key] = IS_CODES(T) ? w * value_scales[n] : w;
        }
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);

    #pragma clang loop unroll(disable)
    for (uint g = 0; g < share.groups; g += VALUE_GROUPS(D, W)) {
      #pragma clang loop unroll(full)
      for (uint j = 0; j < VALUE_LOADS(W); j++) {
        raw[j] = next[j];
      }
      if (g + VALUE_GROUPS(D, W) < share.groups) {
        load_values<T, D, W, SG>(pages, p, share, g + VALUE_GROUPS(D, W), kv_head, slice, lane, next);
      }
      #pragma clang loop unroll(full)
      for (uint j = 0; j < VALUE_LOADS(W); j++) {
        const uint of_group = g + j / SLICE_LOADS(D, W);
        const uint key =
            offset + of_group * STRIDE(SG) + j % SLICE_LOADS(D, W) * SLICE_KEYS(D, W) + lane / SLICE_LANES(D, W);
        float w[HEADS];
        #pragma clang loop unroll(full)
        for (uint h = 0; h < HEADS; h++) {
          w[h] = of_group < share.groups ? scores[h * CHUNK(SPLIT, SG) + key] : 0.0f;
        }
        #pragma clang loop unroll(full)
        for (uint eight = 0; eight < W / 8; eight++) {
          float value[8];
          widen(raw[j], eight, value);
          #pragma clang loop unroll(full)
          for (uint h = 0; h < HEADS; h++) {
            #pragma clang loop unroll(full)
            for (uint d = 0; d < 8; d++) {
              const uint at = W * h + 8 * eight + d;
              values[at] = fma(w[h], value[d], values[at]);
            }
          }
        }
      }
    }
    if (base + CHUNK(SPLIT, SG) < end) {
      threadgroup_barrier(mem_flags::mem_threadgroup);  // part_largest is written again
    }
  }

  #pragma clang loop unroll(full)
  for (uint h = 0; h < HEADS; h++) {
    const float lanes_sum = simd_sum(sum[h]);
    if (lane == 0) {
      part_sum[h * SG + simdgroup] = lanes_sum;
    }
  }
  #pragma clang loop unroll(full)
  for (uint h = 0; h < HEADS; h++) {
    #pragma clang loop unroll(full)
    for (uint d = 0; d < W; d++) {
      #pragma clang loop unroll(full)
      for (uint n = 0; n < 3; n++) {
        if ((SLICE_LANES(D, W) << n) < 32) {
          values[W * h + d] += simd_shuffle_xor(values[W * h + d], ushort(SLICE_LANES(D, W) << n));
        }
      }
    }
    if (lane < SLICE_LANES(D, W)) {
      threadgroup float4* part = parts + simdgroup * (VALUE_SLICE(D) / 4) + lane * (W / 4);
      #pragma clang loop unroll(full)
      for (uint d = 0; d < W; d += 4) {
        const uint at = W * h + d;
        part[d / 4] = float4(values[at], values[at + 1], values[at + 2], values[at + 3]);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid < VALUE_SLICE(D)) {
      const float own_weight = own ? weight_of(own_score[h], largest[h], p.score_scale) : 0.0f;
      float total = own_weight;
      float value = own ? own_weight * own_v[slice * VALUE_SLICE(D) + tid] : 0.0f;
      #pragma clang loop unroll(full)
      for (uint s = 0; s < SG; s++) {
        total += part_sum[h * SG + s];
        value += ((threadgroup const float*)parts)[s * VALUE_SLICE(D) + tid];
      }
      const uint at = i * p.heads + head + h;
      if (SPLIT) {
        out[(at * p.splits + group.z) * D + slice * VALUE_SLICE(D) + tid] = value;
        if (slice == 0 && tid == 0) {
          stats[2 * (at * p.splits + group.z)] = largest[h];
          stats[2 * (at * p.splits + group.z) + 1] = total;
        }
      } else {
        out[at * D + slice * VALUE_SLICE(D) + tid] = value / total;
      }
    }
    if (h + 1 < HEADS) {
      threadgroup_barrier(mem_flags::mem_threadgroup);  // parts are written again
    }
  }
}

template <typename T, int D, int HEADS, bool SPLIT>
[[kernel]] [[max_total_threads_per_threadgroup(256)]] void attention_decode(DECODE_OPERANDS(T)) {
  threadgroup DecodeMemory<D, HEADS, SPLIT, 8> memory;
  decode_row<T, D, HEADS, SPLIT, 8>(
      qkv, q_norm, k_norm, pages, input, out, stats, p, memory, group, tid, simdgroup_index, lane);
}

template <typename T, int D>
[[kernel]] [[max_total_threads_per_threadgroup(512)]] void attention_decode_wide(DECODE_OPERANDS(T)) {
  threadgroup DecodeMemory<D, 1, false, 16> memory;
  decode_row<T, D, 1, false, 16>(
      qkv, q_norm, k_norm, pages, input, out, stats, p, memory, group, tid, simdgroup_index, lane);
}

// The kernels of one head size, for pages of format F and type T.
#ifdef MSL_TARGET_PTX
#define ATTENTION_WIDE(F, T, D) \
  template [[host_name(TEXT(attention_decode_##F##_d##D##_wide))]] [[kernel]] \
  decltype(attention_decode_wide<T, D>) attention_decode_wide<T, D>;
#else
#define ATTENTION_WIDE(F, T, D)
#endif
#define ATTENTION_DECODE(F, T, D) \
  template [[host_name(TEXT(attention_decode_##F##_d##D))]] [[kernel]] \
  decltype(attention_decode<T, D, 1, false>) attention_decode<T, D, 1, false>; \
  ATTENTION_WIDE(F, T, D)
#define ATTENTION_SPLIT(F, T, D, H) \
  template [[host_name(TEXT(attention_split_##F##_d##D##_h##H))]] [[kernel]] \
  decltype(attention_decode<T, D, H, true>) attention_decode<T, D, H, true>;

#endif
