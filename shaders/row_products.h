// row_products.h: products of rows of a matrix that is told at run time with one row of u, for kernels of experts and centroids.
// Half a simdgroup makes NR products. u lies in chunked order (stream.h), without the sums of its chunks: a lane adds those up
// as it goes.
#ifndef MARKBASE_ROW_PRODUCTS_H
#define MARKBASE_ROW_PRODUCTS_H
#include "row_products_params.h"
#include "weights.h"

constant constexpr uint kProductDepth = 2;  // blocks whose chunks are on their way

// Rows [base, base + NR) of a matrix of n; those beyond the end repeat the last.
struct ProductRows {
  device const uchar* w;
  device const uchar* scales;
  device const uchar* biases;
  uint base;
  uint n;
};

// The matrix whose first row is row `row` of a tensor.
template <uint32_t W, uint32_t S>
static inline ProductRows product_rows(
    device const uchar* w, device const uchar* scales, device const uchar* biases, constant RowParams& p, ulong row, uint base,
    uint n)
{
  ProductRows rows;
  const ulong first_scale = row * p.scale_columns;
  rows.w = w + row * p.row_bytes;
  rows.scales = scales + first_scale * scale_bytes(S);
  rows.biases = biases + bias_offset<W, S>(first_scale);
  rows.base = base;
  rows.n = n;
  return rows;
}

// A chunk of N words of each of NR rows; scales and biases as they are stored, since converting one would wait for it.
template <uint NR, uint N>
struct ProductChunks {
  uint words[NR * N];
  uint scale[NR];
  uint bias[NR];
};

// Chunk `chunk` of each row; beyond the end the last one, which is then multiplied by the zeros that pad u.
template <uint32_t W, uint32_t S, uint NR>
static inline void load_products(
    thread const ProductRows& rows, constant RowParams& p, uint chunk, thread ProductChunks<NR, chunk_words(W)>& to)
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
      load_words_ragged<W>(data, at, p.k, to.words + i * n);
    }
  }
}

// acc[i] += this lane's chunk of row i · u, whose first quad `u` points at.
template <uint32_t W, uint32_t S, uint NR>
static inline void add_products(
    thread const ProductChunks<NR, chunk_words(W)>& chunks, uint exponent, device const float4* u, thread float* acc)
{
  constexpr uint n = chunk_words(W);
  constexpr uint quads = chunk_columns(W) / 4;
  float part[NR];
  float4 sum = float4(0.0f);
  #pragma clang loop unroll(full)
  for (uint i = 0; i < NR; i++) {
    part[i] = is_affine(W) ? 0.0f : acc[i];
  }
  #pragma clang loop unroll(full)
  for (uint q = 0; q < quads; q++) {
    const float4 x = u[q * 16];
    sum += x;
    #pragma clang loop unroll(full)
    for (uint i = 0; i < NR; i++) {
      const thread uint* words = chunks.words + i * n;
      float s = part[i];
      s = fma(element_at<W>(words, exponent, 4 * q), x.x, s);
      s = fma(element_at<W>(words, exponent, 4 * q + 1), x.y, s);
      s = fma(element_at<W>(words, exponent, 4 * q + 2), x.z, s);
      part[i] = fma(element_at<W>(words, exponent, 4 * q + 3), x.w, s);
    }
  }
  const float all = (sum.x + sum.y) + (sum.z + sum.w);
  #pragma clang loop unroll(full)
  for (uint i = 0; i < NR; i++) {
    if (is_affine(W)) {
      const float scale = scale_of<W, S>(chunks.scale[i], chunks.bias[i]);
      acc[i] = fma(bias_of<W, S>(chunks.scale[i], chunks.bias[i]), all, fma(scale, part[i], acc[i]));
    } else {
      acc[i] = part[i];
    }
  }
}

// acc[i] = this lane's part of the products of row base + i with the row of u that begins at `u`: blocks first, first + step, ….
template <uint32_t W, uint32_t S, uint NR>
static inline void multiply_rows(
    thread const ProductRows& rows, constant RowParams& p, uint first, uint step, uint lane, device const float4* u,
    thread float* acc)
{
  constexpr uint block_quads = 4 * chunk_columns(W);
  const uint slot = lane % 16;
  ProductChunks<NR, chunk_words(W)> chunks[kProductDepth];
  #pragma clang loop unroll(full)
  for (uint d = 0; d < kProductDepth; d++) {
    load_products<W, S, NR>(rows, p, (first + d * step) * 16 + slot, chunks[d]);
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
        add_products<W, S, NR>(chunks[d], p.code_exponent, u + block * block_quads + slot, acc);
      }
      const uint next = block + kProductDepth * step;
      if (next < p.blocks) {
        load_products<W, S, NR>(rows, p, next * 16 + slot, chunks[d]);
      }
    }
  }
}

// Lane `slot` < NR of each half gets the sum of v[slot] over the half's lanes.
template <uint NR>
static inline float half_sum(const thread float* v, uint lane) {
  float total = 0.0f;
  #pragma clang loop unroll(full)
  for (uint i = 0; i < NR; i++) {
    float sum = v[i];
    sum += simd_shuffle_xor(sum, ushort(8));
    sum += simd_shuffle_xor(sum, ushort(4));
    sum += simd_shuffle_xor(sum, ushort(2));
    sum += simd_shuffle_xor(sum, ushort(1));
    total = lane % 16 == i ? sum : total;
  }
  return total;
}

#endif
