// row_products.h: products of rows of a matrix that is told at run time with one row of u, for kernels of experts and centroids.
// Half a simdgroup makes NR products, as those of matvec.h. u lies in chunked order (stream.h), with the sums of its chunks.
#ifndef MARKBASE_ROW_PRODUCTS_H
#define MARKBASE_ROW_PRODUCTS_H
#include "matvec.h"

constant constexpr uint kProductDepth = 2;  // blocks whose chunks are on their way

// Rows from `base` on of the matrix of n whose first row is row `row` of a tensor.
template <uint32_t W, uint32_t S>
static inline MatvecRows product_rows(
    device const uchar* w, device const uchar* scales, device const uchar* biases, constant RowParams& p, ulong row, uint base,
    uint n)
{
  MatvecRows rows;
  const ulong first_scale = row * p.scale_columns;
  rows.w = w + row * p.row_bytes;
  rows.scales = scales + first_scale * scale_bytes(S);
  rows.biases = biases + bias_offset<W, S>(first_scale);
  rows.matrix = 0;
  rows.base = base;
  rows.n = n;
  return rows;
}

// acc[i] = this lane's part of the products of row base + i with the row of u that begins at `u`: blocks first, first + step, ….
template <uint32_t W, uint32_t S, uint NR>
static inline void multiply_rows(
    thread const MatvecRows& rows, constant RowParams& p, uint first, uint step, uint lane, device const float4* u,
    thread float* acc)
{
  constexpr uint block_quads = 4 * chunk_columns(W);
  const uint slot = lane % 16;
  const uint none[1] = {0};
  device const float* sums = (device const float*)(u + p.blocks * block_quads) + slot;
  MatvecChunks<NR, chunk_words(W)> chunks[kProductDepth];
  #pragma clang loop unroll(full)
  for (uint d = 0; d < kProductDepth; d++) {
    load_chunks<W, S, NR>(rows, p, (first + d * step) * 16 + slot, chunks[d]);
  }
  #pragma clang loop unroll(full)
  for (uint i = 0; i < NR; i++) {
    acc[i] = 0.0f;
  }
  for (uint at = first; at < p.blocks; at += kProductDepth * step) {
    #pragma clang loop unroll(full)
    for (uint d = 0; d < kProductDepth; d++) {
      const uint block = at + d * step;
      if (block < p.blocks) {
        accumulate<W, S, 1, NR, 16>(
            chunks[d], p.code_exponent, u + block * block_quads + slot, sums + block * 16, none, acc);
      }
      const uint next = block + kProductDepth * step;
      if (next < p.blocks) {
        load_chunks<W, S, NR>(rows, p, next * 16 + slot, chunks[d]);
      }
    }
  }
}

// Lane `slot` < NR of each half gets the sum of v[slot] over the half's lanes.
template <uint32_t W, uint NR>
static inline float half_sum(const thread float* v, uint lane) {
  const float total = lanes_sum<NR>(v, lane);
  return factor_bits(W) != 0 ? total * as_type<float>(kCodeUnscaleBits) : total;
}

#endif
