// matmul_tile.h: one tile of the products of prefill rows, by a threadgroup of four simdgroups: M rows of u by N matrix rows, in
// steps of 64 columns of K (32 where operands are f32). Weights become f16 or f32 on their way into threadgroup memory. A
// product's sum runs over K in one order through operations of one shape, whatever the tile.
#ifndef MARKBASE_MATMUL_TILE_H
#define MARKBASE_MATMUL_TILE_H
#include "weights.h"

constant constexpr uint kMatmulThreads = 128;

template <typename T>
static constexpr uint tile_columns() { return 128 / sizeof(T); }

// Distance of rows of operand tiles, so that rows start in different banks.
template <typename T>
static constexpr uint tile_stride() { return tile_columns<T>() + 16 / sizeof(T); }

// Distance of rows of the tile of products.
static constexpr uint out_stride(uint n) { return n + 4; }

// Columns of one matrix row that a thread brings in a step: 16 or 32.
template <typename T, uint N>
static constexpr uint columns_each() { return tile_columns<T>() * N / kMatmulThreads; }

// Groups of eight elements of u that a thread brings in a step.
template <typename T, uint M>
static constexpr uint eights_each() { return (M * tile_columns<T>() / 8 + kMatmulThreads - 1) / kMatmulThreads; }

// uint4s of eight elements.
template <typename T>
static constexpr uint eight_words() { return sizeof(T) / 2; }

// Rows of products that threadgroup memory holds at once.
template <uint M>
static constexpr uint stored_rows() { return M < 64 ? M : 64; }

// Floats of threadgroup memory: the two operand tiles; after the last step products.
template <typename T, uint M, uint N>
static constexpr uint tile_floats() {
  return (M + N) * tile_stride<T>() * sizeof(T) / 4 > stored_rows<M>() * out_stride(N)
             ? (M + N) * tile_stride<T>() * sizeof(T) / 4
             : stored_rows<M>() * out_stride(N);
}

// Steps whose operands are under way at once: as many as registers have room for, one of a tile that fills a core by itself.
template <uint32_t W, typename T, uint M, uint N>
static constexpr uint steps_ahead() {
  return M > 64 || column_words<W, columns_each<T, N>()>() > 8 || sizeof(T) * M > 128 ? 1
         : M > 16 || column_words<W, columns_each<T, N>()>() > 4                     ? 2
                                                                                     : 3;
}

// Simdgroups along M, and 16×8 products of one along M and along N.
template <uint M>
static constexpr uint m_groups() { return M >= 32 ? 2 : 1; }
template <uint M>
static constexpr uint m_steps() { return M / m_groups<M>() / 16; }
template <uint M, uint N>
static constexpr uint n_steps() { return N / (4 / m_groups<M>()) / 8; }
template <uint M, uint N>
static constexpr uint tile_matrices() { return 2 * m_steps<M>() * n_steps<M, N>(); }

// Where a thread's part of u begins: eight i lies in row (tid + 128 i) / (columns / 8) of the tile.
template <typename T, uint M>
struct TileRows {
  device const T* at[eights_each<T, M>()];
};

// The matrix row of a thread, and its scales and biases.
struct TileWeights {
  device const uchar* w;
  device const uchar* scales;
  device const uchar* biases;
};

// What a thread brings in one step, as loaded.
template <uint32_t W, typename T, uint M, uint N>
struct TilePart {
  uint words[column_words<W, columns_each<T, N>()>()];
  uint scale[column_scales<W, columns_each<T, N>()>()];
  uint bias[column_scales<W, columns_each<T, N>()>()];
  uint4 eights[eights_each<T, M>() * eight_words<T>()];
};

// Eight elements of u, from device to registers to threadgroup memory.
static inline void load_eight(device const half* from, thread uint4* to) { to[0] = *(device const uint4*)from; }
static inline void load_eight(device const float* from, thread uint4* to) {
  to[0] = ((device const uint4*)from)[0];
  to[1] = ((device const uint4*)from)[1];
}
static inline void store_eight(const thread uint4* from, threadgroup half* to) { *(threadgroup uint4*)to = from[0]; }
static inline void store_eight(const thread uint4* from, threadgroup float* to) {
  ((threadgroup uint4*)to)[0] = from[0];
  ((threadgroup uint4*)to)[1] = from[1];
}

template <uint32_t W, uint32_t S, typename T, uint M, uint N>
static inline void load_part(
    thread const TileWeights& weights, thread const TileRows<T, M>& rows, constant TileParams& p, uint step, uint tid,
    thread TilePart<W, T, M, N>& part)
{
  constexpr uint columns = columns_each<T, N>();
  constexpr uint parts = kMatmulThreads / N;  // of a matrix row
  // u is zero from column k on; what stands for the weights there is any of the row.
  const uint at = step * parts + tid % parts;
  const uint last = p.whole != 0 ? p.k / columns - 1 : at;
  load_columns<W, columns>(weights.w, min(at, last), p.k, p.whole != 0, part.words);
  if (is_affine(W)) {
    const uint group = min(at, last) * columns >> p.group_shift;
    #pragma clang loop unroll(full)
    for (uint i = 0; i < column_scales<W, columns>(); i++) {
      part.scale[i] = load_scale<S>(weights.scales, group + i);
      part.bias[i] = load_bias<W, S>(weights.biases, group + i);
    }
  }
  #pragma clang loop unroll(full)
  for (uint i = 0; i < eights_each<T, M>(); i++) {
    load_eight(rows.at[i] + step * tile_columns<T>(), part.eights + i * eight_words<T>());
  }
}

template <uint32_t W, uint32_t S, typename T, uint M, uint N>
static inline void store_part(
    thread const TilePart<W, T, M, N>& part, uint exponent, uint tid, threadgroup T* u_tile, threadgroup T* w_tile)
{
  constexpr uint stride = tile_stride<T>();
  constexpr uint row_eights = tile_columns<T>() / 8;
  constexpr uint columns = columns_each<T, N>();
  constexpr uint parts = kMatmulThreads / N;
  #pragma clang loop unroll(full)
  for (uint i = 0; i < eights_each<T, M>(); i++) {
    const uint at = tid + i * kMatmulThreads;
    if (M * row_eights % kMatmulThreads == 0 || at < M * row_eights) {
      store_eight(part.eights + i * eight_words<T>(), u_tile + at / row_eights * stride + at % row_eights * 8);
    }
  }
  constexpr uint scale_quads = columns / 4 / column_scales<W, columns>();
  float scale[column_scales<W, columns>()];
  float bias[column_scales<W, columns>()];
  #pragma clang loop unroll(full)
  for (uint i = 0; i < column_scales<W, columns>(); i++) {
    scale[i] = is_affine(W) ? scale_of<W, S>(part.scale[i], part.bias[i]) : 1.0f;
    bias[i] = is_affine(W) ? bias_of<W, S>(part.scale[i], part.bias[i]) : 0.0f;
  }
  threadgroup vec<T, 4>* to = (threadgroup vec<T, 4>*)(w_tile + tid / parts * stride + tid % parts * columns);
  #pragma clang loop unroll(full)
  for (uint q = 0; q < columns / 4; q++) {
    float4 v = float4(
        element_at<W>(part.words, exponent, 4 * q), element_at<W>(part.words, exponent, 4 * q + 1),
        element_at<W>(part.words, exponent, 4 * q + 2), element_at<W>(part.words, exponent, 4 * q + 3));
    if (is_affine(W)) {
      v = fma(v, float4(scale[q / scale_quads]), float4(bias[q / scale_quads]));
    }
    to[q] = vec<T, 4>(v);
  }
}

// The products of the tile, of this simdgroup in acc. Thread tid brings matrix row tid / (128 / N) of the tile.
template <uint32_t W, uint32_t S, typename T, uint M, uint N>
static inline void multiply_tile(
    thread const TileWeights& weights, thread const TileRows<T, M>& rows, constant TileParams& p, threadgroup float4* memory,
    uint tid, uint simdgroup, thread simdgroup_matrix<float, 8, 8>* acc)
{
  constexpr uint stride = tile_stride<T>();
  constexpr uint ahead = steps_ahead<W, T, M, N>();
  threadgroup T* u_tile = (threadgroup T*)memory;
  threadgroup T* w_tile = u_tile + M * stride;
  const uint simd_m = simdgroup % m_groups<M>() * (M / m_groups<M>());
  const uint simd_n = simdgroup / m_groups<M>() * (8 * n_steps<M, N>());

  #pragma clang loop unroll(full)
  for (uint i = 0; i < tile_matrices<M, N>(); i++) {
    acc[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  TilePart<W, T, M, N> parts[ahead];
  #pragma clang loop unroll(full)
  for (uint d = 0; d < ahead; d++) {
    load_part<W, S, T, M, N>(weights, rows, p, min(d, p.steps - 1), tid, parts[d]);
  }
  for (uint first = 0; first < p.steps; first += ahead) {
    #pragma clang loop unroll(full)
    for (uint d = 0; d < ahead; d++) {
      const uint step = first + d;
      if (step < p.steps) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        store_part<W, S, T, M, N>(parts[d], p.code_exponent, tid, u_tile, w_tile);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (step + ahead < p.steps) {
          load_part<W, S, T, M, N>(weights, rows, p, step + ahead, tid, parts[d]);
        }
        #pragma clang loop unroll(full)
        for (uint k = 0; k < tile_columns<T>(); k += 16) {
          simdgroup_matrix<T, 8, 8> a[4 * m_steps<M>()];
          #pragma clang loop unroll(full)
          for (uint i = 0; i < m_steps<M>(); i++) {
            tile_load_four(a + 4 * i, u_tile + (simd_m + 16 * i) * stride + k, 8 * stride, 8, stride, false);
          }
          simdgroup_matrix<T, 8, 8> b[4];  // of two eights of matrix rows
          #pragma clang loop unroll(full)
          for (uint j = 0; j < n_steps<M, N>(); j++) {
            threadgroup const T* at = w_tile + (simd_n + 8 * j) * stride + k;
            if (n_steps<M, N>() % 2 != 0) {
              simdgroup_load(b[0], at, stride, ulong2(0, 0), true);
              simdgroup_load(b[1], at + 8, stride, ulong2(0, 0), true);
            } else if (j % 2 == 0) {
              tile_load_four(b, at, 8, 8 * stride, stride, true);
            }
            #pragma clang loop unroll(full)
            for (uint i = 0; i < m_steps<M>(); i++) {
              tile_mma_pair(acc + 2 * (i * n_steps<M, N>() + j), a + 4 * i, b + (n_steps<M, N>() % 2 != 0 ? 0 : j % 2 * 2));
            }
          }
        }
      }
    }
  }
}

// Rows [64 part, 64 part + 64) of the tile's products, or as many as there are, into `memory` as floats [rows, out_stride(N)] for
// all threads to read. All threads call this, once they have read what it held.
template <uint M, uint N>
static inline void store_products(
    const thread simdgroup_matrix<float, 8, 8>* acc, uint part, threadgroup float4* memory, uint simdgroup)
{
  threadgroup float* out = (threadgroup float*)memory;
  const uint m_group = simdgroup % m_groups<M>();
  const uint simd_m = M > 64 ? 0 : m_group * (M / m_groups<M>());
  const uint simd_n = simdgroup / m_groups<M>() * (8 * n_steps<M, N>());
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (M <= 64 || m_group == part) {
    #pragma clang loop unroll(full)
    for (uint i = 0; i < m_steps<M>(); i++) {
      #pragma clang loop unroll(full)
      for (uint j = 0; j < n_steps<M, N>(); j++) {
        threadgroup float* to = out + (simd_m + 16 * i) * out_stride(N) + simd_n + 8 * j;
        simdgroup_store(acc[2 * (i * n_steps<M, N>() + j)], to, out_stride(N));
        simdgroup_store(acc[2 * (i * n_steps<M, N>() + j) + 1], to + 8 * out_stride(N), out_stride(N));
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

#endif
