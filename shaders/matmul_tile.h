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

// Floats of threadgroup memory: the two operand tiles; after the last step the products.
template <typename T, uint M, uint N>
static constexpr uint tile_floats() {
  return (M + N) * tile_stride<T>() * sizeof(T) / 4 > M * out_stride(N) ? (M + N) * tile_stride<T>() * sizeof(T) / 4
                                                                          : M * out_stride(N);
}

// Steps whose operands are under way at once. Large tiles have several threadgroups to a core instead.
template <uint32_t W, typename T, uint M, uint N>
static constexpr uint steps_ahead() {
  return M > 16 ? 1 : column_words<W, columns_each<T, N>()>() <= 4 ? 4 : column_words<W, columns_each<T, N>()>() <= 8 ? 2 : 1;
}

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

// The products of the tile, which `memory` then holds as floats [M, out_stride(N)], for all threads to read. Thread tid brings
// matrix row tid / (128 / N) of the tile.
template <uint32_t W, uint32_t S, typename T, uint M, uint N>
static inline void multiply_tile(
    thread const TileWeights& weights, thread const TileRows<T, M>& rows, constant TileParams& p, threadgroup float4* memory,
    uint tid, uint simdgroup)
{
  constexpr uint stride = tile_stride<T>();
  constexpr uint m_groups = M >= 32 ? 2 : 1;        // simdgroups along M
  constexpr uint m_steps = M / m_groups / 16;       // 16×8 products of a simdgroup along M
  constexpr uint n_steps = N / (4 / m_groups) / 8;  // and along N
  constexpr uint ahead = steps_ahead<W, T, M, N>();
  threadgroup T* u_tile = (threadgroup T*)memory;
  threadgroup T* w_tile = u_tile + M * stride;
  threadgroup float* out = (threadgroup float*)memory;
  const uint simd_m = simdgroup % m_groups * (M / m_groups);
  const uint simd_n = simdgroup / m_groups * (8 * n_steps);

  simdgroup_matrix<float, 8, 8> acc[2 * m_steps * n_steps];
  #pragma clang loop unroll(full)
  for (uint i = 0; i < 2 * m_steps * n_steps; i++) {
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
        for (uint k = 0; k < tile_columns<T>(); k += 8) {
          simdgroup_matrix<T, 8, 8> a[2 * m_steps];
          #pragma clang loop unroll(full)
          for (uint i = 0; i < 2 * m_steps; i++) {
            simdgroup_load(a[i], u_tile + (simd_m + 8 * i) * stride + k, stride);
          }
          #pragma clang loop unroll(full)
          for (uint j = 0; j < n_steps; j++) {
            simdgroup_matrix<T, 8, 8> b;
            simdgroup_load(b, w_tile + (simd_n + 8 * j) * stride + k, stride, ulong2(0, 0), true);
            #pragma clang loop unroll(full)
            for (uint i = 0; i < m_steps; i++) {
              tile_mma(acc + 2 * (i * n_steps + j), a + 2 * i, b);
            }
          }
        }
      }
    }
  }

  threadgroup_barrier(mem_flags::mem_threadgroup);
  #pragma clang loop unroll(full)
  for (uint i = 0; i < m_steps; i++) {
    #pragma clang loop unroll(full)
    for (uint j = 0; j < n_steps; j++) {
      threadgroup float* to = out + (simd_m + 16 * i) * out_stride(N) + simd_n + 8 * j;
      simdgroup_store(acc[2 * (i * n_steps + j)], to, out_stride(N));
      simdgroup_store(acc[2 * (i * n_steps + j) + 1], to + 8 * out_stride(N), out_stride(N));
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

#endif
