// matvec.h: the matrix products of decode rows. Weights are read once for up to 8 rows, and nothing in a row's arithmetic
// depends on how many there are: a lane takes the same chunks in the same order, each product's sum goes through one
// accumulator, and lanes, then slices, are added in one order.
//
// A row group is 2·NR matrix rows, NR for each half of a simdgroup (geglu: NR of gate and the same NR of up). `slices`
// simdgroups share a row group, block by block in turn. `u` lies in chunked order (stream.h), with the sums of its chunks,
// which the affine biases multiply.
#ifndef MARKBASE_MATVEC_H
#define MARKBASE_MATVEC_H
#include "epilogue.h"
#include "stream.h"
#include "weights.h"

// The rows of one lane: NR of one matrix, from `base` on, clamped to the last.
struct MatvecRows {
  device const uchar* w;
  device const uchar* scales;
  device const uchar* biases;
  uint matrix;
  uint base;
  uint n;
};

// Chunk `chunk` of each row; beyond the end the last one, which is then multiplied by the zeros that pad u.
template <uint32_t W, uint32_t S, uint NR>
static inline void load_chunks(
    thread const MatvecRows& rows, constant MatvecParams& p, uint chunk,
    thread uint* words, thread float* scale, thread float* bias)
{
  constexpr uint n = chunk_words(W);
  const uint at = min(chunk, p.chunks - 1);
  #pragma clang loop unroll(full)
  for (uint i = 0; i < NR; i++) {
    const uint row = min(rows.base + i, rows.n - 1);
    device const uchar* data = rows.w + ulong(row) * p.row_bytes;
    scale[i] = 0.0f;
    bias[i] = 0.0f;
    if (is_affine(W)) {
      load_words<W>(data, at, words + i * n);
      const uint group = row * p.scale_columns + (at * chunk_columns(W) >> p.group_shift);
      scale[i] = load_as<S>(rows.scales, group);
      bias[i] = load_as<S>(rows.biases, group);
    } else if (p.whole != 0) {
      load_words<W>(data, at, words + i * n);
    } else {
      load_words_ragged<W>(data, at, p.stream.k, words + i * n);
    }
  }
}

// acc[r][i] += this lane's chunk of matrix row i times that of activation row r. `u` points at the lane's first quad in
// activation row 0 and `sums` at its chunk sum there; row r lies row_quads[r] quads further.
template <uint32_t W, uint R, uint NR, typename U, typename Sums>
static inline void accumulate(
    const thread uint* words, const thread float* scale, const thread float* bias, uint exponent,
    U u, Sums sums, const thread uint* row_quads, thread float* acc)
{
  constexpr uint n = chunk_words(W);
  constexpr uint quads = chunk_columns(W) / 4;
  float part[R * NR];
  #pragma clang loop unroll(full)
  for (uint i = 0; i < R * NR; i++) {
    part[i] = is_affine(W) ? 0.0f : acc[i];
  }
  #pragma clang loop unroll(full)
  for (uint q = 0; q < quads; q++) {
    float w[4 * NR];
    #pragma clang loop unroll(full)
    for (uint i = 0; i < NR; i++) {
      #pragma clang loop unroll(full)
      for (uint j = 0; j < 4; j++) {
        w[4 * i + j] = element_at<W>(words + i * n, exponent, 4 * q + j);
      }
    }
    #pragma clang loop unroll(full)
    for (uint r = 0; r < R; r++) {
      const float4 x = u[row_quads[r] + q * 16];
      #pragma clang loop unroll(full)
      for (uint i = 0; i < NR; i++) {
        const float s = part[r * NR + i];
        part[r * NR + i] = fma(w[4 * i + 3], x.w, fma(w[4 * i + 2], x.z, fma(w[4 * i + 1], x.y, fma(w[4 * i], x.x, s))));
      }
    }
  }
  #pragma clang loop unroll(full)
  for (uint r = 0; r < R; r++) {
    const float sum = is_affine(W) ? sums[4 * row_quads[r]] : 0.0f;
    #pragma clang loop unroll(full)
    for (uint i = 0; i < NR; i++) {
      acc[r * NR + i] = is_affine(W) ? fma(bias[i], sum, fma(scale[i], part[r * NR + i], acc[r * NR + i])) : part[r * NR + i];
    }
  }
}

// This lane's rows of row group `group`.
template <uint NR>
static inline MatvecRows matvec_rows(
    uint group, uint side, constant MatvecParams& p,
    device const uchar* w0, device const uchar* scales0, device const uchar* biases0,
    device const uchar* w1, device const uchar* scales1, device const uchar* biases1,
    device const uchar* w2, device const uchar* scales2, device const uchar* biases2)
{
  MatvecRows rows;
  const uint first = group < p.groups0 ? 0 : group < p.groups01 ? 1 : 2;  // matrix
  const uint start = of_matrix(first, 0, p.groups0, p.groups01);
  const bool geglu = p.epilogue.kind == kEpilogueGeglu;
  rows.matrix = geglu ? side : first;
  rows.base = geglu ? group * NR : (group - start) * 2 * NR + side * NR;
  rows.w = of_matrix(rows.matrix, w0, w1, w2);
  rows.scales = of_matrix(rows.matrix, scales0, scales1, scales2);
  rows.biases = of_matrix(rows.matrix, biases0, biases1, biases2);
  rows.n = of_matrix(rows.matrix, p.n0, p.n1, p.n2);
  return rows;
}

// Adds the lanes' sums, then the slices', and stores the outputs. `partial` holds 2·R·NR floats for each simdgroup of the
// threadgroup; all of them call this, with `active` false where there is no row group left.
template <uint R, uint NR>
static inline void finish_rows(
    const thread float* acc, thread const MatvecRows& rows, bool active, constant MatvecParams& p,
    threadgroup float* partial, uint simdgroup, uint lane, uint first_row,
    device const uchar* bias0, device const uchar* bias1, device const uchar* bias2,
    device const float* other, device float* y)
{
  const uint side = lane / 16;
  const uint slot = lane % 16;
  float total[R];
  #pragma clang loop unroll(full)
  for (uint r = 0; r < R; r++) {
    total[r] = 0.0f;
    #pragma clang loop unroll(full)
    for (uint i = 0; i < NR; i++) {
      float v = acc[r * NR + i];
      v += simd_shuffle_xor(v, ushort(8));
      v += simd_shuffle_xor(v, ushort(4));
      v += simd_shuffle_xor(v, ushort(2));
      v += simd_shuffle_xor(v, ushort(1));
      total[r] = slot == i ? v : total[r];
    }
  }
  // From here on lane `slot` < NR of each half has the sum of row base + slot.
  if (p.slices > 1) {
    threadgroup float* sums = partial + (simdgroup * 2 + side) * R * NR;
    if (slot < NR) {
      #pragma clang loop unroll(full)
      for (uint r = 0; r < R; r++) {
        sums[r * NR + slot] = total[r];
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup % p.slices == 0 && slot < NR) {
      for (uint s = 1; s < p.slices; s++) {
        #pragma clang loop unroll(full)
        for (uint r = 0; r < R; r++) {
          total[r] += sums[s * 2 * R * NR + r * NR + slot];
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (!active || simdgroup % p.slices != 0) {
    return;
  }
  const uint n = rows.base + slot;
  const bool mine = slot < NR && n < rows.n;
  const bool geglu = p.epilogue.kind == kEpilogueGeglu;
  const OutputPlace place = output_place(p.epilogue, bias0, bias1, bias2, rows.matrix, min(n, rows.n - 1));
  #pragma clang loop unroll(full)
  for (uint r = 0; r < R; r++) {
    const float v = total[r] + place.bias;
    const float up = simd_shuffle_xor(v, ushort(16));
    if (mine && first_row + r < p.rows && !(geglu && side == 1)) {
      store_output(v, up, p.epilogue, other, y, first_row + r, n, place.column);
    }
  }
}

#define MATVEC_MATRIX(m, w_slot, scales_slot, biases_slot) \
    device const uchar* w##m [[buffer(w_slot)]], device const uchar* scales##m [[buffer(scales_slot)]], \
    device const uchar* biases##m [[buffer(biases_slot)]]

#define MATVEC_OPERANDS \
    MATVEC_MATRIX(0, 6, 7, 8), MATVEC_MATRIX(1, 9, 10, 11), MATVEC_MATRIX(2, 12, 13, 14), \
    device const uchar* bias0 [[buffer(15)]], device const uchar* bias1 [[buffer(16)]], \
    device const uchar* bias2 [[buffer(17)]], device const float* other [[buffer(18)]], device float* y [[buffer(19)]], \
    constant MatvecParams& p [[buffer(20)]]

// One activation row, prologue included: x, residual, h_out [k]; norms [k]; u is staged in threadgroup memory, in one phase
// where it fits: phase_blocks · 16 chunks, then as many chunk sums. The first weights are on their way meanwhile.
template <uint32_t W, uint32_t S, uint NR>
[[kernel, max_total_threads_per_threadgroup(256)]] void matvec_one(
    device const float* x            [[buffer(0)]],
    device const float* residual     [[buffer(1)]],
    device const uchar* post_norm    [[buffer(2)]],
    device const uchar* scalar       [[buffer(3)]],
    device float* h_out              [[buffer(4)]],
    device const uchar* pre_norm     [[buffer(5)]],
    MATVEC_OPERANDS,
    threadgroup float4* staged       [[threadgroup(0)]],
    uint tg        [[threadgroup_position_in_grid]],
    uint tid       [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane      [[thread_index_in_simdgroup]])
{
  threadgroup float partial[2 * NR * kStreamSimdgroups];
  constexpr uint words_of_row = chunk_words(W);
  constexpr uint columns = chunk_columns(W);
  constexpr uint shift = columns == 4 ? 2 : columns == 8 ? 3 : columns == 16 ? 4 : 5;
  constexpr uint block_quads = 4 * columns;
  const uint side = lane / 16;
  const uint slot = lane % 16;
  const uint slice = simdgroup % p.slices;
  const uint groups_at_once = kStreamSimdgroups / p.slices;
  threadgroup float* sums = (threadgroup float*)(staged + p.phase_blocks * block_quads);
  const uint none[1] = {0};
  StreamFactors factors;

  for (uint it = 0; it < p.iterations; it++) {
    const uint group = (tg * p.iterations + it) * groups_at_once + simdgroup / p.slices;
    const bool active = group < p.groups;
    const MatvecRows rows = matvec_rows<NR>(
        min(group, p.groups - 1), side, p, w0, scales0, biases0, w1, scales1, biases1, w2, scales2, biases2);
    float acc[NR];
    #pragma clang loop unroll(full)
    for (uint i = 0; i < NR; i++) {
      acc[i] = 0.0f;
    }
    uint words[NR * words_of_row];
    uint next_words[NR * words_of_row];
    float scale[NR];
    float next_scale[NR];
    float bias[NR];
    float next_bias[NR];
    uint block = slice;
    load_chunks<W, S, NR>(rows, p, block * 16 + slot, words, scale, bias);
    if (it == 0) {
      factors = stream_factors(x, residual, post_norm, scalar, p.stream, partial, tid, simdgroup, lane);
    }
    for (uint phase = 0; phase < p.phases; phase++) {
      const uint first_block = phase * p.phase_blocks;
      const uint end_block = min(first_block + p.phase_blocks, p.blocks);
      if (it == 0 || p.phases > 1) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const uint first_quad = first_block * block_quads;
        const bool stores_h = p.stream.stores_h != 0 && tg == 0 && it == 0;
        for (uint i = tid; i < (end_block - first_block) * block_quads; i += kStreamThreads) {
          const float4 u = stream_u(
              x, residual, post_norm, h_out, pre_norm, p.stream, factors, stores_h, first_quad + i);
          staged[chunked_quad(i, shift)] = u;
          if (is_affine(W)) {
            const float sum = chunk_sum(u, shift);
            if (i % (columns / 4) == 0) {
              sums[i / (columns / 4)] = sum;
            }
          }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
      }
      // Two sets of registers in turn: one is loaded while the other is multiplied.
      while (block < end_block) {
        block += p.slices;
        load_chunks<W, S, NR>(rows, p, block * 16 + slot, next_words, next_scale, next_bias);
        uint at = block - p.slices - first_block;
        accumulate<W, 1, NR>(
            words, scale, bias, p.code_exponent, staged + at * block_quads + slot, sums + at * 16 + slot, none, acc);
        if (block >= end_block) {
          #pragma clang loop unroll(full)
          for (uint i = 0; i < NR * words_of_row; i++) {
            words[i] = next_words[i];
          }
          #pragma clang loop unroll(full)
          for (uint i = 0; i < NR; i++) {
            scale[i] = next_scale[i];
            bias[i] = next_bias[i];
          }
          break;
        }
        block += p.slices;
        load_chunks<W, S, NR>(rows, p, block * 16 + slot, words, scale, bias);
        at += p.slices;
        accumulate<W, 1, NR>(
            next_words, next_scale, next_bias, p.code_exponent, staged + at * block_quads + slot, sums + at * 16 + slot,
            none, acc);
      }
    }
    finish_rows<1, NR>(
        acc, rows, active, p, partial, simdgroup, lane, 0, bias0, bias1, bias2, other, y);
  }
}

// R activation rows, whose u linear_prologue has put into scratch: row_floats floats each, chunked quads, then chunk sums.
// Grid: activation rows by R, then row groups, so that neighbours share matrix rows.
template <uint32_t W, uint32_t S, uint R, uint NR>
[[kernel, max_total_threads_per_threadgroup(256)]] void matvec_many(
    device const float4* u [[buffer(0)]],
    MATVEC_OPERANDS,
    uint2 tg       [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane      [[thread_index_in_simdgroup]])
{
  threadgroup float partial[2 * R * NR * kStreamSimdgroups];
  constexpr uint words_of_row = chunk_words(W);
  constexpr uint block_quads = 4 * chunk_columns(W);
  const uint side = lane / 16;
  const uint slot = lane % 16;
  const uint groups_at_once = kStreamSimdgroups / p.slices;
  const uint first_row = tg.x * R;
  uint row_quads[R];
  #pragma clang loop unroll(full)
  for (uint r = 0; r < R; r++) {
    row_quads[r] = min(first_row + r, p.rows - 1) * (p.row_floats / 4);
  }
  device const float4* lane_u = u + slot;
  device const float* lane_sums = (device const float*)(u + p.blocks * block_quads) + slot;

  for (uint it = 0; it < p.iterations; it++) {
    const uint group = (tg.y * p.iterations + it) * groups_at_once + simdgroup / p.slices;
    const bool active = group < p.groups;
    const MatvecRows rows = matvec_rows<NR>(
        min(group, p.groups - 1), side, p, w0, scales0, biases0, w1, scales1, biases1, w2, scales2, biases2);
    float acc[R * NR];
    #pragma clang loop unroll(full)
    for (uint i = 0; i < R * NR; i++) {
      acc[i] = 0.0f;
    }
    for (uint block = simdgroup % p.slices; block < p.blocks; block += p.slices) {
      uint words[NR * words_of_row];
      float scale[NR];
      float bias[NR];
      load_chunks<W, S, NR>(rows, p, block * 16 + slot, words, scale, bias);
      accumulate<W, R, NR>(
          words, scale, bias, p.code_exponent, lane_u + block * block_quads, lane_sums + block * 16, row_quads, acc);
    }
    finish_rows<R, NR>(
        acc, rows, active, p, partial, simdgroup, lane, first_row, bias0, bias1, bias2, other, y);
  }
}

#define INSTANTIATE_MATVEC(name, W, S) \
  INSTANTIATE(matvec_##name##_r1_n2, matvec_one<W, S, 2>) \
  INSTANTIATE(matvec_##name##_r1_n4, matvec_one<W, S, 4>) \
  INSTANTIATE(matvec_##name##_r2, matvec_many<W, S, 2, 4>) \
  INSTANTIATE(matvec_##name##_r4, matvec_many<W, S, 4, 4>) \
  INSTANTIATE(matvec_##name##_r8, matvec_many<W, S, 8, 2>)

#endif
