// experts.h: products with the weights of the experts that rows have chosen. Experts are told by ids in device memory, so
// nothing waits for the host.
//
// Decode: experts_decode.h; where rows do not fit there, expert_matvec makes the products of one pair in each threadgroup,
// expert_down the sum over the pairs of a row.
// Prefill: expert_matmul goes through the pairs in the order of their experts (expert_order), 32 of one expert at a time, so
// that weights are read once for 32 pairs.
#ifndef MARKBASE_EXPERTS_H
#define MARKBASE_EXPERTS_H
#include "experts_decode.h"
#include "matmul.h"

constant constexpr uint kExpertHalfRows = 2;    // matrix rows of half a simdgroup
constant constexpr uint kExpertSimdgroups = 8;  // of a threadgroup for decode rows
constant constexpr uint kExpertTileRows = 32;     // pairs of a tile of expert_matmul
constant constexpr uint kExpertTileColumns = 64;  // matrix rows of it; geglu: 32 of gate, then the same 32 of up

// y of pair q = epilogue(w0 · u, w1 · u) with the matrices of its expert. u [pairs / shared_by, row_floats] from
// linear_prologue_chunked, ids [pairs], other and y [pairs, n]. A simdgroup makes 2 · kExpertHalfRows products, those of gate
// in its lower half and of up in the upper one; `slices` simdgroups share them, block by block. Grid: pairs, then row groups.
template <uint32_t W, uint32_t S>
[[kernel, max_total_threads_per_threadgroup(256)]] void expert_matvec(
    device const float4* u         [[buffer(0)]],
    device const uint* ids         [[buffer(1)]],
    EXPERT_MATRIX(0, 2, 3, 4),
    EXPERT_MATRIX(1, 5, 6, 7),
    device const float* other      [[buffer(8)]],
    device float* y                [[buffer(9)]],
    constant ExpertMatvecParams& p [[buffer(10)]],
    uint2 tg       [[threadgroup_position_in_grid]],
    uint tid       [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane      [[thread_index_in_simdgroup]])
{
  threadgroup float partial[2 * kExpertHalfRows * kExpertSimdgroups];
  const uint pair = tg.x;
  const uint expert = ids[pair];
  const bool geglu = p.epilogue.kind == kEpilogueGeglu;
  const uint outputs = geglu ? kExpertHalfRows : 2 * kExpertHalfRows;  // of a row group
  const uint groups = kExpertSimdgroups / p.slices;
  if (expert >= p.expert.experts) {
    const uint first = tg.y * groups * outputs;
    for (uint i = first + tid; i < min(first + groups * outputs, p.n); i += 256) {
      y[ulong(pair) * p.n + i] = 0.0f;
    }
    return;
  }
  const uint side = lane / 16;
  const bool second = geglu && side == 1;
  const uint base = (tg.y * groups + simdgroup / p.slices) * outputs + (geglu ? 0 : side * kExpertHalfRows);
  const uint within = second ? p.expert.first1 : p.expert.first0;
  const MatvecRows rows = product_rows<W, S>(
      second ? w1 : w0, second ? scales1 : scales0, second ? biases1 : biases0, p.row,
      ulong(expert) * p.expert.height + within, base, p.n);
  float acc[kExpertHalfRows];
  multiply_rows<W, S, kExpertHalfRows>(
      rows, p.row, simdgroup % p.slices, p.slices, lane, u + ulong(pair / p.expert.shared_by) * (p.row.row_floats / 4), acc);
  float v = half_sum<W, kExpertHalfRows>(acc, lane);
  const uint slot = lane % 16;
  if (p.slices > 1) {
    if (slot < kExpertHalfRows) {
      partial[(simdgroup * 2 + side) * kExpertHalfRows + slot] = v;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint s = 1; s < p.slices && simdgroup % p.slices == 0 && slot < kExpertHalfRows; s++) {
      v += partial[((simdgroup + s) * 2 + side) * kExpertHalfRows + slot];
    }
  }
  const float up = simd_shuffle_xor(v, ushort(16));
  const uint n = base + slot;
  if (simdgroup % p.slices == 0 && slot < kExpertHalfRows && n < p.n && !second) {
    store_output(v, up, p.epilogue, other, y, pair, n, n);
  }
}

// y = Σ over slots s of shares[:, s] · (w0 of the slot's expert · u of the pair), in the order of slots. u [rows · slots,
// row_floats], ids and shares [rows, slots], y [rows, n]. A simdgroup makes the products of one slot with the four matrix rows
// of its threadgroup. Grid: rows, then row groups.
template <uint32_t W, uint32_t S>
[[kernel, max_total_threads_per_threadgroup(256)]] void expert_down(
    device const float4* u         [[buffer(0)]],
    device const uint* ids         [[buffer(1)]],
    EXPERT_MATRIX(0, 2, 3, 4),
    device const float* shares     [[buffer(5)]],
    device float* y                [[buffer(6)]],
    constant ExpertMatvecParams& p [[buffer(7)]],
    uint2 tg       [[threadgroup_position_in_grid]],
    uint tid       [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane      [[thread_index_in_simdgroup]])
{
  constexpr uint outputs = 2 * kExpertHalfRows;
  threadgroup float partial[outputs * kExpertSimdgroups];
  const uint slots = p.expert.slots;
  const uint place = lane / 16 * kExpertHalfRows + lane % 16;  // of the output that this lane gets a sum of
  float total = 0.0f;
  for (uint first = 0; first < slots; first += kExpertSimdgroups) {
    const uint pair = tg.x * slots + min(first + simdgroup, slots - 1);
    const uint expert = ids[pair];
    float acc[kExpertHalfRows];
    #pragma clang loop unroll(full)
    for (uint i = 0; i < kExpertHalfRows; i++) {
      acc[i] = 0.0f;
    }
    if (first + simdgroup < slots && expert < p.expert.experts) {
      const MatvecRows rows = product_rows<W, S>(
          w0, scales0, biases0, p.row, ulong(expert) * p.expert.height, tg.y * outputs + lane / 16 * kExpertHalfRows, p.n);
      multiply_rows<W, S, kExpertHalfRows>(
          rows, p.row, 0, 1, lane, u + ulong(pair) * (p.row.row_floats / 4), acc);
    }
    const float v = half_sum<W, kExpertHalfRows>(acc, lane);
    if (lane % 16 < kExpertHalfRows) {
      partial[simdgroup * outputs + place] = v;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint s = first; s < min(first + kExpertSimdgroups, slots) && tid < outputs; s++) {
      total = fma(shares[tg.x * slots + s], partial[(s - first) * outputs + tid], total);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  const uint n = tg.y * outputs + tid;
  if (tid < outputs && n < p.n) {
    y[ulong(tg.x) * p.n + n] = total;
  }
}

// Which expert's pairs tile `tile` holds, and the tile's number among that expert's; `experts` + 1 where there is no such tile.
struct ExpertTile {
  uint expert;
  uint first;  // place of its first pair in the order
  uint last;   // end of its pairs there
};
static inline ExpertTile expert_tile(device const uint* starts, uint experts, uint pairs, uint tile, uint lane) {
  ExpertTile found;
  found.expert = experts + 1;
  found.first = 0;
  found.last = 0;
  uint before = 0;  // tiles of the experts before
  for (uint e = 0; e <= experts && found.expert > experts; e += 32) {
    const uint mine = e + lane;
    const uint start = mine <= experts ? starts[mine] : pairs;
    const uint end = mine < experts ? starts[mine + 1] : pairs;
    const uint tiles = (end - start + kExpertTileRows - 1) / kExpertTileRows;
    const uint own = before + simd_prefix_exclusive_sum(tiles);
    const bool here = tile >= own && tile < own + tiles;  // of one lane at most
    const uint expert = simd_min(here ? mine : experts + 1);
    const uint first = simd_max(here ? start + (tile - own) * kExpertTileRows : 0u);
    const uint last = simd_max(here ? end : 0u);
    if (expert <= experts) {
      found.expert = expert;
      found.first = first;
      found.last = min(first + kExpertTileRows, last);
    }
    before += simd_sum(tiles);
  }
  return found;
}

// The same products for prefill rows. u [pairs / shared_by, columns] of T, each row divided by its row_scale; order [pairs] and
// starts [experts + 1] from expert_order; other and y [pairs, y_stride]. Grid: tiles of pairs, then of matrix rows.
template <uint32_t W, uint32_t S, typename T>
[[kernel, max_total_threads_per_threadgroup(128)]] void expert_matmul(
    device const T* u              [[buffer(0)]],
    device const float* row_scale  [[buffer(1)]],
    device const uint* order       [[buffer(2)]],
    device const uint* starts      [[buffer(3)]],
    EXPERT_MATRIX(0, 4, 5, 6),
    EXPERT_MATRIX(1, 7, 8, 9),
    device const float* other      [[buffer(10)]],
    device float* y                [[buffer(11)]],
    constant ExpertMatmulParams& p [[buffer(12)]],
    uint2 tg        [[threadgroup_position_in_grid]],
    uint tid        [[thread_index_in_threadgroup]],
    uint simdgroup  [[simdgroup_index_in_threadgroup]],
    uint lane       [[thread_index_in_simdgroup]])
{
  constexpr uint M = kExpertTileRows;
  constexpr uint N = kExpertTileColumns;
  threadgroup float4 memory[(tile_floats<T, M, N>() + 3) / 4];
  threadgroup uint pair_of[M];
  threadgroup float* out = (threadgroup float*)memory;

  const ExpertTile tile = expert_tile(starts, p.expert.experts, p.matmul.rows, tg.x, lane);
  if (tile.expert > p.expert.experts) {
    return;
  }
  const bool geglu = p.matmul.epilogue.kind == kEpilogueGeglu;
  const uint outputs = geglu ? N / 2 : N;
  const uint first_n = tg.y * outputs;
  const uint output = tid % outputs;
  const uint out_n = first_n + output;
  const uint live = tile.last - tile.first;
  if (tile.expert == p.expert.experts) {
    for (uint row = tid / outputs; row < live && out_n < p.matmul.n0; row += kMatmulThreads / outputs) {
      y[ulong(order[tile.first + row]) * p.matmul.epilogue.y_stride + out_n] = 0.0f;
    }
    return;
  }
  if (tid < M) {
    pair_of[tid] = order[min(tile.first + tid, tile.last - 1)];
  }

  const uint w_row = tid / (kMatmulThreads / N);
  const bool second = geglu && w_row >= outputs;
  const uint n = min(first_n + w_row % outputs, p.matmul.n0 - 1);
  const uint first_row = second ? p.expert.first1 : p.expert.first0;
  const ulong at = ulong(tile.expert) * p.expert.height + first_row + n;
  TileWeights weights;
  weights.w = (second ? w1 : w0) + at * p.matmul.row_bytes;
  const ulong first_scale = at * p.matmul.scale_columns;
  weights.scales = (second ? scales1 : scales0) + first_scale * scale_bytes(S);
  weights.biases = (second ? biases1 : biases0) + bias_offset<W, S>(first_scale);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  TileRows<T, M> rows;
  #pragma clang loop unroll(full)
  for (uint i = 0; i < eights_each<T, M>(); i++) {
    const uint eight = tid + i * kMatmulThreads;
    const uint pair = pair_of[eight / (tile_columns<T>() / 8)];
    rows.at[i] = u + ulong(pair / p.expert.shared_by) * p.matmul.columns + eight % (tile_columns<T>() / 8) * 8;
  }
  simdgroup_matrix<float, 8, 8> products[tile_matrices<M, N>()];
  multiply_tile<W, S, T, M, N>(weights, rows, p.matmul.tile, memory, tid, simdgroup, products);
  store_products<M, N>(products, 0, memory, simdgroup);

  if (out_n >= p.matmul.n0) {
    return;
  }
  for (uint row = tid / outputs; row < live; row += kMatmulThreads / outputs) {
    const uint pair = pair_of[row];
    const float factor = row_scale[pair / p.expert.shared_by];
    const float v = out[row * out_stride(N) + output] * factor;
    const float up = geglu ? out[row * out_stride(N) + output + N / 2] * factor : 0.0f;
    store_output(v, up, p.matmul.epilogue, other, y, pair, out_n, out_n);
  }
}

#define INSTANTIATE_EXPERTS(name, W, S) \
  INSTANTIATE(expert_matvec_##name, expert_matvec<W, S>) \
  INSTANTIATE(expert_down_##name, expert_down<W, S>) \
  INSTANTIATE(expert_gated_##name, expert_gated<W, S>) \
  INSTANTIATE(expert_summed_##name, expert_summed<W, S>) \
  INSTANTIATE(expert_matmul_##name##_f16, expert_matmul<W, S, half>) \
  INSTANTIATE(expert_matmul_##name##_f32, expert_matmul<W, S, float>)

#endif
