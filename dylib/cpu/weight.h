// weight.h: a matrix of a plan with its host addresses, whatever its storage format.
#pragma once
#include <cstdint>

#include "../plan.h"

namespace mb {

// [rows, columns], row-major. Plain formats have no scales. For all others w = scale * code + bias, where a scale and a bias
// belong to `group` columns and codes have `bits` bits. Affine codes are a little-endian bit stream per row, with scales and
// biases beside it; unpack_run() of isa/blocks.cpp tells how the other formats are such codes. mxfp8 is not: its bits are 0.
// The order in which products take the columns of activations (kernels.h).
enum class Order { kColumns, kPairs, kHalves };

struct Weight {
  Format format;
  uint32_t bits, group;
  int64_t rows, columns;
  int64_t row_bytes;
  const uint8_t *data;
  Format scale_format;  // of scales and biases: kF32, kF16 or kBF16; of scale bytes kI8
  int64_t scale_row_bytes;
  const uint8_t *scales, *biases;
  const uint8_t *interleaved;  // the same in bands of rows (interleaved.h), or null

  const uint8_t *row(int64_t i) const { return data + i * row_bytes; }
  const uint8_t *scale_row(int64_t i) const { return scales + i * scale_row_bytes; }
  const uint8_t *bias_row(int64_t i) const { return biases + i * scale_row_bytes; }
  int64_t groups() const { return columns / group; }
  Order order() const {
    if (interleaved) return Order::kColumns;
    if (format == kQ4_0 || format == kQ4_1 || format == kQ5_0 || format == kQ5_1) return Order::kHalves;
    return format == kAffine && bits == 4 ? Order::kPairs : Order::kColumns;
  }
};

// Whether a word of a tile for prefill rows holds eight codes of four bits; elsewhere it holds four as bytes.
inline bool has_nibble_words(const Weight &w) { return w.interleaved ? w.bits == 4 : w.order() == Order::kPairs; }

// Whether a format is codes that meet int8 activations in fast mode.
constexpr bool has_codes(Format format) { return !is_plain(format) && format != kMxfp8; }

inline int64_t bytes_of_format(Format format) {
  return format == kF32 || format == kU32 ? 4 : format == kF16 || format == kBF16 ? 2 : 1;
}

}  // namespace mb
