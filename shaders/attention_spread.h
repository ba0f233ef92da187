// attention_spread.h: attention of decode rows whose keys are spread over the simdgroups of several threadgroups. A simdgroup takes a group
// of keys at a time and keeps scores, weights and sums in its registers, so that threads wait for each other twice: for the row's own
// vectors, and to add what the simdgroups have.
//
// attention_spread: eight threadgroups, which send the first ones what they have (a cluster); for sliding windows, and for all keys of rows
// below position 2,048. attention_spread_split: parts, which attention_reduce adds to the same bits, for contexts beyond.
//
// Keys of earlier tokens were written by earlier runs, so they are asked for before the dispatches before this one are over. Which keys go
// where, and what is added when, follows from the row's position alone.
//
// For CUDA alone: an Apple GPU has no clusters, and what starts early there is nothing.
#ifndef MARKBASE_ATTENTION_SPREAD_H
#define MARKBASE_ATTENTION_SPREAD_H
#include "attention_decode.h"

#ifdef MSL_TARGET_PTX
#define SPREAD_PARTS(D, W) (D / W > 32 ? D / W / 32 : 1)     // of a key, a load of a lane each
#define SPREAD_LANES(D, W) (D / W < 32 ? D / W : 32)         // that share a key
#define SPREAD_KEYS(D, W) (32 / SPREAD_LANES(D, W))          // that a load takes
#define SPREAD_STEPS(D, W) (GROUP_KEYS(D) / SPREAD_KEYS(D, W))
#define SPREAD_LOADS(D, W) (SPREAD_STEPS(D, W) * SPREAD_PARTS(D, W))

// A group of keys: key i is at `first` + i, or `ring` keys before where that is behind the row's position.
struct SpreadGroup {
  uint first;
  uint id;         // of the page of `first`
  uint earlier_id; // and of that `ring` keys before, where needed
  bool holds_row;  // the row's own key is one of these
  bool active;     // the row sees some of them
};

// What a simdgroup asks where its keys are.
struct SpreadRow {
  uint position, begin, end;  // the row sees [begin, end) and nothing behind its position
  uint ring;                  // keys [position - ring + 1, position] have a place each; 0: keys lie in a row from `from` on
  uint from;
  uint page_start, first_page;  // of the sequence in the page table
};

static inline uint spread_first(thread const SpreadRow& row, uint place) {
  const uint base = row.ring == 0 ? row.from : row.position & ~(row.ring - 1);
  const uint first = base + place;
  return row.ring != 0 && first > row.position && first >= row.ring ? first - row.ring : first;
}

static inline uint spread_key(thread const SpreadRow& row, thread const SpreadGroup& group, uint key) {
  const uint at = group.first + key;
  return row.ring != 0 && at > row.position && at >= row.ring ? at - row.ring : at;
}

static inline bool spread_visible(thread const SpreadRow& row, thread const SpreadGroup& group, uint key) {
  const uint at = spread_key(row, group, key);
  return at >= row.begin && at < row.end;
}

template <int D>
static inline SpreadGroup spread_group(
    device const uint* input, constant AttentionParams& p, thread const SpreadRow& row, uint first, uint id)
{
  SpreadGroup group;
  group.first = first;
  group.holds_row = row.position - first < GROUP_KEYS(D) && row.position < row.end;
  group.active = first < row.end && first + GROUP_KEYS(D) > row.begin && first <= row.position;
  group.id = id;
  group.earlier_id = id;
  if (row.ring != 0 && group.holds_row && first >= row.ring) {
    const uint page = max((first - row.ring) / kTokensPerPage, row.first_page);
    group.earlier_id = input[p.table_word + row.page_start + page - row.first_page];
  }
  return group;
}

// Where key `lane` modulo the group's keys is, as elements before it: in its place another that the row sees, or its own.
template <typename T, int D>
static inline ulong spread_at(
    constant AttentionParams& p, thread const SpreadRow& row, thread const SpreadGroup& group, uint kv_head, uint lane)
{
  const uint at = spread_key(row, group, lane % GROUP_KEYS(D));
  const bool visible = at >= row.begin && at < row.end;
  const uint low = max(group.first, row.begin);
  const uint high = min(group.first + GROUP_KEYS(D), row.end) - 1;
  const uint safe = visible ? at : clamp(at, low, high);
  return page_offset<T, D>(p, visible && at < group.first ? group.earlier_id : group.id, p.plane, kv_head) + safe % kTokensPerPage * D;
}

// All loads of a group of keys, or of their values. `at`: spread_at.
template <typename T, int D, uint W>
static inline void spread_load(device const T* plane, ulong at, uint lane, thread Run<T, W>* raw) {
  device const T* from = plane + lane % SPREAD_LANES(D, W) * W;
  #pragma clang loop unroll(full)
  for (uint j = 0; j < SPREAD_LOADS(D, W); j++) {
    const uint key = j / SPREAD_PARTS(D, W) * SPREAD_KEYS(D, W) + lane / SPREAD_LANES(D, W);
    load_raw(from + simd_shuffle(at, ushort(key)) + j % SPREAD_PARTS(D, W) * (32 * W), raw[j]);
  }
}

// Puts the row's own key, which comes later than the others, in its place and in those of keys that the row does not see.
template <typename T, int D, uint W>
static inline void spread_replace(bool others, uint lane, device const T* from, thread Run<T, W>* raw) {
  #pragma clang loop unroll(full)
  for (uint j = 0; j < SPREAD_LOADS(D, W); j++) {
    const uint key = j / SPREAD_PARTS(D, W) * SPREAD_KEYS(D, W) + lane / SPREAD_LANES(D, W);
    if (!simd_shuffle(others, ushort(key))) {
      load_raw(from + lane % SPREAD_LANES(D, W) * W + j % SPREAD_PARTS(D, W) * (32 * W), raw[j]);
    }
  }
}
template <typename T, int D, uint W>
static inline void spread_replace_shared(bool others, uint lane, threadgroup const T* from, thread Run<T, W>* raw) {
  #pragma clang loop unroll(full)
  for (uint j = 0; j < SPREAD_LOADS(D, W); j++) {
    const uint key = j / SPREAD_PARTS(D, W) * SPREAD_KEYS(D, W) + lane / SPREAD_LANES(D, W);
    if (!simd_shuffle(others, ushort(key))) {
      load_raw_shared(from + lane % SPREAD_LANES(D, W) * W + j % SPREAD_PARTS(D, W) * (32 * W), raw[j]);
    }
  }
}

template <typename T, int D, int HEADS, uint C, uint SG>
struct SpreadMemory {
  float4 q[HEADS * D / 4];
  float4 parts[SG * D / 4];
  float4 sent[C > 1 ? C * D / 4 : 1];  // by the threadgroups of a cluster: values,
  float4 sent_stats[C];                // and largest score and sum
  float4 own_k[D / 4];  // of T
  float4 own_v[D / 4];
  float own_scales[2];
  float part_largest[HEADS * SG];
  float part_sum[HEADS * SG];
  ulong bell;
};

template <typename T, int D, int HEADS, uint C, uint SG>
static inline void spread_row(
    device const float* qkv, device const uchar* q_norm, device const uchar* k_norm, device T* pages, device const uint* input,
    device float* out, device float* stats, constant AttentionParams& p,
    threadgroup SpreadMemory<T, D, HEADS, C, SG>& memory, uint3 group, uint tid, uint simdgroup_index, uint lane)
{
  constexpr bool SPLIT = C == 1;
  constexpr uint W = LANE_DIMS(T, D);
  constexpr uint KG = GROUP_KEYS(D);
  constexpr uint PARTS = SPREAD_PARTS(D, W);
  constexpr uint LANES = SPREAD_LANES(D, W);
  constexpr uint STEPS = SPREAD_STEPS(D, W);
  constexpr uint LOADS = SPREAD_LOADS(D, W);
  threadgroup float4* q = memory.q;
  threadgroup T* own_k = (threadgroup T*)memory.own_k;
  threadgroup T* own_v = (threadgroup T*)memory.own_v;

  resident_threadgroups<(sizeof(T) < 4 && HEADS < 4 && D < 512 ? 2 : 1)>();
  const uint rank = group.x % C;
  const bool ready = (p.flags & kKeysAreThere) != 0;
  if (!ready) {
    wait_for_earlier_dispatches();
  }
  const uint simdgroup = simd_broadcast_first(simdgroup_index);
  const uint i = group.y;
  const uint head = group.x / C * HEADS;
  const uint ratio = p.heads / p.kv_heads;
  const uint kv_head = head / ratio;
  const bool has_own_key = (p.flags & kOwnKey) != 0;

  const uint input_at = input_row(input, p, i);
  const uint sequence = input[p.sequence_word + input_at];
  SpreadRow row;
  row.position = input[p.position_word + input_at];
  row.page_start = input[p.pages_word + sequence];
  row.first_page = input[p.pages_word + p.sequences + sequence];
  row.begin = first_key(p, row.position);
  row.end = row.position + 1;
  row.ring = 0;
  row.from = 0;
  uint place = simdgroup * KG;
  uint stride = SG * KG;  // from one group of a simdgroup to its next
  uint groups = 1;
  if (!SPLIT && p.ring != 0) {
    row.ring = p.ring;
    groups = p.ring / (C * SG * KG);
    stride = C * SG * KG;
    place += rank * (SG * KG);
  } else {
    const uint count = spread_keys(row.position, SG * KG);
    row.from = (SPLIT ? group.z : rank) * count;
    groups = count / (SG * KG);
    if (SPLIT && (row.from > row.position || row.from + count <= row.begin)) {
      return;
    }
    row.begin = max(row.begin, row.from);
    row.end = min(row.end, row.from + count);
  }

  // Threadgroups without keys leave; the others come before them.
  const uint span = row.ring != 0 ? SG * KG : groups * (SG * KG);
  const uint senders = SPLIT ? 1 : min(row.position / span + 1, C);
  if (!SPLIT) {
    cluster_begin(&memory.bell, rank < HEADS ? senders * (D * 4 + 16) : 0, tid);
    if (rank >= max(senders, uint(HEADS))) {
      return;
    }
  }

  // The last simdgroups ready a vector of the row each: query heads, and where its own key is, that and its value.
  const bool own =
      has_own_key && (row.ring != 0 ? row.position / (SG * KG) % C == rank : row.position < row.end && row.begin <= row.position);
  const uint task = SG - 1 - simdgroup;
  const bool has_task = task < HEADS + (own ? 2 : 0);

  uint ids = 0;  // lane i: page of group i of the next 32
  Run<T, W> keys[LOADS];
  Run<T, W> values[LOADS];
  SpreadGroup now;
  {
    const uint first = spread_first(row, place + lane * stride);
    if (lane < groups && first < row.end && first + KG > row.begin && first <= row.position) {
      ids = input[p.table_word + row.page_start + first / kTokensPerPage - row.first_page];
    }
    now = spread_group<D>(input, p, row, simd_broadcast_first(first), simd_broadcast_first(ids));
  }
  float key_scale = 0.0f;
  float value_scale = 0.0f;
  const uint lane_key = lane % KG;
  const uint lane_head = lane / KG % HEADS;
  device const T* value_plane = pages + p.kv_heads * HEAD_ELEMENTS(T, D);
  if (now.active) {
    const ulong at = spread_at<T, D>(p, row, now, kv_head, lane);
    spread_load<T, D, W>(pages, at, lane, keys);
    spread_load<T, D, W>(value_plane, at, lane, values);
  }

  float low[PAIRS(D)];
  float high[PAIRS(D)];
  float weight_low[PAIRS(D)];
  float weight_high[PAIRS(D)];
  float sines[PAIRS(D)];
  float cosines[PAIRS(D)];
  uint format = kNoNorm;
  uint column = p.v_column + kv_head * D;
  if (has_task) {
    if (task < HEADS) {
      format = p.q_norm;
      column = (head + task) * D;
    } else if (task == HEADS) {
      format = p.k_norm;
      column = p.k_column + kv_head * D;
    }
    if (format != kNoNorm) {
      head_weights<D>(task == HEADS ? k_norm : q_norm, format, lane, weight_low, weight_high);
    }
    if (task <= HEADS) {
      head_angles<D>(p, row.position + p.position_offset, lane, sines, cosines);
    }
  }

  if (ready) {
    wait_for_earlier_dispatches();
  }
  if (has_task) {
    head_load<D>(qkv + i * p.stride + column, lane, low, high);
    if (task > HEADS ? (p.flags & kNormaliseValue) != 0 : format != kNoNorm) {
      head_normalise<D>(p.eps, low, high);
    }
    if (format != kNoNorm) {
      head_multiply<D>(weight_low, weight_high, low, high);
    }
    if (task <= HEADS) {
      head_turn<D>(sines, cosines, p.rotated_pairs, lane, low, high);
    }
    if (task < HEADS) {
      head_share<float, D>((threadgroup float*)q + task * D, lane, low, high, 1.0f);
    } else {
      const float scale = head_round<T, D>(low, high);
      head_share<T, D>(task == HEADS ? own_k : own_v, lane, low, high, 1.0f);
      if (lane == 0) {
        memory.own_scales[task - HEADS] = scale;
      }
      if ((p.flags & kStoreOwnKey) != 0 && head % ratio == 0) {
        const uint page = row_page(input, p, sequence, row.position / kTokensPerPage);
        device T* own_head = pages + page_offset<T, D>(p, page, p.plane + task - HEADS, kv_head);
        head_store<T, D>(own_head, row.position % kTokensPerPage, lane, low, high, scale);
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  float largest = kNoScore;  // of this lane's head
  float sum = 0.0f;          // this lane's part
  float total[HEADS * PARTS * W];
  #pragma clang loop unroll(full)
  for (uint d = 0; d < HEADS * PARTS * W; d++) {
    total[d] = 0.0f;
  }

  #pragma clang loop unroll(disable)
  for (uint g = 0; g < groups; g++) {
    SpreadGroup next = now;
    if (g + 1 < groups) {
      const uint at = g + 1;
      const uint first = spread_first(row, place + (at / 32 * 32 + lane) * stride);
      if (at % 32 == 0) {
        ids = 0;
        if (at + lane < groups && first < row.end && first + KG > row.begin && first <= row.position) {
          ids = input[p.table_word + row.page_start + first / kTokensPerPage - row.first_page];
        }
      }
      next = spread_group<D>(input, p, row, simd_shuffle(first, ushort(at % 32)), simd_shuffle(ids, ushort(at % 32)));
    }
    if (now.active) {
      const bool visible = spread_visible(row, now, lane_key);
      if (IS_CODES(T)) {
        const uint at = spread_key(row, now, lane_key);
        device const T* from =
            pages + page_offset<T, D>(p, at < now.first ? now.earlier_id : now.id, p.plane, kv_head);
        key_scale = 0.0f;
        value_scale = 0.0f;
        if (visible && !(own && at == row.position)) {
          key_scale = slot_scale<T, D>(from, at % kTokensPerPage);
          value_scale = slot_scale<T, D>(from + p.kv_heads * HEAD_ELEMENTS(T, D), at % kTokensPerPage);
        }
        if (own && at == row.position) {
          key_scale = memory.own_scales[0];
          value_scale = memory.own_scales[1];
        }
      }
      if (now.holds_row) {
        const uint at = spread_key(row, now, lane_key);
        const bool others = at < row.position && at >= row.begin;
        if (own) {
          spread_replace_shared<T, D, W>(others, lane, own_k, keys);
          spread_replace_shared<T, D, W>(others, lane, own_v, values);
        } else {
          device const T* from =
              pages + page_offset<T, D>(p, now.id, p.plane, kv_head) + row.position % kTokensPerPage * D;
          spread_replace<T, D, W>(others, lane, from, keys);
          spread_replace<T, D, W>(others, lane, from + p.kv_heads * HEAD_ELEMENTS(T, D), values);
        }
      }

      float products[HEADS * STEPS];
      #pragma clang loop unroll(full)
      for (uint j = 0; j < HEADS * STEPS; j++) {
        products[j] = 0.0f;
      }
      #pragma clang loop unroll(full)
      for (uint part = 0; part < PARTS; part++) {
        #pragma clang loop unroll(full)
        for (uint eight = 0; eight < W / 8; eight++) {
          float query[HEADS * 8];
          #pragma clang loop unroll(full)
          for (uint h = 0; h < HEADS; h++) {
            load_shared(q + (h * D + part * (32 * W) + lane % LANES * W + 8 * eight) / 4, query + 8 * h);
          }
          #pragma clang loop unroll(full)
          for (uint j = 0; j < STEPS; j++) {
            float key[8];
            widen(keys[j * PARTS + part], eight, key);
            #pragma clang loop unroll(full)
            for (uint d = 0; d < HEADS * 8; d++) {
              products[d / 8 * STEPS + j] = fma(query[d], key[d % 8], products[d / 8 * STEPS + j]);
            }
          }
        }
      }
      // Lane i gets the score of key i modulo KG for head i / KG.
      const float folded = fold_all<LANES, HEADS * STEPS>(products, lane);
      const uint source = lane_key % SPREAD_KEYS(D, W) * LANES +
                          (lane_head * STEPS + lane_key / SPREAD_KEYS(D, W)) * (LANES / (HEADS * STEPS));
      float score = simd_shuffle(folded, ushort(source));
      if (IS_CODES(T)) {
        score *= key_scale;
      }
      score = visible ? score : kNoScore;
      float best = max(largest, score);
      best = max(best, simd_shuffle_xor(best, ushort(1)));
      best = max(best, simd_shuffle_xor(best, ushort(2)));
      if (KG == 8) {
        best = max(best, simd_shuffle_xor(best, ushort(4)));
      }
      float weight = visible ? weight_of(score, best, p.score_scale) : 0.0f;
      if (g > 0) {
        const float fade = weight_of(largest, best, p.score_scale);
        sum *= fade;
        #pragma clang loop unroll(full)
        for (uint h = 0; h < HEADS; h++) {
          const float by = simd_shuffle(fade, ushort(h * KG));
          #pragma clang loop unroll(full)
          for (uint d = 0; d < PARTS * W; d++) {
            total[h * PARTS * W + d] *= by;
          }
        }
      }
      largest = best;
      sum += weight;
      if (IS_CODES(T)) {
        weight *= value_scale;
      }
      #pragma clang loop unroll(full)
      for (uint j = 0; j < STEPS; j++) {
        float w[HEADS];
        #pragma clang loop unroll(full)
        for (uint h = 0; h < HEADS; h++) {
          w[h] = simd_shuffle(weight, ushort(h * KG + j * SPREAD_KEYS(D, W) + lane / LANES));
        }
        #pragma clang loop unroll(full)
        for (uint part = 0; part < PARTS; part++) {
          #pragma clang loop unroll(full)
          for (uint eight = 0; eight < W / 8; eight++) {
            float value[8];
            widen(values[j * PARTS + part], eight, value);
            #pragma clang loop unroll(full)
            for (uint h = 0; h < HEADS; h++) {
              #pragma clang loop unroll(full)
              for (uint d = 0; d < 8; d++) {
                const uint at = (h * PARTS + part) * W + 8 * eight + d;
                total[at] = fma(w[h], value[d], total[at]);
              }
            }
          }
        }
      }
    }
    if (g + 1 < groups && next.active) {
      const ulong at = spread_at<T, D>(p, row, next, kv_head, lane);
      spread_load<T, D, W>(pages, at, lane, keys);
      spread_load<T, D, W>(value_plane, at, lane, values);
    }
    now = next;
  }

  // Of each head: largest score, sum and values of the simdgroup.
  sum += simd_shuffle_xor(sum, ushort(1));
  sum += simd_shuffle_xor(sum, ushort(2));
  if (KG == 8) {
    sum += simd_shuffle_xor(sum, ushort(4));
  }
  if (lane < HEADS * KG && lane % KG == 0) {
    memory.part_largest[lane / KG * SG + simdgroup] = largest;
    memory.part_sum[lane / KG * SG + simdgroup] = sum;
  }
  if (!SPLIT) {
    cluster_wait();
  }
  #pragma clang loop unroll(full)
  for (uint h = 0; h < HEADS; h++) {
    #pragma clang loop unroll(full)
    for (uint part = 0; part < PARTS; part++) {
      thread float* mine = total + (h * PARTS + part) * W;
      #pragma clang loop unroll(full)
      for (uint d = 0; d < W; d++) {
        #pragma clang loop unroll(full)
        for (uint n = 0; n < 3; n++) {
          if ((LANES << n) < 32) {
            mine[d] += simd_shuffle_xor(mine[d], ushort(LANES << n));
          }
        }
      }
      if (lane < LANES) {
        threadgroup float4* to = memory.parts + (simdgroup * D + part * (32 * W) + lane * W) / 4;
        #pragma clang loop unroll(full)
        for (uint d = 0; d < W; d += 4) {
          to[d / 4] = float4(mine[d], mine[d + 1], mine[d + 2], mine[d + 3]);
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // Lane i fades simdgroup i modulo SG.
    const float part_largest = memory.part_largest[h * SG + lane % SG];
    float best = part_largest;
    #pragma clang loop unroll(full)
    for (uint m = 1; m < SG; m *= 2) {
      best = max(best, simd_shuffle_xor(best, ushort(m)));
    }
    const float fade = weight_of(part_largest, best, p.score_scale);
    float all = memory.part_sum[h * SG + lane % SG] * fade;
    #pragma clang loop unroll(full)
    for (uint m = 1; m < SG; m *= 2) {
      all += simd_shuffle_xor(all, ushort(m));
    }
    const uint at = i * p.heads + head + h;
    // Every lane comes along to the shuffles.
    #pragma clang loop unroll(full)
    for (uint part = 0; part < (D / 4 + 32 * SG - 1) / (32 * SG); part++) {
      if (simdgroup * 32 < D / 4) {
        const uint quad = part * 32 * SG + min(tid, uint(D) / 4 - 1);
        float4 value = float4(0.0f);
        #pragma clang loop unroll(full)
        for (uint s = 0; s < SG; s++) {
          value = fma(memory.parts[s * D / 4 + quad], float4(simd_shuffle(fade, ushort(s))), value);
        }
        if (tid < D / 4 && rank < senders) {
          if (SPLIT) {
            ((device float4*)out)[(at * p.splits + group.z) * D / 4 + quad] = value;
          } else {
            cluster_send(memory.sent + rank * D / 4 + quad, h, value, &memory.bell);
          }
        }
      }
    }
    if (tid == 0 && rank < senders) {
      if (SPLIT) {
        stats[2 * (at * p.splits + group.z)] = best;
        stats[2 * (at * p.splits + group.z) + 1] = all;
      } else {
        cluster_send(memory.sent_stats + rank, h, float4(best, all, 0.0f, 0.0f), &memory.bell);
      }
    }
    if (h + 1 < HEADS) {
      threadgroup_barrier(mem_flags::mem_threadgroup);  // parts are written again
    }
  }
  if (!SPLIT && rank < HEADS) {
    cluster_receive(&memory.bell);
    // As attention_reduce has it.
    const float4 stat = memory.sent_stats[min(lane, senders - 1)];
    const float most = simd_max(stat.x);
    const float by = lane < senders ? weight_of(stat.x, most, p.score_scale) : 0.0f;
    const float weights = simd_sum(stat.y * by);
    const uint at = i * p.heads + head + rank;
    #pragma clang loop unroll(full)
    for (uint part = 0; part < (D + 32 * SG - 1) / (32 * SG); part++) {
      const uint d = part * 32 * SG + tid;
      float value = 0.0f;
      #pragma clang loop unroll(full)
      for (uint n = 0; n < C; n++) {
        const float x = ((threadgroup const float*)memory.sent)[n * D + min(d, uint(D) - 1)];
        value = fma(n < senders ? x : 0.0f, simd_shuffle(by, ushort(n)), value);
      }
      if (d < D) {
        out[at * D + d] = value / weights;
      }
    }
  }
}

template <typename T, int D, int HEADS, uint C>
[[kernel]] [[max_total_threads_per_threadgroup(256)]] void attention_spread(DECODE_OPERANDS(T)) {
  threadgroup SpreadMemory<T, D, HEADS, C, 8> memory;
  spread_row<T, D, HEADS, C, 8>(
      qkv, q_norm, k_norm, pages, input, out, stats, p, memory, group, tid, simdgroup_index, lane);
}

// The kernels of one head size, for pages of format F and type T, and for H heads together.
#define ATTENTION_SPREAD(F, T, D, H) \
  template [[host_name(TEXT(attention_spread_##F##_d##D##_h##H))]] [[kernel]] \
  decltype(attention_spread<T, D, H, 8>) attention_spread<T, D, H, 8>;
#define ATTENTION_SPREAD_SPLIT(F, T, D, H) \
  template [[host_name(TEXT(attention_spread_split_##F##_d##D##_h##H))]] [[kernel]] \
  decltype(attention_spread<T, D, H, 1>) attention_spread<T, D, H, 1>;
#else  // MSL_TARGET_PTX
#define ATTENTION_SPREAD(F, T, D, H)
#define ATTENTION_SPREAD_SPLIT(F, T, D, H)
#endif

#endif
