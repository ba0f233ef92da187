// experts_decode.h: products of decode rows with the experts that they have chosen, by threadgroups that make their input
// themselves and go on from row group to row group, as matvec.h does with one matrix.
//
// expert_gated: y = gelu(gate · u) · up · u of each slot, u = rms_norm(x). expert_summed: the sum of the slots' products by
// their shares. A row's bits depend neither on the number of rows nor on how row groups are dealt out.
#ifndef MARKBASE_EXPERTS_DECODE_H
#define MARKBASE_EXPERTS_DECODE_H
#include "experts_params.h"
#include "row_products.h"

#define EXPERT_MATRIX(m, w_slot, scales_slot, biases_slot) \
    device const uchar* w##m [[buffer(w_slot)]], device const uchar* scales##m [[buffer(scales_slot)]], \
    device const uchar* biases##m [[buffer(biases_slot)]]

constant constexpr uint kExpertDepth = 2;  // blocks whose chunks are on their way

// A simdgroup's row group: NR rows from `base` on of each matrix of the expert in slot `slot`.
struct GatedGroup {
  uint slot;
  uint expert;  // an id; from `experts` on its products are zero
  uint base;
};

// `ids`: lane s has the id of slot s.
template <uint NR>
static inline GatedGroup gated_group(uint group, uint ids, constant ExpertGatedParams& p) {
  GatedGroup found;
  const uint g = min(group, p.groups - 1);
  found.slot = g / p.slot_groups;
  found.expert = simd_shuffle(ids, ushort(found.slot));
  found.base = (g - found.slot * p.slot_groups) * NR;
  return found;
}

// Rows of gate for the lower half of a simdgroup, of up for the upper one.
template <uint32_t W, uint32_t S>
static inline MatvecRows gated_rows(
    thread const GatedGroup& group, bool second, constant ExpertGatedParams& p,
    device const uchar* w0, device const uchar* scales0, device const uchar* biases0,
    device const uchar* w1, device const uchar* scales1, device const uchar* biases1)
{
  const uint expert = group.expert < p.expert.experts ? group.expert : 0;
  return product_rows<W, S>(
      second ? w1 : w0, second ? scales1 : scales0, second ? biases1 : biases0, p.row,
      ulong(expert) * p.expert.height + (second ? p.expert.first1 : p.expert.first0), group.base, p.n);
}

// x [rows, k], pre_norm [k], ids [rows, slots], y [rows, slots · n]. k is a multiple of 4, at most kHeldColumns, and the norm
// has 16 bits; slots are at most 32. `staged` has room for u in chunked order and the sums of its chunks. Grid: rows, then
// threadgroups.
template <uint32_t W, uint32_t S>
[[kernel, max_total_threads_per_threadgroup(256)]] void expert_gated(
    device const float* x          [[buffer(0)]],
    device const uchar* pre_norm   [[buffer(1)]],
    device const uint* ids         [[buffer(2)]],
    EXPERT_MATRIX(0, 3, 4, 5),
    EXPERT_MATRIX(1, 6, 7, 8),
    device float* y                [[buffer(9)]],
    constant ExpertGatedParams& p  [[buffer(10)]],
    threadgroup float4* staged     [[threadgroup(0)]],
    uint2 tg       [[threadgroup_position_in_grid]],
    uint tid       [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane      [[thread_index_in_simdgroup]])
{
  threadgroup float partial[kStreamSimdgroups];
  constexpr uint NR = kExpertRows;
  constexpr uint D = kExpertDepth;
  constexpr uint T = kStreamThreads;
  constexpr uint columns = chunk_columns(W);
  constexpr uint shift = columns == 4 ? 2 : columns == 8 ? 3 : columns == 16 ? 4 : 5;
  constexpr uint block_quads = 4 * columns;
  constexpr uint staged_quads = columns / 4 * kStagedStride;  // of a block
  const uint slot = lane % 16;
  const bool second = lane >= 16;
  const uint quads = p.row.k / 4;
  threadgroup float* sums = (threadgroup float*)(staged + p.row.blocks * staged_quads);
  const uint none[1] = {0};

  uint2 norm[kHeldQuads];
  #pragma clang loop unroll(full)
  for (uint j = 0; j < kHeldQuads; j++) {
    norm[j] = p.has_norm != 0 ? ((device const uint2*)pre_norm)[min(tid + j * T, quads - 1)] : uint2(0u, 0u);
  }
  wait_for_earlier_dispatches();
  let_next_dispatch_start();
  const uint chosen = ids[tg.x * p.expert.slots + min(lane, p.expert.slots - 1)];
  float4 u[kHeldQuads];
  #pragma clang loop unroll(full)
  for (uint j = 0; j < kHeldQuads; j++) {
    u[j] = ((device const float4*)(x + ulong(tg.x) * p.row.k))[min(tid + j * T, quads - 1)];
  }
  uint group = simdgroup * p.threadgroups + tg.y;
  GatedGroup next = gated_group<NR>(group, chosen, p);
  MatvecRows rows = gated_rows<W, S>(next, second, p, w0, scales0, biases0, w1, scales1, biases1);
  MatvecChunks<NR, chunk_words(W)> chunks[D];
  #pragma clang loop unroll(full)
  for (uint d = 0; d < D; d++) {
    load_chunks<W, S, NR>(rows, p.row, d * 16 + slot, chunks[d]);
  }

  if (p.has_norm != 0) {
    float sum = 0.0f;
    #pragma clang loop unroll(full)
    for (uint j = 0; j < kHeldQuads; j++) {
      sum = tid + j * T < quads ? sum_of_squares(u[j], sum) : sum;
    }
    sum = threadgroup_sum(sum, partial, kStreamSimdgroups, simdgroup, lane);
    const float by = precise::rsqrt(sum / float(p.row.k) + p.eps);
    #pragma clang loop unroll(full)
    for (uint j = 0; j < kHeldQuads; j++) {
      u[j] = u[j] * by * stored4(norm[j], p.norm_format);
    }
  }
  // Blocks divide T, so a thread's quads lie T apart in chunked order too.
  const uint first_staged = chunked_quad(tid, shift, kStagedStride);
  const uint sum_slot = tid / (columns / 4);
  const float4 factor = code_factors(factor_bits(W), tid % (columns / 4));
  #pragma clang loop unroll(full)
  for (uint j = 0; j < kHeldQuads; j++) {
    if (tid + j * T < p.row.blocks * block_quads) {
      const float4 v = tid + j * T < quads ? u[j] : float4(0.0f);
      stage_quad<W>(
          v, factor, staged + first_staged + j * (T / 16 * kStagedStride), sums + sum_slot + j * (T * 4 / columns), tid);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  for (uint it = 0; it < p.iterations; it++) {
    const bool active = group < p.groups;
    const GatedGroup present = next;
    float acc[NR];
    #pragma clang loop unroll(full)
    for (uint i = 0; i < NR; i++) {
      acc[i] = 0.0f;
    }
    group += p.group_stride;
    for (uint first = 0; first < p.row.blocks; first += D) {
      // Behind a row group's last chunks come the first of the next one.
      const bool last = first + D >= p.row.blocks;
      const bool more = !last || (it + 1 < p.iterations && group < p.groups);
      if (last) {
        next = gated_group<NR>(group, chosen, p);
        rows = gated_rows<W, S>(next, second, p, w0, scales0, biases0, w1, scales1, biases1);
      }
      #pragma clang loop unroll(full)
      for (uint d = 0; d < D; d++) {
        const uint block = first + d;
        if (active && block < p.row.blocks) {
          accumulate<W, S, 1, NR, kStagedStride>(
              chunks[d], p.row.code_exponent, staged + block * staged_quads + slot, sums + block * 16 + slot, none, acc);
        }
        if (more) {
          load_chunks<W, S, NR>(rows, p.row, ((last ? 0 : first + D) + d) * 16 + slot, chunks[d]);
        }
      }
    }
    const float v = half_sum<W, NR>(acc, lane);
    const float up = simd_shuffle_xor(v, ushort(16));
    const uint n = present.base + slot;
    if (active && !second && slot < NR && n < p.n) {
      y[(ulong(tg.x) * p.expert.slots + present.slot) * p.n + n] =
          present.expert < p.expert.experts ? gelu_tanh(v) * up : 0.0f;
    }
  }
}

// Where a chunk of the row [slots · k] lies: chunks of one slot follow those of the slot before.
struct SummedChunk {
  uint slot;
  uint chunk;  // within the slot
};
static inline SummedChunk summed_chunk(uint chunk, constant ExpertSummedParams& p) {
  SummedChunk found;
  // Exact: there are less than 2^20 chunks.
  found.slot = uint((float(chunk) + 0.5f) * p.chunks_share);
  found.chunk = chunk - found.slot * p.row.chunks;
  return found;
}

// Chunk `chunk` of all slots, of NR matrix rows from `base` on.
template <uint32_t W, uint32_t S, uint NR>
static inline void load_summed(
    device const uchar* w, device const uchar* scales, device const uchar* biases, constant ExpertSummedParams& p,
    uint ids, uint base, uint chunk, thread MatvecChunks<NR, chunk_words(W)>& to)
{
  const SummedChunk at = summed_chunk(min(chunk, p.chunks - 1), p);
  const uint expert = simd_shuffle(ids, ushort(at.slot));
  const MatvecRows rows = product_rows<W, S>(w, scales, biases, p.row, ulong(expert) * p.expert.height, base, p.n);
  load_chunks<W, S, NR>(rows, p.row, at.chunk, to);
}

// y = Σ over slots s of shares[:, s] · (w of the slot's expert · x[:, s · k : (s + 1) · k]): the product of one long row, whose
// parts have matrices of their own. x [rows, slots · k], ids and shares [rows, slots], y [rows, n]; slots are at most 32.
// `staged` has room for x by its shares in chunked order and the sums of its chunks. Grid: rows, then threadgroups.
template <uint32_t W, uint32_t S>
[[kernel, max_total_threads_per_threadgroup(256)]] void expert_summed(
    device const float* x           [[buffer(0)]],
    device const uint* ids          [[buffer(1)]],
    EXPERT_MATRIX(0, 2, 3, 4),
    device const float* shares      [[buffer(5)]],
    device float* y                 [[buffer(6)]],
    constant ExpertSummedParams& p  [[buffer(7)]],
    threadgroup float4* staged      [[threadgroup(0)]],
    uint2 tg       [[threadgroup_position_in_grid]],
    uint tid       [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane      [[thread_index_in_simdgroup]])
{
  threadgroup float partial[2 * kExpertRows * kStreamSimdgroups];
  constexpr uint NR = kExpertRows;
  constexpr uint D = kExpertDepth;
  constexpr uint T = kStreamThreads;
  constexpr uint columns = chunk_columns(W);
  constexpr uint shift = columns == 4 ? 2 : columns == 8 ? 3 : columns == 16 ? 4 : 5;
  constexpr uint chunk_quads = columns / 4;
  constexpr uint block_quads = 4 * columns;
  constexpr uint staged_quads = chunk_quads * kStagedStride;  // of a block
  const uint side = lane / 16;
  const uint slot = lane % 16;
  const uint slice = simdgroup & (p.slices - 1);
  threadgroup float* sums = (threadgroup float*)(staged + p.blocks * staged_quads);
  const uint none[1] = {0};

  // The ids may be older than what the kernel before writes (lower_experts.cpp): then weights are asked for while it ends.
  if (p.ids_ready == 0) {
    wait_for_earlier_dispatches();
  }
  const uint row_slot = tg.x * p.expert.slots + min(lane, p.expert.slots - 1);
  // Past the core's cache, which may hold older ids where nothing has waited yet.
  const uint id = atomic_load_explicit((device const atomic_uint*)ids + row_slot, memory_order_relaxed);
  const bool present = id < p.expert.experts;
  const uint chosen = present ? id : 0;
  uint group = (simdgroup >> p.slice_shift) * p.threadgroups + tg.y;
  uint base = (min(group, p.groups - 1) * 2 + side) * NR;
  MatvecChunks<NR, chunk_words(W)> chunks[D];
  #pragma clang loop unroll(full)
  for (uint d = 0; d < D; d++) {
    load_summed<W, S, NR>(w0, scales0, biases0, p, chosen, base, (d * p.slices + slice) * 16 + slot, chunks[d]);
  }
  if (p.ids_ready != 0) {
    wait_for_earlier_dispatches();
  }
  const float share = present ? shares[row_slot] : 0.0f;
  const float4 factor = code_factors(factor_bits(W), tid % chunk_quads);
  const uint first_staged = chunked_quad(tid, shift, kStagedStride);
  for (uint turn = 0; turn * T < p.blocks * block_quads; turn += kStagedQuads) {
    float4 u[kStagedQuads];
    #pragma clang loop unroll(full)
    for (uint j = 0; j < kStagedQuads; j++) {
      const uint i = tid + (turn + j) * T;
      const SummedChunk at = summed_chunk(min(i / chunk_quads, p.chunks - 1), p);
      u[j] = load_row4(
          x + (ulong(tg.x) * p.expert.slots + at.slot) * p.row.k, at.chunk * chunk_quads + i % chunk_quads, p.row.k);
    }
    #pragma clang loop unroll(full)
    for (uint j = 0; j < kStagedQuads; j++) {
      const uint i = tid + (turn + j) * T;
      const uint chunk = i / chunk_quads;
      const float by = simd_shuffle(share, ushort(summed_chunk(min(chunk, p.chunks - 1), p).slot));
      if (i < p.blocks * block_quads) {
        stage_quad<W>(
            chunk < p.chunks && by != 0.0f ? u[j] * by : float4(0.0f), factor,
            staged + first_staged + (turn + j) * (T / 16 * kStagedStride), sums + chunk, tid);
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  for (uint it = 0; it < p.iterations; it++) {
    const bool active = group < p.groups;
    const uint n = base + slot;
    float acc[NR];
    #pragma clang loop unroll(full)
    for (uint i = 0; i < NR; i++) {
      acc[i] = 0.0f;
    }
    group += p.group_stride;
    for (uint first = 0; first < p.blocks; first += D * p.slices) {
      const bool last = first + D * p.slices >= p.blocks;
      const bool more = !last || (it + 1 < p.iterations && group < p.groups);
      if (last) {
        base = (min(group, p.groups - 1) * 2 + side) * NR;
      }
      #pragma clang loop unroll(full)
      for (uint d = 0; d < D; d++) {
        const uint block = first + d * p.slices + slice;
        if (active && block < p.blocks) {
          accumulate<W, S, 1, NR, kStagedStride>(
              chunks[d], p.row.code_exponent, staged + block * staged_quads + slot, sums + block * 16 + slot, none, acc);
        }
        if (more) {
          const uint after = (last ? 0 : first + D * p.slices) + d * p.slices + slice;
          load_summed<W, S, NR>(w0, scales0, biases0, p, chosen, base, after * 16 + slot, chunks[d]);
        }
      }
    }
    float v = half_sum<W, NR>(acc, lane);
    if (p.slices > 1) {
      if (slot < NR) {
        partial[(simdgroup * 2 + side) * NR + slot] = v;
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (slice == 0 && slot < NR) {
        for (uint s = 1; s < p.slices; s++) {
          v += partial[((simdgroup + s) * 2 + side) * NR + slot];
        }
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (active && slice == 0 && slot < NR && n < p.n) {
      y[ulong(tg.x) * p.n + n] = v;
    }
  }
}

#endif
