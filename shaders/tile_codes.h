// tile_codes.h: affine codes as operands of tile_mma, and rows of activations beside them.
//
// A span is 64 or 32 columns of a matrix row that share a scale. Of a span each of the four lanes of a row takes a quarter,
// columns that follow one another in memory, and makes pairs of halves of them: pair p stands where tile_mma expects columns
// 2 (lane % 4) and the next of its eight. Which two columns a pair has is free, as long as u has the same two; so a pair
// is what one mask takes from a word, two codes 16 bits apart.
#ifndef MARKBASE_TILE_CODES_H
#define MARKBASE_TILE_CODES_H
#include "weights.h"

// Pairs of a lane in a span, and words of its codes.
static constexpr uint span_pairs(uint span) { return span / 8; }
static constexpr uint span_words(uint32_t w, uint span) { return (bits_of(w) * span / 4 + 31) / 32; }

// Columns between the two of a pair. Codes of other widths are taken one by one, so that neighbours make a pair.
static constexpr uint pair_stride(uint bits) { return bits == 2 ? 8 : bits == 4 ? 4 : bits == 8 ? 2 : 1; }

// The first column of pair p of a quarter.
static constexpr uint pair_column(uint stride, uint p) { return p / stride * (2 * stride) + p % stride; }

// The bit of its half at which the codes of pair p lie.
static constexpr uint pair_place(uint bits, uint p) {
  return bits == 4 ? p % 2 * 4 : bits == 2 ? (p < 5 ? 2 * p : 2 * p - 10) : 0;
}

// Bytes of a lane's quarter of a span where it is whole bytes; 3 and 5 bits are read from the beginning of the row.
static constexpr uint quarter_bytes(uint32_t w, uint span) { return bits_of(w) % 2 == 0 ? bits_of(w) * span / 32 : 0; }

// Where codes are multiplied from: copies in threadgroup memory that are made ahead of their use, or the matrix itself where
// nothing is gained by copying.
#ifdef MSL_TARGET_PTX
#define STEP_SPACE threadgroup
constant constexpr bool kCopiesAhead = true;
#else
#define STEP_SPACE device
constant constexpr bool kCopiesAhead = false;
#endif
typedef STEP_SPACE const uchar* StepRow;

// Words of quarter `lane` of span `at` of a row.
template <uint32_t W, uint span>
static inline void load_quarter(StepRow row, uint at, uint lane, thread uint* words) {
  constexpr uint n = quarter_bytes(W, span) != 0 ? span_words(W, span) : 0;
  const uint i = at * 4 + lane;
  if (n == 1) {
    words[0] = ((STEP_SPACE const uint*)row)[i];
  } else if (n == 2) {
    const uint2 v = ((STEP_SPACE const uint2*)row)[i];
    words[0] = v.x;
    words[1] = v.y;
  } else if (n == 3) {
    #pragma clang loop unroll(full)
    for (uint j = 0; j < 3; j++) {
      words[j] = ((STEP_SPACE const uint*)row)[3 * i + j];
    }
  } else if (n == 4) {
    const uint4 v = ((STEP_SPACE const uint4*)row)[i];
    words[0] = v.x;
    words[1] = v.y;
    words[2] = v.z;
    words[3] = v.w;
  } else {
    load_half_run<bits_of(W)>((STEP_SPACE const uint*)row + i / 2 * bits_of(W), i % 2, words);
  }
}

// The codes of pair p where they lie, all other bits 0.
template <uint32_t W>
static inline uint pair_codes(const thread uint* words, uint p) {
  constexpr uint bits = bits_of(W);
  const uint place = pair_place(bits, p);
  if (bits == 4) {
    return (p % 4 < 2 ? words[p / 4] : words[p / 4] >> 8) & 0x000f000fu << place;
  }
  if (bits == 8) {
    return (p % 2 == 0 ? words[p / 2] : words[p / 2] >> 8) & 0x00ff00ffu;
  }
  if (bits == 2) {
    return (p < 5 ? words[0] : words[0] >> 10) & 0x00030003u << place;
  }
  constexpr uint mask = (1u << (bits & 31)) - 1;
  uint codes[2];
  #pragma clang loop unroll(full)
  for (uint j = 0; j < 2; j++) {
    const uint word = code_word(bits, 2 * p + j);
    const uint shift = code_shift(bits, 2 * p + j);
    codes[j] = (shift + bits > 32 ? words[word] >> shift | words[word + 1] << (32 - shift) : words[word] >> shift) & mask;
  }
  return codes[0] | codes[1] << 16;
}

// Pair p as two halves. NVIDIA's matrix units take subnormal halves as they are: the bits of a code at place `at` are
// code · 2^(at - 24) already, so u is multiplied by 2^-at and sums by 2^24. Elsewhere the bits are put into the mantissa of
// 2^(10 - at), which is then subtracted: the code itself, and u needs no factor.
#ifdef MSL_TARGET_PTX
constant constexpr uint kPairUnit = 24;
template <uint32_t W>
static inline uint pair_halves(const thread uint* words, uint p) {
  return pair_codes<W>(words, p);
}
static inline float pair_factor(uint place) { return as_type<float>((127 - place) << 23); }
#else
constant constexpr uint kPairUnit = 0;
template <uint32_t W>
static inline uint pair_halves(const thread uint* words, uint p) {
  const uint one = (25 - pair_place(bits_of(W), p)) << 10;
  const half2 base = as_type<half2>(one | one << 16);
  return as_type<uint>(as_type<half2>(pair_codes<W>(words, p) | one | one << 16) - base);
}
static inline float pair_factor(uint) { return 1.0f; }
#endif

// The factors of columns 4 q … 4 q + 3 of a lane's quarter of a span.
static inline float4 pair_factors(uint bits, uint q) {
  const uint p = bits == 2 ? 4 * q % 8 : 0;
  return bits != 2 && bits != 4 ? float4(1.0f) : float4(
      pair_factor(pair_place(bits, p)), pair_factor(pair_place(bits, p + 1)), pair_factor(pair_place(bits, p + 2)),
      pair_factor(pair_place(bits, p + 3)));
}

#endif
