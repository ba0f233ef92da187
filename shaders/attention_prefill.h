// attention_prefill.h: flash attention of prefill rows, 16 rows of one query head in a threadgroup. The keys are in the
// pages already (kv_write). Each simdgroup owns a slice of the head's dimensions: it multiplies its slice of Q and K, the
// slices' scores are added in order, and it accumulates its slice of the result. Q and the result stay in registers.
//
// Pages are taken in order of absolute position, and one that a row does not see changes nothing of it, so a row's result
// does not depend on the rows beside it.
#ifndef MARKBASE_ATTENTION_PREFILL_H
#define MARKBASE_ATTENTION_PREFILL_H
#include "attention_head.h"

constant constexpr uint kTileRows = 16;
// Scratch of one simdgroup, in floats: a 16×32 tile of scores, or some keys or values of its slice.
constant constexpr uint kRegion = 640;
constant constexpr uint kScoreStride = 40;  // of a row of 32 scores; as all strides here, chosen against bank conflicts
// Weights are relative to a largest score that is raised only when another would weigh more than 2^8.
constant constexpr float kSlack = 8.0f;

#define SIMDGROUPS(D) (D < 64 ? 4 : 8)
#define SLICE(D) (D / SIMDGROUPS(D))
// Row stride of a staged slice, and how many keys of it fit into a region.
#define STAGE_STRIDE(T, D) (SLICE(D) + 16 / sizeof(T))
#define STAGE_KEYS(T, D) (SLICE(D) * sizeof(T) <= 64 ? 32 : 2048 / (SLICE(D) * sizeof(T)))

// Values of a key that a lane loads at once: 16 bytes of codes where a slice has them.
#define STAGE_RUN(P, D) (IS_CODES(P) && SLICE(D) >= 16 ? 16 : 8)

// Copies one simdgroup's slice of STAGE_KEYS keys or values, from slot `slot` of a head of a page on, as T. Slots outside
// [from, end), which no row sees, become zero: they may hold anything. SCALED: codes times their scales; codes alone are exact in
// any T.
template <typename T, typename P, int D, bool SCALED>
static inline void stage(
    device const P* head, uint first_column, uint slot, uint from, uint end, uint lane, threadgroup T* to)
{
  const uint runs = SLICE(D) / STAGE_RUN(P, D);
  #pragma clang loop unroll(full)
  for (uint i = 0; i < STAGE_KEYS(T, D) * runs / 32; i++) {
    const uint run = 32 * i + lane;
    const uint key = run / runs;
    const uint column = run % runs * STAGE_RUN(P, D);
    const bool seen = slot + key >= from && slot + key < end;
    // Every slot of a page may be read, so that no load waits for a branch.
    Run<P, STAGE_RUN(P, D)> raw;
    load_raw(head + (slot + key) * D + first_column + column, raw);
    float scale = 1.0f;
    if (IS_CODES(P) && SCALED) {
      scale = seen ? slot_scale<P, D>(head, slot + key) : 0.0f;
    }
    threadgroup vec<T, 4>* at = (threadgroup vec<T, 4>*)(to + key * STAGE_STRIDE(T, D) + column);
    #pragma clang loop unroll(full)
    for (uint part = 0; part < STAGE_RUN(P, D) / 8; part++) {
      float x[8];
      widen(raw, part, x);
      if (sizeof(T) == 2 && (sizeof(P) == 4 || (IS_CODES(P) && SCALED))) {  // pages of halves hold no more
        #pragma clang loop unroll(full)
        for (uint j = 0; j < 8; j++) {
          x[j] = in_half(x[j] * scale);
        }
      } else {
        #pragma clang loop unroll(full)
        for (uint j = 0; j < 8; j++) {
          x[j] *= scale;
        }
      }
      const float4 low = float4(x[0], x[1], x[2], x[3]);
      const float4 high = float4(x[4], x[5], x[6], x[7]);
      at[2 * part] = vec<T, 4>(seen ? low : float4(0.0f));
      at[2 * part + 1] = vec<T, 4>(seen ? high : float4(0.0f));
    }
  }
}

// Half operands: a power of two that brings the largest of a row's values to 1…2; `back` undoes it. Otherwise 1.
template <typename T>
static inline float row_scale(float largest, thread float& back) {
  const uint exponent = clamp(as_type<uint>(largest) >> 23, 1u, 253u);
  if (sizeof(T) == 4 || largest == 0.0f) {
    back = 1.0f;
    return 1.0f;
  }
  back = as_type<float>(exponent << 23);
  return as_type<float>((254u - exponent) << 23);
}

// Grid: tiles of 16 rows, heads. T: operand type of the products; P: storage type of the pages.
// qkv: f32 [rows, stride]; pages: P [pages, planes, kv_heads, HEAD_ELEMENTS]; y: f32 [rows, heads, D]
template <typename T, typename P, int D>
[[kernel]] [[max_total_threads_per_threadgroup(256)]] void attention_prefill(
    device const float* qkv [[buffer(0)]],
    device const uchar* q_norm [[buffer(1)]],
    device const P* pages [[buffer(2)]],
    device const uint* input [[buffer(3)]],
    device float* y [[buffer(4)]],
    constant AttentionParams& p [[buffer(5)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
  threadgroup float4 regions[SIMDGROUPS(D) * kRegion / 4];
  threadgroup T weights[kTileRows * kScoreStride];
  threadgroup uint row_position[kTileRows];
  threadgroup uint row_sequence[kTileRows];
  threadgroup uint row_first[kTileRows];  // keys that the row sees, both included
  threadgroup uint row_last[kTileRows];
  threadgroup float row_scales[kTileRows];
  threadgroup float row_fade[kTileRows];
  threadgroup float row_sum[kTileRows];

  const uint tile = group.x * kTileRows;
  const uint tile_rows = min(p.rows - tile, kTileRows);
  const uint head = group.y;
  const uint kv_head = head / (p.heads / p.kv_heads);
  const uint column = simdgroup * SLICE(D);
  threadgroup float* region = (threadgroup float*)regions + simdgroup * kRegion;
  threadgroup T* staged = (threadgroup T*)region;

  if (tid < kTileRows) {
    const uint row = input_row(input, p, tile + min(tid, tile_rows - 1));
    const uint position = input_position(input)[row];
    row_position[tid] = position;
    row_sequence[tid] = input_sequence(input)[row];
    uint first = first_key(p, position);
    uint last = position;
    if (p.block_rule != kCausalRows && input_has_blocks(input)) {
      device const uint* block = input_block_first(input, p.groups, p.mask_words);
      last = block[input_rows(input) + row];
      first = p.block_rule == kWholeBlock ? min(first, block[row]) : first;
    }
    row_first[tid] = first;
    row_last[tid] = last;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  // Q of eight rows at a time, normalised and rotated, then each simdgroup's slice of it.
  simdgroup_matrix<T, 8, 8> q[SLICE(D) / 8][2];
  threadgroup T* q_rows = (threadgroup T*)regions;
  const uint q_stride = D + 16 / sizeof(T);
  #pragma clang loop unroll(full)
  for (uint upper = 0; upper < 2; upper++) {
    for (uint i = simdgroup; i < 8; i += SIMDGROUPS(D)) {
      const uint row = 8 * upper + i;
      float low[PAIRS(D)];
      float high[PAIRS(D)];
      head_q<D>(
          qkv + (tile + min(row, tile_rows - 1)) * p.stride, q_norm, p, head, row_position[row], lane, low, high);
      float largest = 0.0f;
      #pragma clang loop unroll(full)
      for (uint m = 0; m < PAIRS(D); m++) {
        largest = max3(largest, fabs(low[m]), fabs(high[m]));
      }
      float back;
      const float scale = row_scale<T>(simd_max(largest), back);
      head_share<T, D>(q_rows + i * q_stride, lane, low, high, scale);
      if (lane == 0) {
        row_scales[row] = back;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    #pragma clang loop unroll(full)
    for (uint k = 0; k < SLICE(D) / 8; k++) {
      simdgroup_load(q[k][upper], q_rows + column + 8 * k, q_stride);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  simdgroup_matrix<float, 8, 8> o[SLICE(D) / 8][2];
  #pragma clang loop unroll(full)
  for (uint n = 0; n < SLICE(D) / 8; n++) {
    o[n][0] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    o[n][1] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }

  // Softmax: neighbouring lanes share a row, and each keeps the row's state.
  const uint row_lanes = SIMDGROUPS(D) * 32 / kTileRows;
  const uint my_row = tid / row_lanes;
  const uint my_first = row_first[my_row];
  const uint my_last = row_last[my_row];
  const float my_scale = row_scales[my_row];
  float largest = kNoScore;
  float sum = 0.0f;

  // Neighbouring rows of one sequence are a run; most tiles are one run.
  for (uint run = 0; run < tile_rows;) {
    const uint sequence = row_sequence[run];
    uint run_end = run;
    uint first = 0xffffffffu;
    uint last = 0;
    for (; run_end < tile_rows && row_sequence[run_end] == sequence; run_end++) {
      first = min(first, row_first[run_end]);
      last = max(last, row_last[run_end]);
    }
    const bool in_run = my_row >= run && my_row < run_end;
    for (uint page = first / kTokensPerPage; page <= last / kTokensPerPage; page++) {
      const uint base = page * kTokensPerPage;
      const uint id = input_page(input, p.groups, p.group, sequence, base);
      if (id == kNoPage) {
        continue;  // between the windows of rows far apart
      }
      const uint from = max(first, base) - base;
      const uint end = min(last + 1 - base, kTokensPerPage);

      // This slice's part of the scores, 16 rows × 32 keys.
      device const P* keys = pages + page_offset<P, D>(p, id, p.plane, kv_head);
      float key_scales[kTokensPerPage / row_lanes];  // of the keys whose weights this lane will make
      #pragma clang loop unroll(full)
      for (uint c = 0; c < kTokensPerPage / row_lanes; c++) {
        const uint slot = tid % row_lanes + c * row_lanes;
        key_scales[c] = 1.0f;
        if (IS_CODES(P) && slot >= from && slot < end) {
          key_scales[c] = slot_scale<P, D>(keys, slot);
        }
      }
      simdgroup_matrix<float, 8, 8> scores[4][2];
      #pragma clang loop unroll(full)
      for (uint slot = 0; slot < kTokensPerPage; slot += 8) {
        if (slot % STAGE_KEYS(T, D) == 0) {
          simdgroup_barrier(mem_flags::mem_threadgroup);
          stage<T, P, D, false>(keys, column, slot, from, end, lane, staged);
          simdgroup_barrier(mem_flags::mem_threadgroup);
        }
        scores[slot / 8][0] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        scores[slot / 8][1] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        #pragma clang loop unroll(full)
        for (uint k = 0; k < SLICE(D) / 8; k++) {
          simdgroup_matrix<T, 8, 8> key;
          simdgroup_load(
              key, staged + slot % STAGE_KEYS(T, D) * STAGE_STRIDE(T, D) + 8 * k, STAGE_STRIDE(T, D), ulong2(0, 0), true);
          tile_mma(scores[slot / 8], q[k], key);
        }
      }
      simdgroup_barrier(mem_flags::mem_threadgroup);
      #pragma clang loop unroll(full)
      for (uint n = 0; n < 4; n++) {
        simdgroup_store(scores[n][0], region + 8 * n, kScoreStride);
        simdgroup_store(scores[n][1], region + 8 * kScoreStride + 8 * n, kScoreStride);
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);

      // Weights of this lane's keys: every row_lanes-th of its row.
      float score[kTokensPerPage / row_lanes];
      float best = kNoScore;
      #pragma clang loop unroll(full)
      for (uint c = 0; c < kTokensPerPage / row_lanes; c++) {
        const uint slot = tid % row_lanes + c * row_lanes;
        float product = 0.0f;
        for (uint s = 0; s < SIMDGROUPS(D); s++) {
          product += ((threadgroup const float*)regions)[s * kRegion + my_row * kScoreStride + slot];
        }
        const uint position = base + slot;
        const bool visible = in_run && position >= my_first && position <= my_last;
        score[c] = visible ? product * my_scale * key_scales[c] : kNoScore;
        best = max(best, score[c]);
      }
      #pragma clang loop unroll(full)
      for (uint step = row_lanes / 2; step > 0; step /= 2) {
        best = max(best, simd_shuffle_xor(best, ushort(step)));
      }
      float fade = 1.0f;
      if (sum == 0.0f) {
        largest = best;
      } else if ((best - largest) * p.score_scale > kSlack) {
        fade = weight_of(largest, best, p.score_scale);
        largest = best;
      }
      float added = 0.0f;
      #pragma clang loop unroll(full)
      for (uint c = 0; c < kTokensPerPage / row_lanes; c++) {
        const float weight = score[c] == kNoScore ? 0.0f : weight_of(score[c], largest, p.score_scale);
        weights[my_row * kScoreStride + tid % row_lanes + c * row_lanes] = T(weight);
        added += weight;
      }
      #pragma clang loop unroll(full)
      for (uint step = row_lanes / 2; step > 0; step /= 2) {
        added += simd_shuffle_xor(added, ushort(step));
      }
      sum = fma(sum, fade, added);
      if (tid % row_lanes == 0) {
        row_fade[my_row] = fade;
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);

      // The result so far, relative to the new largest scores: through memory, since matrices have no elements.
      if (simd_any(row_fade[lane % kTileRows] != 1.0f)) {
        #pragma clang loop unroll(full)
        for (uint upper = 0; upper < 2; upper++) {
          #pragma clang loop unroll(full)
          for (uint n = 0; n < SLICE(D) / 8; n++) {
            simdgroup_store(o[n][upper], region + 8 * n, SLICE(D));
          }
          simdgroup_barrier(mem_flags::mem_threadgroup);
          for (uint i = lane; i < 8 * SLICE(D); i += 32) {
            region[i] *= row_fade[8 * upper + i / SLICE(D)];
          }
          simdgroup_barrier(mem_flags::mem_threadgroup);
          #pragma clang loop unroll(full)
          for (uint n = 0; n < SLICE(D) / 8; n++) {
            simdgroup_load(o[n][upper], region + 8 * n, SLICE(D));
          }
          simdgroup_barrier(mem_flags::mem_threadgroup);
        }
      }

      device const P* values = pages + page_offset<P, D>(p, id, p.plane + 1, kv_head);
      #pragma clang loop unroll(full)
      for (uint slot = 0; slot < kTokensPerPage; slot += 8) {
        if (slot % STAGE_KEYS(T, D) == 0) {
          simdgroup_barrier(mem_flags::mem_threadgroup);
          stage<T, P, D, true>(values, column, slot, from, end, lane, staged);
          simdgroup_barrier(mem_flags::mem_threadgroup);
        }
        simdgroup_matrix<T, 8, 8> weight[2];
        simdgroup_load(weight[0], weights + slot, kScoreStride);
        simdgroup_load(weight[1], weights + 8 * kScoreStride + slot, kScoreStride);
        #pragma clang loop unroll(full)
        for (uint n = 0; n < SLICE(D) / 8; n++) {
          simdgroup_matrix<T, 8, 8> value;
          simdgroup_load(
              value, staged + slot % STAGE_KEYS(T, D) * STAGE_STRIDE(T, D) + 8 * n, STAGE_STRIDE(T, D));
          tile_mma(o[n], weight, value);
        }
      }
    }
    run = run_end;
  }

  if (tid % row_lanes == 0) {
    row_sum[my_row] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  #pragma clang loop unroll(full)
  for (uint upper = 0; upper < 2; upper++) {
    #pragma clang loop unroll(full)
    for (uint n = 0; n < SLICE(D) / 8; n++) {
      simdgroup_store(o[n][upper], region + 8 * n, SLICE(D));
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = lane; i < 8 * SLICE(D); i += 32) {
      const uint row = 8 * upper + i / SLICE(D);
      if (row < tile_rows) {
        y[((tile + row) * p.heads + head) * D + column + i % SLICE(D)] = region[i] / row_sum[row];
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// The kernel of one head size and precision (fast: T is half, exact: float), for pages of format F and type P.
#define ATTENTION_PREFILL(PRECISION, T, F, P, D) \
  template [[host_name(TEXT(attention_prefill_##F##_d##D##_##PRECISION))]] [[kernel]] \
  decltype(attention_prefill<T, P, D>) attention_prefill<T, P, D>;

#endif
