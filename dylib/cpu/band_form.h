// band_form.h: the layout of interleaved weights.
// Weights whose rows are interleaved sixteen at a time, for products with int8 activations. In such a band a vector has
// the codes of four columns of sixteen rows, so a product needs neither shuffles of codes nor sums across lanes: on one core that
// is two to three times as fast as rows where they lie, and then memory is what bounds a token. Nothing is rounded.
//
// A band is a sequence of blocks of kBlock columns, each a multiple of 64 bytes:
//   scales   of each group in turn: those of the sixteen rows as f16 or bf16, then minimums likewise where the format has any. With
//            scales in two levels: sixteen halves d, sixteen halves of minimums (or nothing), then of each group sixteen bytes, and
//            sixteen of minimums: scale = d * byte, minimum = -half * byte
//   codes    4 bits: for each 8 columns sixteen words, columns 0 to 3 in the low halves of its bytes, 4 to 7 in the high ones.
//            5 bits: then their fifth bits, for each 4 columns a bit of 64 for each byte. 6 bits: for each 16 columns three times
//            sixteen words: columns 0 to 3, 4 to 7 and 8 to 11, and in their bytes' two highest bits columns 12 to 15, lowest bits
//            first. 8 bits: for each 4 columns sixteen words
#pragma once
#include "weight.h"

namespace mb {

constexpr int64_t kBandRows = 16;

// How a format is interleaved; bits 0: not at all.
struct BandForm {
  int bits = 0, group = 0;
  bool two_levels = false, minimums = false;

  constexpr int block() const { return two_levels ? 256 : group > 64 ? group : 64; }  // columns
  constexpr int scale_bytes() const {
    const int kinds = minimums ? 2 : 1, groups = block() / group, rows = static_cast<int>(kBandRows);
    return two_levels ? 64 + groups * rows * kinds : groups * rows * 2 * kinds;
  }
  constexpr int code_bytes() const { return static_cast<int>(kBandRows) * block() * bits / 8; }
  constexpr int block_bytes() const { return scale_bytes() + code_bytes(); }
  constexpr int64_t band_bytes(int64_t columns) const { return columns / block() * block_bytes(); }
};

constexpr BandForm kNoBands{};

static constexpr BandForm band_form(Format format, uint32_t bits, uint32_t group, Format scale_format) {
  switch (format) {
    case kQ4_0: return {4, 32, false, false};
    case kQ4_1: return {4, 32, false, true};
    case kQ5_0: return {5, 32, false, false};
    case kQ5_1: return {5, 32, false, true};
    case kQ8_0: return {8, 32, false, false};
    case kQ4K: return {4, 32, true, true};
    case kQ5K: return {5, 32, true, true};
    case kQ6K: return {6, 16, true, false};
    case kAffine:
      if ((bits != 4 && bits != 8) || (scale_format != kF16 && scale_format != kBF16)) return kNoBands;
      return {static_cast<int>(bits), static_cast<int>(group), false, true};
    default: return kNoBands;
  }
}

// That of a weight whose shape fills whole bands and blocks.
static inline BandForm band_form(const Weight &w) {
  const BandForm form = band_form(w.format, w.bits, w.group, w.scale_format);
  return form.bits != 0 && w.rows % kBandRows == 0 && w.columns % form.block() == 0 ? form : kNoBands;
}

}  // namespace mb
