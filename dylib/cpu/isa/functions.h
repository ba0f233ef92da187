// functions.h: the kernels of one instruction set, which table.cpp collects. kernels.h says what each does.
#pragma once
#include "simd.h"

namespace mb {
namespace MB_ISA {

// rows.cpp
float sum_of_squares(const float *x, int64_t n);
void scale_row(float *y, const float *x, float scale, const float *weight, int64_t n);
void add_rows(float *y, const float *a, float a_scale, const float *b, float b_scale, float scalar, int64_t n);
void gelu_mul(float *y, const float *a, const float *b, int64_t n);
void softcap(float *y, const float *x, float cap, int64_t n);
void silu(float *y, const float *x, int64_t n);
void gate(float *y, const float *a, const float *b, int64_t n);
void clamp_row(float *y, const float *x, float least, float largest, int64_t n);
float sum_row(const float *x, int64_t n);
void multiply_add(float *y, const float *x, const float *w, int64_t n);
void rotate(float *y, const float *x, const float *cosines, const float *sines, int64_t d, int64_t pairs);
void to_half(uint16_t *y, const float *x, int64_t n);
bool all_finite(const float *x, int64_t n);
float softmax_block(float *p, float scale, int64_t n, float *largest);
void blend(float *y, float a, const float *x, float b, int64_t n);
float block_maxima(const float *x, int64_t n, float *maxima);
double sum_exp(const float *x, int64_t n, float largest, float scale);

// codes.cpp
void dequantize(const Weight &w, int64_t row, int64_t first, int64_t count, float *y);
void unpack_codes(const uint8_t *packed, uint32_t bits, int64_t count, uint8_t *codes);  // count: a multiple of 8
void read_scales(const uint8_t *p, Format format, int64_t count, float *y);

// blocks.cpp
constexpr int kRun = 256;               // columns unpacked at a time: a block of 256, or eight of 32
constexpr int kCodeBytes = 4 * kLanes;  // of a vector of codes
// Codes, scales and biases of columns [first, first + count) of one row, of every format that has_codes() but affine. `first`
// is a multiple of kRun and count at most that; there is room for kRun codes and kRun / 16 scales and biases.
void unpack_run(const Weight &w, int64_t row, int64_t first, int64_t count, uint8_t *codes, float *scales, float *biases);
void dequantize_mxfp8(const Weight &w, int64_t row, int64_t first, int64_t count, float *y);

// matmul.cpp
void matmul(const float *a, int64_t a_stride, int64_t rows, const void *w, Format format, int64_t w_stride,
            int64_t columns, int64_t k, float *out, int64_t out_stride);
void weighted_sum(const float *p, int64_t p_stride, int64_t rows, const int32_t *first, const int32_t *last,
                  const void *v, Format format, int64_t d, float *y, int64_t y_stride);

// interleaved.cpp
void interleave(const Weight &w, int64_t first, int64_t last, uint8_t *to);
// The parts of product_rows and pack_tile for interleaved weights.
void product_bands(const Weight &w, int64_t first, int64_t last, const QuantizedRow *a, int64_t rows, float *out, int64_t out_stride);
// That of dequantize.
void dequantize_of_bands(const Weight &w, int64_t row, int64_t first, int64_t count, float *y);
// Rows of w from `row` on, of which a vector has one a lane, to column `column` of the tile.
void pack_tile_of_bands(const Weight &w, int64_t row, float *scales, float *biases, uint8_t *codes);

// int8.cpp, int8_rows.cpp
constexpr int64_t code_padding = 8 * kLanes;  // a vector of 4-bit codes
constexpr int64_t tile_columns = kInt8Vectors * kLanes;
void quantize_for_rows(const float *x, int64_t k, int64_t group, Order order, const QuantizedRow &row);
void quantize_for_tile(const float *x, int64_t k, int64_t group, Order order, const QuantizedRow &row);
void product_rows(const Weight &w, int64_t first, int64_t last, const QuantizedRow *a, int64_t rows, float *out,
                  int64_t out_stride);
int64_t tile_bytes(const Weight &w);
void pack_tile(const Weight &w, int64_t first, int64_t last, uint8_t *tile);
void product_tile(const Weight &w, const uint8_t *tile, int64_t columns, const QuantizedRow *a, int64_t rows,
                  float *out, int64_t out_stride);

}  // namespace MB_ISA
}  // namespace mb
