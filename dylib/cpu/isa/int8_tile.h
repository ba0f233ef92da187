// int8_tile.h: weight rows unpacked for prefill rows.
#pragma once
#include "functions.h"

namespace mb {
namespace MB_ISA {
namespace {

// A tile: scales and biases [groups][tile_columns], then 32-bit words of codes [words][tile_columns]. A word holds eight
// 4-bit codes of a column, or four codes of any other width as bytes. Biases have the middle of the codes added: a weight is
// scale * (code - middle) + bias.
struct TileView {
  float *scales, *biases;
  uint8_t *codes;
  TileView(const Weight &w, uint8_t *tile) {
    scales = reinterpret_cast<float *>(tile);
    biases = scales + w.groups() * tile_columns;
    codes = reinterpret_cast<uint8_t *>(biases + w.groups() * tile_columns);
  }
};

inline int64_t columns_of_word(const Weight &w) { return has_nibble_words(w) ? 8 : 4; }

// What is taken from the codes of a weight before they are multiplied: the middle of their range, but for what is left of it
// where the instruction set has taken kWideOffset already.
inline float middle_of(uint32_t bits) { return static_cast<float>(1 << (bits - 1)); }
inline float code_offset(uint32_t bits) { return bits == 8 ? middle_of(8) - kWideOffset : middle_of(bits); }

}  // namespace
}  // namespace MB_ISA
}  // namespace mb
