// matmul.h: the matrix products of prefill rows. A threadgroup makes a tile of M × N products (matmul_tile.h).
#ifndef MARKBASE_MATMUL_H
#define MARKBASE_MATMUL_H
#include "epilogue.h"
#include "matmul_tile.h"

// u [rows, columns]; W_m [n_m, k]; y [rows, y_stride]. Grid: tiles of rows, then of matrix rows; geglu: N / 2 of gate, then
// the same N / 2 of up.
template <uint32_t W, uint32_t S, typename T, uint M, uint N>
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
  threadgroup float4 memory[(tile_floats<T, M, N>() + 3) / 4];
  threadgroup float* out = (threadgroup float*)memory;
  const uint first_row = tile.x * M;
  const bool geglu = p.epilogue.kind == kEpilogueGeglu;
  const uint outputs = geglu ? N / 2 : N;
  const uint tile_matrix = tile.y < p.tiles0 ? 0 : tile.y < p.tiles01 ? 1 : 2;
  const uint first_n = (tile.y - of_matrix(tile_matrix, 0, p.tiles0, p.tiles01)) * outputs;

  const uint w_row = tid / (kMatmulThreads / N);
  const uint matrix = geglu ? (w_row >= outputs ? 1 : 0) : tile_matrix;
  const uint n = min(first_n + w_row % outputs, of_matrix(matrix, p.n0, p.n1, p.n2) - 1);
  TileWeights weights;
  weights.w = of_matrix(matrix, w0, w1, w2) + ulong(n) * p.row_bytes;
  const ulong first_scale = ulong(n) * p.scale_columns;
  weights.scales = of_matrix(matrix, scales0, scales1, scales2) + first_scale * scale_bytes(S);
  weights.biases = of_matrix(matrix, biases0, biases1, biases2) + bias_offset<W, S>(first_scale);
  TileRows<T, M> rows;
  #pragma clang loop unroll(full)
  for (uint i = 0; i < eights_each<T, M>(); i++) {
    const uint at = tid + i * kMatmulThreads;
    const uint row = min(first_row + at / (tile_columns<T>() / 8), p.rows - 1);
    rows.at[i] = u + ulong(row) * p.columns + at % (tile_columns<T>() / 8) * 8;
  }
  simdgroup_matrix<float, 8, 8> products[tile_matrices<M, N>()];
  multiply_tile<W, S, T, M, N>(weights, rows, p.tile, memory, tid, simdgroup, products);

  const uint output = tid % outputs;
  const uint out_n = first_n + output;
  const bool present = out_n < of_matrix(tile_matrix, p.n0, p.n1, p.n2);
  const uint place_n = present ? out_n : 0;
  const OutputPlace place = output_place(p.epilogue, bias0, bias1, bias2, tile_matrix, place_n);
  const float up_bias = geglu ? output_place(p.epilogue, bias0, bias1, bias2, 1, place_n).bias : 0.0f;
  #pragma clang loop unroll(disable)
  for (uint part = 0; part < M / stored_rows<M>(); part++) {
    store_products<M, N>(products, part, memory, simdgroup);
    const uint first = first_row + part * stored_rows<M>();
    const uint rows_here = present ? min(p.rows - min(first, p.rows), stored_rows<M>()) : 0;
    // The factors of several rows are asked for at once.
    constexpr uint together = 4;
    const uint step = kMatmulThreads / outputs;
    for (uint start = tid / outputs; start < rows_here; start += together * step) {
      float factors[together];
      #pragma clang loop unroll(full)
      for (uint i = 0; i < together; i++) {
        factors[i] = row_scale[first + min(start + i * step, rows_here - 1)];
      }
      #pragma clang loop unroll(full)
      for (uint i = 0; i < together; i++) {
        const uint row = start + i * step;
        if (row < rows_here) {
          const float v = fma(out[row * out_stride(N) + output], factors[i], place.bias);
          const float up = geglu ? fma(out[row * out_stride(N) + output + N / 2], factors[i], up_bias) : 0.0f;
          store_output(v, up, p.epilogue, other, y, first + row, out_n, place.column);
        }
      }
    }
  }
}

#define INSTANTIATE_MATMUL(name, W, S) \
  INSTANTIATE(matmul_##name##_f16_m16, matmul<W, S, half, 16, 32>) \
  INSTANTIATE(matmul_##name##_f16_m64, matmul<W, S, half, 64, 64>) \
  INSTANTIATE(matmul_##name##_f16_m128, matmul<W, S, half, 128, 64>) \
  INSTANTIATE(matmul_##name##_f32_m16, matmul<W, S, float, 16, 64>) \
  INSTANTIATE(matmul_##name##_f32_m64, matmul<W, S, float, 64, 64>)

#endif
