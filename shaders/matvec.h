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
#include "row_products_params.h"
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

// A chunk of N words of each of NR rows, as loaded: converting a scale would wait for it.
template <uint NR, uint N>
struct MatvecChunks {
  uint words[NR * N];
  uint scale[NR];
  uint bias[NR];
};

static inline uint row_columns(constant MatvecParams& p) { return p.stream.k; }
static inline uint row_columns(constant RowParams& p) { return p.k; }

// Chunk `chunk` of each row; beyond the end the last one, which is then multiplied by the zeros that pad u. P: one of these.
template <uint32_t W, uint32_t S, uint NR, typename P>
static inline void load_chunks(
    thread const MatvecRows& rows, constant P& p, uint chunk, thread MatvecChunks<NR, chunk_words(W)>& to)
{
  constexpr uint n = chunk_words(W);
  const uint at = min(chunk, p.chunks - 1);
  #pragma clang loop unroll(full)
  for (uint i = 0; i < NR; i++) {
    const uint row = min(rows.base + i, rows.n - 1);
    device const uchar* data = rows.w + ulong(row) * p.row_bytes;
    if (is_affine(W)) {
      load_words<W>(data, at, to.words + i * n);
      const uint group = row * p.scale_columns + (at * chunk_columns(W) >> p.group_shift);
      to.scale[i] = load_scale<S>(rows.scales, group);
      to.bias[i] = load_bias<W, S>(rows.biases, group);
    } else if (p.whole != 0) {
      load_words<W>(data, at, to.words + i * n);
    } else {
      load_words_ragged<W>(data, at, row_columns(p), to.words + i * n);
    }
  }
}

// acc[r][i] += this lane's chunk of matrix row i times that of activation row r. `u` points at the lane's first quad in
// activation row 0 and `sums` at its chunk sum there; row r lies row_quads[r] quads further, and a lane's quads
// `stride` apart.
template <uint32_t W, uint32_t S, uint R, uint NR, uint stride, typename U, typename Sums>
static inline void accumulate(
    const thread MatvecChunks<NR, chunk_words(W)>& chunks, uint exponent, U u, Sums sums, const thread uint* row_quads,
    thread float* acc)
{
  constexpr uint n = chunk_words(W);
  constexpr uint quads = chunk_columns(W) / 4;
  constexpr uint step = quads < 8 / R ? quads : 8 / R;  // quads whose u is read together: of eight rows and quads
  constexpr bool ahead = R > 2;  // the next ones are read before these are multiplied; two rows have two threadgroups to a core instead
  float part[R * NR];
  #pragma clang loop unroll(full)
  for (uint i = 0; i < R * NR; i++) {
    part[i] = is_affine(W) ? 0.0f : acc[i];
  }
  float sum[R];
  #pragma clang loop unroll(full)
  for (uint r = 0; r < R; r++) {
    sum[r] = ahead && is_affine(W) ? sums[4 * row_quads[r]] : 0.0f;
  }
  float4 next[step * R];
  if (ahead) {
    #pragma clang loop unroll(full)
    for (uint i = 0; i < step * R; i++) {
      next[i] = u[row_quads[i % R] + i / R * stride];
    }
  }
  #pragma clang loop unroll(full)
  for (uint first = 0; first < quads; first += step) {
    float4 now[step * R];
    if (ahead) {
      #pragma clang loop unroll(full)
      for (uint i = 0; i < step * R; i++) {
        now[i] = next[i];
      }
    }
    if (ahead && first + step < quads) {
      #pragma clang loop unroll(full)
      for (uint i = 0; i < step * R; i++) {
        next[i] = u[row_quads[i % R] + (first + step + i / R) * stride];
      }
    }
    // Without barriers a compiler reads u of the whole chunk first, for which registers do not suffice.
    if (ahead) {
      simdgroup_barrier(mem_flags::mem_none);
    }
    #pragma clang loop unroll(full)
    for (uint q = 0; q < step; q++) {
      float w[4 * NR];
      #pragma clang loop unroll(full)
      for (uint i = 0; i < NR; i++) {
        #pragma clang loop unroll(full)
        for (uint j = 0; j < 4; j++) {
          w[4 * i + j] = is_affine(W) ? code_operand<W>(chunks.words + i * n, exponent, 4 * (first + q) + j)
                                      : element_at<W>(chunks.words + i * n, exponent, 4 * (first + q) + j);
        }
      }
      #pragma clang loop unroll(full)
      for (uint r = 0; r < R; r++) {
        const float4 v = ahead ? now[q * R + r] : u[row_quads[r] + (first + q) * stride];
        #pragma clang loop unroll(full)
        for (uint i = 0; i < NR; i++) {
          const float s = part[r * NR + i];
          part[r * NR + i] =
              fma(w[4 * i + 3], v.w, fma(w[4 * i + 2], v.z, fma(w[4 * i + 1], v.y, fma(w[4 * i], v.x, s))));
        }
      }
    }
    if (R > 1 && !ahead) {
      simdgroup_barrier(mem_flags::mem_none);
    }
  }
  #pragma clang loop unroll(full)
  for (uint r = 0; r < R; r++) {
    if (!ahead && is_affine(W)) {
      sum[r] = sums[4 * row_quads[r]];
    }
    #pragma clang loop unroll(full)
    for (uint i = 0; i < NR; i++) {
      const float scale = is_affine(W) ? scale_of<W, S>(chunks.scale[i], chunks.bias[i]) : 0.0f;
      const float bias = is_affine(W) ? bias_of<W, S>(chunks.scale[i], chunks.bias[i]) : 0.0f;
      acc[r * NR + i] = is_affine(W) ? fma(bias, sum[r], fma(scale, part[r * NR + i], acc[r * NR + i])) : part[r * NR + i];
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

// The first row group of a simdgroup. Those of simdgroups beside it lie a threadgroup's worth apart, so that threadgroups have as many
// of them as each other, but for one.
static inline uint first_group(uint simdgroup, uint tg, constant MatvecParams& p) {
  return (simdgroup >> p.slice_shift) * p.threadgroups + tg;
}

// Adds what lanes M apart hold, of `left` rows each: a lane goes on with the half of the rows that its bit M names, or, where it
// has one row, with that row's sum. The counts are template arguments, since arrays whose loops unroll late end up in memory.
template <uint M, uint left>
static inline void fold_lanes(thread float* rows, uint slot) {
  if (left == 1) {
    rows[0] += simd_shuffle_xor(rows[0], ushort(M));
    return;
  }
  const bool upper = (slot & M) != 0;
  #pragma clang loop unroll(full)
  for (uint i = 0; i < left / 2; i++) {
    // Read first: a choice between two elements is a choice between their addresses.
    const float even = rows[2 * i];
    const float odd = rows[2 * i + 1];
    rows[i] = (upper ? odd : even) + simd_shuffle_xor(upper ? even : odd, ushort(M));
  }
}

// Lane `slot` < NR of each half gets the sum of v[slot] over the half's lanes: those 8 apart are added, then 4, 2 and 1. While
// there are several rows, the lanes of a pair each go on with a part of them.
template <uint NR>
static inline float lanes_sum(const thread float* v, uint lane) {
  const uint slot = lane % 16;
  constexpr uint n = NR > 4 ? 8 : NR > 2 ? 4 : 2;
  float rest[n];
  #pragma clang loop unroll(full)
  for (uint i = 0; i < n; i++) {
    rest[i] = i < NR ? v[i] : 0.0f;
  }
  // A lane goes on with the rows whose bit 0 is its bit 3, of these with those whose bit 1 is its bit 2, and so on.
  fold_lanes<8, n>(rest, slot);
  fold_lanes<4, n / 2>(rest, slot);
  fold_lanes<2, (n > 4 ? n / 4 : 1)>(rest, slot);
  fold_lanes<1, 1>(rest, slot);
  const uint from = (slot & 1) << 3 | (slot & 2) << 1 | (slot & 4) >> 1;
  return simd_shuffle(rest[0], ushort((lane & 16) + from));
}

// Adds the lanes' sums, then the slices', and stores the outputs. `partial` holds 2·R·NR floats for each simdgroup of the
// threadgroup; all of them call this, with `active` false where there is no row group left.
template <uint32_t W, uint R, uint NR>
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
    total[r] = lanes_sum<NR>(acc + r * NR, lane);
    if (factor_bits(W) != 0) {
      total[r] *= as_type<float>(kCodeUnscaleBits);
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
    if ((simdgroup & (p.slices - 1)) == 0 && slot < NR) {
      for (uint s = 1; s < p.slices; s++) {
        #pragma clang loop unroll(full)
        for (uint r = 0; r < R; r++) {
          total[r] += sums[s * 2 * R * NR + r * NR + slot];
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (!active || (simdgroup & (p.slices - 1)) != 0) {
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

constant constexpr uint kStagedStride = 17;  // 16 lanes' quads and one more, so that a lane's lie in different banks
constant constexpr uint kStagedQuads = 6;  // float4s of u that a thread has on their way while it stages

// Four columns of u into their place in chunked order, and the sum of their chunk into its. All lanes of a simdgroup call this.
template <uint32_t W>
static inline void stage_quad(float4 u, float4 factor, threadgroup float4* to, threadgroup float* sum_to, uint tid) {
  constexpr uint quads = chunk_columns(W) / 4;
  if (!is_affine(W)) {
    *to = u;
    return;
  }
  *to = u * factor;
  const float sum = chunk_sum(u, quads == 4 ? 4 : 5);
  if (tid % quads == 0) {
    *sum_to = factor_bits(W) != 0 ? sum * as_type<float>(kCodeScaleBits) : sum;
  }
}

// How u comes to be. Each way has kernels of its own: what a kernel does not run costs it registers and reads of code all the same.
enum RowPrologue : uint {
  kPlainRow,  // it is x (stream_plain)
  kHeldRow,   // by registers (stream_held)
  kLongRow,   // of any row: by threadgroup memory where it fits, else from device memory at each step
};

// One activation row, prologue included: x, residual, h_out [k]; norms [k]; u is staged in threadgroup memory, in one phase
// where it fits: phase_blocks · 16 chunks, then as many chunk sums. A lane has the chunks of D blocks on their way at any time,
// the first of them while u is made.
template <uint32_t W, uint32_t S, uint NR, uint D, uint P, uint T>
static inline void one_row(
    device const float* x, device const float* residual, device const uchar* post_norm, device const uchar* scalar,
    device float* h_out, device const uchar* pre_norm,
    device const uchar* w0, device const uchar* scales0, device const uchar* biases0,
    device const uchar* w1, device const uchar* scales1, device const uchar* biases1,
    device const uchar* w2, device const uchar* scales2, device const uchar* biases2,
    device const uchar* bias0, device const uchar* bias1, device const uchar* bias2,
    device const float* other, device float* y, constant MatvecParams& p, threadgroup float4* staged, threadgroup float* partial,
    uint tg, uint tid, uint simdgroup, uint lane)
{
  constexpr uint columns = chunk_columns(W);
  constexpr uint shift = columns == 4 ? 2 : columns == 8 ? 3 : columns == 16 ? 4 : 5;
  constexpr uint block_quads = 4 * columns;
  constexpr uint staged_quads = columns / 4 * kStagedStride;  // of a block
  constexpr uint turn_quads = T / 16 * kStagedStride;
  constexpr uint turn_chunks = T * 4 / columns;
  const uint side = lane / 16;
  const uint slot = lane % 16;
  const uint slice = simdgroup & (p.slices - 1);
  threadgroup float* sums = (threadgroup float*)(staged + p.phase_blocks * staged_quads);
  const uint none[1] = {0};
  const bool kept_row = P == kLongRow && p.phase_blocks == p.blocks && stream_kept(p.stream);
  const bool stores_h = p.stream.stores_h != 0 && tg == 0;

  uint group = first_group(simdgroup, tg, p);
  MatvecRows rows = matvec_rows<NR>(
      min(group, p.groups - 1), side, p, w0, scales0, biases0, w1, scales1, biases1, w2, scales2, biases2);
  MatvecChunks<NR, chunk_words(W)> chunks[D];
  #pragma clang loop unroll(full)
  for (uint d = 0; d < D; d++) {
    load_chunks<W, S, NR>(rows, p, (d * p.slices + slice) * 16 + slot, chunks[d]);
  }
  wait_for_earlier_dispatches();
  HeldQuads held;
  if (P == kHeldRow) {
    hold_quads<T>(x, residual, post_norm, scalar, pre_norm, p.stream, tid, held);
  }
  // Blocks divide T, so a thread's quads lie T apart in chunked order too.
  const uint first_staged = chunked_quad(tid, shift, kStagedStride);
  const uint sum_slot = tid / (columns / 4);
  const float4 factor = code_factors(factor_bits(W), tid % (columns / 4));
  StreamFactors factors;
  if (P == kHeldRow) {
    held_u<T>(h_out, p.stream, stores_h, partial, tid, simdgroup, lane, held);
    #pragma clang loop unroll(full)
    for (uint j = 0; j < kHeldQuads; j++) {
      if (tid + j * T < p.blocks * block_quads) {
        stage_quad<W>(held.x[j], factor, staged + first_staged + j * turn_quads, sums + sum_slot + j * turn_chunks, tid);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  } else if (kept_row) {
    threadgroup float4* to = staged + first_staged;
    const float pre = keep_h<T>(
        x, residual, post_norm, scalar, h_out, p.stream, stores_h, partial, tid, simdgroup, lane, to, turn_quads);
    for (uint j = 0; tid + j * T < p.blocks * block_quads; j += kKeptQuads) {
      uint2 norm[kKeptQuads];
      #pragma clang loop unroll(full)
      for (uint n = 0; n < kKeptQuads; n++) {
        const uint i = min(tid + (j + n) * T, p.stream.k / 4 - 1);
        norm[n] = p.stream.has_pre != 0 ? ((device const uint2*)pre_norm)[i] : uint2(0u, 0u);
      }
      #pragma clang loop unroll(full)
      for (uint n = 0; n < kKeptQuads; n++) {
        const uint i = tid + (j + n) * T;
        if (i < p.blocks * block_quads) {
          float4 u = 4 * i < p.stream.k ? to[(j + n) * turn_quads] : float4(0.0f);
          if (p.stream.has_pre != 0) {
            u = u * pre * stored4(norm[n], p.stream.pre_format);
          }
          stage_quad<W>(u, factor, to + (j + n) * turn_quads, sums + sum_slot + (j + n) * turn_chunks, tid);
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  } else if (P == kLongRow) {
    factors = stream_factors<T>(x, residual, post_norm, scalar, p.stream, partial, tid, simdgroup, lane);
  }

  for (uint it = 0; it < p.iterations; it++) {
    const bool active = group < p.groups;  // with other rows, a simdgroup only keeps the others company at barriers
    const MatvecRows present = rows;
    float acc[NR];
    #pragma clang loop unroll(full)
    for (uint i = 0; i < NR; i++) {
      acc[i] = 0.0f;
    }
    group += p.group_stride;
    uint phase_start = 0;
    uint next_phase = 0;
    for (uint first = 0; first < p.blocks; first += D * p.slices) {
      const bool new_phase = first == next_phase;
      if (new_phase) {
        phase_start = first;
        next_phase = first + p.phase_blocks;
      }
      if (P != kHeldRow && new_phase && !kept_row && (it == 0 || p.phase_blocks < p.blocks)) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const uint quads = (min(first + p.phase_blocks, p.blocks) - first) * block_quads;
        const uint first_quad = first * block_quads;
        for (uint start = tid; start < quads; start += kStagedQuads * T) {
          float4 u[kStagedQuads];
          #pragma clang loop unroll(full)
          for (uint j = 0; j < kStagedQuads; j++) {
            const uint i = first_quad + start + j * T;
            u[j] = float4(0.0f);
            if (P == kPlainRow && 4 * i < p.stream.k) {
              u[j] = ((device const float4*)x)[i];
            }
          }
          #pragma clang loop unroll(full)
          for (uint j = 0; j < kStagedQuads; j++) {
            const uint i = start + j * T;
            if (i < quads) {
              if (P != kPlainRow) {
                u[j] = stream_u(
                    x, residual, post_norm, h_out, pre_norm, p.stream, factors, stores_h && it == 0, first_quad + i);
              }
              const uint turn = i / T;
              stage_quad<W>(
                  u[j], factor, staged + first_staged + turn * turn_quads, sums + sum_slot + turn * turn_chunks, tid);
            }
          }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
      }
      // While one chunk is multiplied, the one D blocks further takes its place; behind a row group's last comes the first of
      // the next row group.
      const bool last = first + D * p.slices >= p.blocks;
      const uint next_first = last ? 0 : first + D * p.slices;
      const bool more = !last || (it + 1 < p.iterations && group < p.groups);
      if (last) {
        rows = matvec_rows<NR>(
            min(group, p.groups - 1), side, p, w0, scales0, biases0, w1, scales1, biases1, w2, scales2, biases2);
      }
      #pragma clang loop unroll(full)
      for (uint d = 0; d < D; d++) {
        const uint block = first + d * p.slices + slice;
        if (active && block < p.blocks) {
          const uint at = block - phase_start;
          accumulate<W, S, 1, NR, kStagedStride>(
              chunks[d], p.code_exponent, staged + at * staged_quads + slot, sums + at * 16 + slot, none, acc);
        }
        if (more) {
          load_chunks<W, S, NR>(rows, p, (next_first + d * p.slices + slice) * 16 + slot, chunks[d]);
        }
      }
    }
    finish_rows<W, 1, NR>(
        acc, present, active, p, partial, simdgroup, lane, 0, bias0, bias1, bias2, other, y);
  }
}

#define ONE_ROW_KERNEL(name, threads) \
template <uint32_t W, uint32_t S, uint NR, uint D, uint P> \
[[kernel, max_total_threads_per_threadgroup(threads)]] void name( \
    STREAM_OPERANDS, \
    MATRIX_OPERANDS(MatvecParams), \
    threadgroup float4* staged       [[threadgroup(0)]], \
    uint tg        [[threadgroup_position_in_grid]], \
    uint tid       [[thread_index_in_threadgroup]], \
    uint simdgroup [[simdgroup_index_in_threadgroup]], \
    uint lane      [[thread_index_in_simdgroup]]) \
{ \
  threadgroup float partial[2 * NR * threads / 32]; \
  one_row<W, S, NR, D, P, threads>( \
      x, residual, post_norm, scalar, h_out, pre_norm, w0, scales0, biases0, w1, scales1, biases1, w2, scales2, biases2, \
      bias0, bias1, bias2, other, y, p, staged, partial, tg, tid, simdgroup, lane); \
}

ONE_ROW_KERNEL(matvec_one, 256)
ONE_ROW_KERNEL(matvec_wide, 512)

// R activation rows, whose u linear_prologue has put into scratch: row_floats floats each, chunked quads, then chunk sums.
// Grid: activation rows by R, then row groups, so that neighbours share matrix rows.
template <uint32_t W, uint32_t S, uint R, uint NR, uint D>
[[kernel, max_total_threads_per_threadgroup(256)]] void matvec_many(
    device const float4* u [[buffer(0)]],
    MATRIX_OPERANDS(MatvecParams),
    uint2 tg       [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane      [[thread_index_in_simdgroup]])
{
  threadgroup float partial[2 * R * NR * kStreamSimdgroups];
  constexpr uint block_quads = 4 * chunk_columns(W);
  const uint side = lane / 16;
  const uint slot = lane % 16;
  const uint first_row = tg.x * R;
  // Asking for weights before was slower on an H200 where four or more rows keep registers for other things.
  if (R > 2) {
    wait_for_earlier_dispatches();
  }
  uint row_quads[R];
  #pragma clang loop unroll(full)
  for (uint r = 0; r < R; r++) {
    row_quads[r] = min(first_row + r, p.rows - 1) * (p.row_floats / 4);
  }
  device const float4* lane_u = u + slot;
  device const float* lane_sums = (device const float*)(u + p.blocks * block_quads) + slot;

  const uint slice = simdgroup & (p.slices - 1);
  // Four rows or more took longer with row groups dealt out.
  uint group = R > 2 ? (tg.y * kStreamSimdgroups + simdgroup) >> p.slice_shift : first_group(simdgroup, tg.y, p);
  MatvecRows rows = matvec_rows<NR>(
      min(group, p.groups - 1), side, p, w0, scales0, biases0, w1, scales1, biases1, w2, scales2, biases2);
  MatvecChunks<NR, chunk_words(W)> chunks[D];
  #pragma clang loop unroll(full)
  for (uint d = 0; d < D; d++) {
    load_chunks<W, S, NR>(rows, p, (d * p.slices + slice) * 16 + slot, chunks[d]);
  }
  if (R <= 2) {
    wait_for_earlier_dispatches();
  }
  for (uint it = 0; it < p.iterations; it++) {
    const bool active = group < p.groups;
    const MatvecRows present = rows;
    float acc[R * NR];
    #pragma clang loop unroll(full)
    for (uint i = 0; i < R * NR; i++) {
      acc[i] = 0.0f;
    }
    group += p.group_stride;
    for (uint first = 0; first < p.blocks; first += D * p.slices) {
      const bool last = first + D * p.slices >= p.blocks;
      const uint next_first = last ? 0 : first + D * p.slices;
      const bool more = !last || (it + 1 < p.iterations && group < p.groups);
      if (last) {
        rows = matvec_rows<NR>(
            min(group, p.groups - 1), side, p, w0, scales0, biases0, w1, scales1, biases1, w2, scales2, biases2);
      }
      #pragma clang loop unroll(full)
      for (uint d = 0; d < D; d++) {
        const uint block = first + d * p.slices + slice;
        if (block < p.blocks) {
          accumulate<W, S, R, NR, 16>(
              chunks[d], p.code_exponent, lane_u + block * block_quads, lane_sums + block * 16, row_quads, acc);
        }
        if (more) {
          load_chunks<W, S, NR>(rows, p, (next_first + d * p.slices + slice) * 16 + slot, chunks[d]);
        }
      }
    }
    finish_rows<W, R, NR>(
        acc, present, active, p, partial, simdgroup, lane, first_row, bias0, bias1, bias2, other, y);
  }
}

#define INSTANTIATE_MATVEC_ONE(name, prologue, W, S, P) \
  INSTANTIATE(matvec_##name##_##prologue##_n2, matvec_one<W, S, 2, 2, P>) \
  INSTANTIATE(matvec_##name##_##prologue##_n3, matvec_one<W, S, 3, 2, P>) \
  INSTANTIATE(matvec_##name##_##prologue##_n5, matvec_one<W, S, 5, 1, P>)

#ifdef MSL_TARGET_PTX
#define INSTANTIATE_MATVEC_WIDE(name, prologue, W, S, P) \
  INSTANTIATE(matvec_##name##_##prologue##_wide_n2, matvec_wide<W, S, 2, 2, P>) \
  INSTANTIATE(matvec_##name##_##prologue##_wide_n3, matvec_wide<W, S, 3, 2, P>) \
  INSTANTIATE(matvec_##name##_##prologue##_wide_n5, matvec_wide<W, S, 5, 1, P>)
#else
#define INSTANTIATE_MATVEC_WIDE(name, prologue, W, S, P)
#endif

#define INSTANTIATE_MATVEC(name, W, S) \
  INSTANTIATE_MATVEC_ONE(name, plain, W, S, kPlainRow) \
  INSTANTIATE_MATVEC_ONE(name, held, W, S, kHeldRow) \
  INSTANTIATE_MATVEC_ONE(name, long, W, S, kLongRow) \
  INSTANTIATE_MATVEC_WIDE(name, plain, W, S, kPlainRow) \
  INSTANTIATE_MATVEC_WIDE(name, held, W, S, kHeldRow) \
  INSTANTIATE(matvec_##name##_r2, matvec_many<W, S, 2, 4, 1>) \
  INSTANTIATE(matvec_##name##_r4, matvec_many<W, S, 4, 4, 1>) \
  INSTANTIATE(matvec_##name##_r8, matvec_many<W, S, 8, 4, 1>)

#endif
