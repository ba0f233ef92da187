// kernels.h: the vector kernels of one instruction set, as a table of functions. cpu/isa/ is compiled once for each set; the
// rest of the CPU device is compiled once and calls through this table. All pointers are host addresses.
//
// Bits: a kernel's result for one element never depends on how many other elements, rows or columns it is asked for.
#pragma once
#include <cstdint>

#include "weight.h"

namespace mb {

// One row of activations as int8 codes, in one of two forms.
//
// Decode rows stream the weights from memory, which leaves time for sixteen bits: x ~ scale * (128 * high + low), with a scale
// for each 256 columns.
//
// Prefill rows are bound by arithmetic and take eight bits where those do: x ~ scale[segment] * high, with a scale for each
// kSegment columns, and + scale / 128 * low in the segments that are listed as `rough`, where one value is far above the
// rest. A weight w = s * q + b of B bits is taken as s * (q - c) + (b + s * c) with c = 2^(B-1): the second part multiplies
// the group's exact sum, so that rounding only meets the weight's deviation from its middle.
//
// With the matrix units of AMX prefill rows are no codes but bf16 numbers in the order of their columns, which take the room of
// high and low together.
//
// Codes of 4-bit weights are dotted in the order in which their bytes and words hold them, so activations that meet them are put
// in that order, within what a vector of codes holds (decode) or a 32-bit word (prefill). kPairs: even columns before odd ones.
// kHalves: the first sixteen columns of all blocks of 32 before the others; in decode rows alone.
constexpr int64_t kSegment = 16;
constexpr int64_t sums_padding = 16;
struct QuantizedRow {
  int8_t *high, *low;   // [columns rounded up to code_padding], low after high; decode: zero beyond the last column
  float *scales;        // [columns / 256, rounded up], prefill [segments]
  float *sums;          // [groups + sums_padding] of the group's x, before quantisation; decode: zero beyond the last group
  float *rounded_sums;  // prefill: [groups] of what the codes stand for
  int32_t *rough;       // prefill: up to [segments], then -1
};

struct Kernels {
  const char *level;
  int lanes;  // f32 lanes of a vector

  // ---- rows of f32 ----
  float (*sum_of_squares)(const float *x, int64_t n);
  // y = x * scale * weight; weight may be null. y may be x.
  void (*scale_row)(float *y, const float *x, float scale, const float *weight, int64_t n);
  // y = (a * a_scale + b * b_scale) * scalar; b may be null. y may be a or b.
  void (*add_rows)(float *y, const float *a, float a_scale, const float *b, float b_scale, float scalar, int64_t n);
  void (*gelu_mul)(float *y, const float *a, const float *b, int64_t n);  // y = gelu_tanh(a) * b
  void (*softcap)(float *y, const float *x, float cap, int64_t n);        // y = cap * tanh(x / cap)
  void (*silu)(float *y, const float *x, int64_t n);                      // y = x / (1 + e^-x)
  void (*gate)(float *y, const float *a, const float *b, int64_t n);      // y = a / (1 + e^-b)
  void (*clamp)(float *y, const float *x, float least, float largest, int64_t n);
  float (*sum)(const float *x, int64_t n);
  // y += x * w, number by number.
  void (*multiply_add)(float *y, const float *x, const float *w, int64_t n);
  // Half-split rotation of one head of size d: cosines and sines [pairs]. y may be x.
  void (*rotate)(float *y, const float *x, const float *cosines, const float *sines, int64_t d, int64_t pairs);
  void (*to_f16)(uint16_t *y, const float *x, int64_t n);  // rounded to nearest even, clamped to the finite range
  bool (*all_finite)(const float *x, int64_t n);

  // ---- weights ----
  // y[0, count) = columns [first, first + count) of one row of w; first is a multiple of w.group, of 256 for blocks of GGUF.
  void (*dequantize)(const Weight &w, int64_t row, int64_t first, int64_t count, float *y);

  // Codes of `bits` bits in a byte each, scales and biases of columns [first, first + count) of one row of w, where it has codes
  // and is not affine; first is a multiple of 256, count at most that, and there is room for 256 codes and 16 scales and biases.
  void (*unpack_run)(const Weight &w, int64_t row, int64_t first, int64_t count, uint8_t *codes, float *scales, float *biases);

  // Bands [first, last) of w, one after another, to `to` (interleaved.h).
  void (*interleave)(const Weight &w, int64_t first, int64_t last, uint8_t *to);

  // ---- f32 matrix product ----
  // out[r * out_stride + c] = sum over k of a[r * a_stride + k] * w[c * w_stride + k], for r < rows, c < columns.
  // w is f32, f16 or bf16; strides are in elements.
  void (*matmul)(const float *a, int64_t a_stride, int64_t rows, const void *w, Format format, int64_t w_stride,
                 int64_t columns, int64_t k, float *out, int64_t out_stride);

  // ---- int8 activations ----
  int64_t code_padding;
  // Quantises x[0, k) for weights of that group size and order: for product_rows, for product_tile.
  void (*quantize_for_rows)(const float *x, int64_t k, int64_t group, Order order, const QuantizedRow &row);
  void (*quantize_for_tile)(const float *x, int64_t k, int64_t group, Order order, const QuantizedRow &row);
  // Decode: out[r * out_stride + c - first] = row c of w times activation row r, c in [first, last), r < rows.
  // Streams the weights once. Of interleaved ones, first and last are multiples of kBandRows.
  void (*product_rows)(const Weight &w, int64_t first, int64_t last, const QuantizedRow *a, int64_t rows, float *out,
                       int64_t out_stride);
  // Prefill: unpacks rows [first, last) of w, at most tile_columns of them, into a tile; then
  // out[r * out_stride + c - first] as above.
  int64_t tile_columns;
  int64_t (*tile_bytes)(const Weight &w);
  void (*pack_tile)(const Weight &w, int64_t first, int64_t last, uint8_t *tile);
  void (*product_tile)(const Weight &w, const uint8_t *tile, int64_t columns, const QuantizedRow *a, int64_t rows,
                       float *out, int64_t out_stride);

  // ---- attention ----
  // In place: p = exp(score * scale - largest) for n scores; returns the sum, and the largest scaled score in *largest.
  float (*softmax_block)(float *p, float scale, int64_t n, float *largest);
  // y[r * y_stride + i] += sum over j < keys, in order, of p[r * p_stride + j] * v[j * d + i]; v is f32 or f16.
  // Row r uses keys [first[r], last[r]) only.
  void (*weighted_sum)(const float *p, int64_t p_stride, int64_t rows, const int32_t *first, const int32_t *last,
                       const void *v, Format format, int64_t d, float *y, int64_t y_stride);
  // y = y * a + x * b
  void (*blend)(float *y, float a, const float *x, float b, int64_t n);

  // ---- candidates ----
  // Largest of each run of 64 values, the last run may be shorter; NaN counts as -infinity. Returns the largest of all.
  float (*block_maxima)(const float *x, int64_t n, float *maxima);
  double (*sum_exp)(const float *x, int64_t n, float largest, float scale);  // sum of exp((x - largest) * scale)
};

}  // namespace mb
