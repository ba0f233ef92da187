// matmul.h: the matrix products of prefill rows. A threadgroup of four simdgroups makes a tile of M × 64 products, in steps
// of 32 columns of K; weights become f16 or f32 on their way into threadgroup memory. A product's sum runs over K in one
// order through operations of one shape, whatever M and the number of rows.
#ifndef MARKBASE_MATMUL_H
#define MARKBASE_MATMUL_H
#include "epilogue.h"
#include "weights.h"

constant constexpr uint kMatmulThreads = 128;
constant constexpr uint kTileN = 64;   // matrix rows of a tile; geglu: 32 of gate, then the same 32 of up
constant constexpr uint kTileK = 32;
constant constexpr uint kOutStride = kTileN + 4;

// Distance of rows of operand tiles, so that rows start in different banks.
template <typename T>
static constexpr uint tile_stride() { return kTileK + 16 / sizeof(T); }

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

// u [rows, columns]; W_m [n_m, k]; y [rows, y_stride]. Grid: tiles of rows, then of matrix rows.
template <uint32_t W, uint32_t S, typename T, uint M>
[[kernel, max_total_threads_per_threadgroup(128)]] void matmul(
    device const T* u              [[buffer(0)]],
    device const float* row_scale  [[buffer(1)]],
    device const uchar* w0         [[buffer(2)]],
    device const uchar* scales0    [[buffer(3)]],
    device const uchar* biases0    [[buffer(4)]],
    device const uchar* w1         [[buffer(5)]],
    device const uchar* scales1    [[buffer(6)]],
    device const uchar* biases1    [[buffer(7)]],
    device const uchar* w2         [[buffer(8)]],
    device const uchar* scales2    [[buffer(9)]],
    device const uchar* biases2    [[buffer(10)]],
    device const uchar* bias0      [[buffer(11)]],
    device const uchar* bias1      [[buffer(12)]],
    device const uchar* bias2      [[buffer(13)]],
    device const float* other      [[buffer(14)]],
    device float* y                [[buffer(15)]],
    constant MatmulParams& p       [[buffer(16)]],
    uint2 tile      [[threadgroup_position_in_grid]],
    uint tid        [[thread_index_in_threadgroup]],
    uint simdgroup  [[simdgroup_index_in_threadgroup]])
{
  constexpr uint stride = tile_stride<T>();
  constexpr uint m_groups = M >= 32 ? 2 : 1;            // simdgroups along M
  constexpr uint m_steps = M / m_groups / 16;           // 16×8 products of a simdgroup along M
  constexpr uint n_steps = kTileN / (4 / m_groups) / 8; // and along N
  constexpr uint eights = M * kTileK / 8;               // of the tile of u
  constexpr uint eights_each = (eights + kMatmulThreads - 1) / kMatmulThreads;
  constexpr uint words_of_eight = sizeof(T) / 2;        // uint4s
  // The two operand tiles; after the last step the products.
  constexpr uint operand_floats = (M + kTileN) * stride * sizeof(T) / 4;
  constexpr uint memory_floats = operand_floats > M * kOutStride ? operand_floats : M * kOutStride;
  threadgroup float4 memory[(memory_floats + 3) / 4];
  threadgroup T* u_tile = (threadgroup T*)memory;
  threadgroup T* w_tile = u_tile + M * stride;
  threadgroup float* out = (threadgroup float*)memory;

  const uint first_row = tile.x * M;
  const bool geglu = p.epilogue.kind == kEpilogueGeglu;
  const uint tile_matrix = tile.y < p.tiles0 ? 0 : tile.y < p.tiles01 ? 1 : 2;
  const uint tile_start = of_matrix(tile_matrix, 0, p.tiles0, p.tiles01);
  const uint first_n = (tile.y - tile_start) * (geglu ? kTileN / 2 : kTileN);

  // This thread's run of 16 columns of one matrix row.
  const uint w_row = tid / 2;
  const uint run = tid % 2;
  const uint matrix = geglu ? (w_row >= kTileN / 2 ? 1 : 0) : tile_matrix;
  const uint n = min(first_n + (geglu ? w_row % (kTileN / 2) : w_row), of_matrix(matrix, p.n0, p.n1, p.n2) - 1);
  device const uchar* w = of_matrix(matrix, w0, w1, w2) + ulong(n) * p.row_bytes;
  device const uchar* scales = of_matrix(matrix, scales0, scales1, scales2);
  device const uchar* biases = of_matrix(matrix, biases0, biases1, biases2);

  simdgroup_matrix<float, 8, 8> acc[2 * m_steps * n_steps];
  #pragma clang loop unroll(full)
  for (uint i = 0; i < 2 * m_steps * n_steps; i++) {
    acc[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  const uint simd_m = simdgroup % m_groups * (M / m_groups);
  const uint simd_n = simdgroup / m_groups * (8 * n_steps);

  uint words[run_words(W)];
  float scale = 0.0f;
  float bias = 0.0f;
  uint4 eight[eights_each * words_of_eight];
  const uint steps = p.columns / kTileK;
  for (uint step = 0; step <= steps; step++) {
    if (step > 0) {
      // Into threadgroup memory what the step before has loaded.
      threadgroup_barrier(mem_flags::mem_threadgroup);
      #pragma clang loop unroll(full)
      for (uint i = 0; i < eights_each; i++) {
        const uint at = tid + i * kMatmulThreads;
        if (at < eights) {
          store_eight(eight + i * words_of_eight, u_tile + at / (kTileK / 8) * stride + at % (kTileK / 8) * 8);
        }
      }
      threadgroup vec<T, 4>* to = (threadgroup vec<T, 4>*)(w_tile + w_row * stride + run * 16);
      #pragma clang loop unroll(full)
      for (uint q = 0; q < 4; q++) {
        float4 v = float4(
            element_at<W>(words, p.code_exponent, 4 * q), element_at<W>(words, p.code_exponent, 4 * q + 1),
            element_at<W>(words, p.code_exponent, 4 * q + 2), element_at<W>(words, p.code_exponent, 4 * q + 3));
        if (is_affine(W)) {
          v = fma(v, float4(scale), float4(bias));
        }
        to[q] = vec<T, 4>(v);
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (step < steps) {
      const uint column = step * kTileK;
      load_run<W>(w, 2 * step + run, p.k, p.whole != 0, words);
      if (is_affine(W)) {
        const uint at = n * p.scale_columns + ((column + run * 16) >> p.group_shift);
        scale = load_as<S>(scales, at);
        bias = load_as<S>(biases, at);
      }
      #pragma clang loop unroll(full)
      for (uint i = 0; i < eights_each; i++) {
        const uint at = tid + i * kMatmulThreads;
        const uint row = min(first_row + at / (kTileK / 8), p.rows - 1);
        if (at < eights) {
          load_eight(u + ulong(row) * p.columns + column + at % (kTileK / 8) * 8, eight + i * words_of_eight);
        }
      }
    }
    if (step > 0) {
      #pragma clang loop unroll(full)
      for (uint k = 0; k < kTileK; k += 8) {
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

  threadgroup_barrier(mem_flags::mem_threadgroup);
  #pragma clang loop unroll(full)
  for (uint i = 0; i < m_steps; i++) {
    #pragma clang loop unroll(full)
    for (uint j = 0; j < n_steps; j++) {
      threadgroup float* to = out + (simd_m + 16 * i) * kOutStride + simd_n + 8 * j;
      simdgroup_store(acc[2 * (i * n_steps + j)], to, kOutStride);
      simdgroup_store(acc[2 * (i * n_steps + j) + 1], to + 8 * kOutStride, kOutStride);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  const uint outputs = geglu ? kTileN / 2 : kTileN;
  const uint output = tid % outputs;
  const uint out_n = first_n + output;
  if (out_n >= of_matrix(tile_matrix, p.n0, p.n1, p.n2)) {
    return;
  }
  const OutputPlace place = output_place(p.epilogue, bias0, bias1, bias2, tile_matrix, out_n);
  const float up_bias = geglu ? output_place(p.epilogue, bias0, bias1, bias2, 1, out_n).bias : 0.0f;
  for (uint row = tid / outputs; row < M && first_row + row < p.rows; row += kMatmulThreads / outputs) {
    const float factor = row_scale[first_row + row];
    const float v = fma(out[row * kOutStride + output], factor, place.bias);
    const float up = geglu ? fma(out[row * kOutStride + output + kTileN / 2], factor, up_bias) : 0.0f;
    store_output(v, up, p.epilogue, other, y, first_row + row, out_n, place.column);
  }
}

#define INSTANTIATE_MATMUL(name, W, S) \
  INSTANTIATE(matmul_##name##_f16_m16, matmul<W, S, half, 16>) \
  INSTANTIATE(matmul_##name##_f16_m64, matmul<W, S, half, 64>) \
  INSTANTIATE(matmul_##name##_f32_m16, matmul<W, S, float, 16>) \
  INSTANTIATE(matmul_##name##_f32_m64, matmul<W, S, float, 64>)

#endif
