// blocks.h: blocks of GGUF and the 4-bit floating-point modes of MLX as codes of one byte each with f32 scales and biases: w =
// scale * code + bias. Products of scale and code are exact in f32, and where a format has no minimum the bias is -middle *
// scale, so that the sum is exact too: a weight is rounded at most once, as its format says.
//
// Each format is a struct that reads a run of kRun columns, a block of 256 or eight of 32, which begins at p:
//   codes(p, column)                vector of the codes of columns [column, column + kCodeBytes), a multiple of kCodeBytes
//   scales(p, extra, n, s, b)       scales, and biases where kMinimums, of its first n groups; there is room for all groups of a
//                                   run, and what follows the n-th is finite where that is. `extra`: scale bytes of MLX's modes
//   whole(columns)                  columns of a row of that many in front of which vectors of codes may be read
// A code stands for scale * (code - kMiddle), or for scale * code + bias where kMinimums.
#pragma once
#include "../../iq4.h"
#include "functions.h"

namespace mb {
namespace MB_ISA {
namespace {

// e2m1 numbers doubled, and 16 added.
alignas(16) constexpr uint8_t kE2m1Codes[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};

inline uint16_t word_at(const uint8_t *p) {
  uint16_t w;
  memcpy(&w, p, 2);
  return w;
}
inline uint32_t word32_at(const uint8_t *p) {
  uint32_t w;
  memcpy(&w, p, 4);
  return w;
}
inline uint64_t word64_at(const uint8_t *p) {
  uint64_t w;
  memcpy(&w, p, 8);
  return w;
}
inline float half_at(const uint8_t *p) { return half(word_at(p)); }

inline vb low_bits(vb a, int mask) { return both(a, set1_byte(mask)); }

struct Halves {
  vb first, second;
};

// Blocks of 32 of B bytes with a half at their start and codes from byte `At` on.
template <int B, int At>
struct Blocks {
  static constexpr int kGroup = 32, kColumns = 32, kBlockBytes = B;
  static inline int64_t whole(int64_t columns) { return columns; }
  static MB_INLINE vb nibbles(const uint8_t *p, int column) { return low_bits(halves_of_blocks<B>(p + At, column), 15); }
  // Codes of 2 * kCodeBytes columns from `column` on: of the first halves of their blocks, of the second ones.
  static MB_INLINE Halves halves(const uint8_t *p, int column) {
    const vb bytes = bytes_of_halves<B, At>(p + column / 32 * B);
    return {low_nibbles(bytes), high_nibbles(bytes)};
  }
};

// Fifth bits of those, from the four bytes at p of each block of B.
template <int B>
MB_INLINE Halves with_fifth_bits(Halves four, const uint8_t *p) {
  uint64_t first = 0, second = 0;
  for (int i = 0; i < kCodeBytes / 16; i++) {
    first |= static_cast<uint64_t>(word_at(p + i * B)) << 16 * i;
    second |= static_cast<uint64_t>(word_at(p + i * B + 2)) << 16 * i;
  }
  return {either(four.first, bit_bytes(first)), either(four.second, bit_bytes(second))};
}

// Those with a second half for the minimum, and those without.
template <int B, int At>
struct BlocksWithMinimum : Blocks<B, At> {
  static constexpr bool kMinimums = true;
  static constexpr int kMiddle = 0;
  static MB_INLINE void scales(const uint8_t *p, const uint8_t *, int n, float *s, float *b) {
    strided_halves<B>(p, n, s);
    strided_halves<B>(p + 2, n, b);
  }
};
template <int B, int At, int Middle>
struct CentredBlocks : Blocks<B, At> {
  static constexpr bool kMinimums = false;
  static constexpr int kMiddle = Middle;
  static MB_INLINE void scales(const uint8_t *p, const uint8_t *, int n, float *s, float *) { strided_halves<B>(p, n, s); }
};

struct Q4_0 : CentredBlocks<18, 2, 8> {
  static constexpr int kBits = 4;
  static MB_INLINE vb codes(const uint8_t *p, int column) { return nibbles(p, column); }
};

struct Q4_1 : BlocksWithMinimum<20, 4> {
  static constexpr int kBits = 4;
  static MB_INLINE vb codes(const uint8_t *p, int column) { return nibbles(p, column); }
};

struct Q5_0 : CentredBlocks<22, 6, 16> {
  static constexpr int kBits = 5;
  static MB_INLINE vb codes(const uint8_t *p, int column) { return merge(halves_of_blocks<22>(p + 6, column), 15, fifth_bits<22>(p + 2, column)); }
  static MB_INLINE Halves halves(const uint8_t *p, int column) {
    return with_fifth_bits<22>(Blocks::halves(p, column), p + column / 32 * 22 + 2);
  }
};

struct Q5_1 : BlocksWithMinimum<24, 8> {
  static constexpr int kBits = 5;
  static MB_INLINE vb codes(const uint8_t *p, int column) { return merge(halves_of_blocks<24>(p + 8, column), 15, fifth_bits<24>(p + 4, column)); }
  static MB_INLINE Halves halves(const uint8_t *p, int column) {
    return with_fifth_bits<24>(Blocks::halves(p, column), p + column / 32 * 24 + 4);
  }
};

struct Q8_0 : CentredBlocks<34, 2, 128> {
  static constexpr int kBits = 8;
  static MB_INLINE vb codes(const uint8_t *p, int column) { return flip(bytes_of_blocks<34>(p + 2, column), 0x80); }
};

struct Iq4Nl : CentredBlocks<18, 2, 128> {
  static constexpr int kBits = 8;
  static MB_INLINE vb codes(const uint8_t *p, int column) { return lookup16(kIq4Codes, nibbles(p, column)); }
};

// Blocks of 256. Codes lie in layers: 32 columns for each 4, 2 or 1 bits of 32 bytes.

struct Blocks256 {
  static constexpr int kColumns = 256;
  static inline int64_t whole(int64_t columns) { return columns; }
};

// Eight 6-bit scales and minimums in twelve bytes, a byte each.
struct SixBits {
  uint64_t scales, minimums;
};
MB_INLINE SixBits six_bits(const uint8_t *packed) {
  const uint32_t x = word32_at(packed), y = word32_at(packed + 4), z = word32_at(packed + 8);
  const uint64_t scales = (x & 0x3f3f3f3f) | uint64_t((z & 0x0f0f0f0f) | (x >> 2 & 0x30303030)) << 32;
  const uint64_t minimums = (y & 0x3f3f3f3f) | uint64_t((z >> 4 & 0x0f0f0f0f) | (y >> 2 & 0x30303030)) << 32;
  return {scales, minimums};
}
MB_INLINE void six_bit_scales(const uint8_t *packed, float d, float least, float *s, float *b) {
  const SixBits six = six_bits(packed);
  scaled_bytes(six.scales, d, s);
  scaled_bytes(six.minimums, -least, b);
}

// Bytes of 6 bits each, less 32, as signed ones.
constexpr uint64_t kEachByte = 0x0101010101010101;
inline uint64_t centred_six_bits(uint64_t bytes) { return ((bytes | 0x80 * kEachByte) - 0x20 * kEachByte) ^ 0x80 * kEachByte; }

struct Q2K : Blocks256 {
  static constexpr bool kMinimums = true;
  static constexpr int kMiddle = 0;
  static constexpr int kBits = 2, kGroup = 16, kBlockBytes = 84;
  static MB_INLINE vb codes(const uint8_t *p, int column) {
    return low_bits(layers<2>(p + 16 + column / 128 * 32, column % 128), 3);
  }
  static MB_INLINE void scales(const uint8_t *p, const uint8_t *, int, float *s, float *b) {
    const float d = half_at(p + 80), least = half_at(p + 82);
    for (int j = 0; j < 16; j += 8) {
      scaled_bytes(word64_at(p + j) & 15 * kEachByte, d, s + j);
      scaled_bytes(word64_at(p + j) >> 4 & 15 * kEachByte, -least, b + j);
    }
  }
};

struct Q3K : Blocks256 {
  static constexpr bool kMinimums = false;
  static constexpr int kBits = 3, kGroup = 16, kBlockBytes = 110, kMiddle = 4;
  static MB_INLINE vb codes(const uint8_t *p, int column) {
    return merge(layers<2>(p + 32 + column / 128 * 32, column % 128), 3, low_bits(layers<1, 2>(p, column), 4));
  }
  static MB_INLINE void scales(const uint8_t *p, const uint8_t *, int, float *s, float *) {
    const float d = half_at(p + 108);
    const uint64_t low = word64_at(p + 96), high = word32_at(p + 104);
    // Two bits of each of four bytes, for four scales at a time.
    const auto two_bits = [&](int from) { return ((high >> from & 0x03030303) | (high >> (from + 2) & 0x03030303) << 32) << 4; };
    scaled_signed_bytes(centred_six_bits((low & 15 * kEachByte) | two_bits(0)), d, s);
    scaled_signed_bytes(centred_six_bits((low >> 4 & 15 * kEachByte) | two_bits(4)), d, s + 8);
  }
};

struct Q4K : Blocks256 {
  static constexpr bool kMinimums = true;
  static constexpr int kMiddle = 0;
  static constexpr int kBits = 4, kGroup = 32, kBlockBytes = 144;
  static MB_INLINE vb codes(const uint8_t *p, int column) {
    return low_bits(layers<4>(p + 16 + column / 64 * 32, column % 64), 15);
  }
  static MB_INLINE void scales(const uint8_t *p, const uint8_t *, int, float *s, float *b) {
    six_bit_scales(p + 4, half_at(p), half_at(p + 2), s, b);
  }
};

struct Q5K : Blocks256 {
  static constexpr bool kMinimums = true;
  static constexpr int kMiddle = 0;
  static constexpr int kBits = 5, kGroup = 32, kBlockBytes = 176;
  static MB_INLINE vb codes(const uint8_t *p, int column) {
    return merge(layers<4>(p + 48 + column / 64 * 32, column % 64), 15, low_bits(layers<1, 4>(p + 16, column), 16));
  }
  static MB_INLINE void scales(const uint8_t *p, const uint8_t *, int, float *s, float *b) {
    six_bit_scales(p + 4, half_at(p), half_at(p + 2), s, b);
  }
};

struct Q6K : Blocks256 {
  static constexpr bool kMinimums = false;
  static constexpr int kBits = 6, kGroup = 16, kBlockBytes = 210, kMiddle = 32;
  static MB_INLINE vb codes(const uint8_t *p, int column) {
    const uint8_t *low = p + column / 128 * 64 + column % 64, *high = p + 128 + column / 128 * 32;
    const vb bytes = load_bytes(low), four = column % 128 < 64 ? bytes : shift_right64<4>(bytes);
    return merge(four, 15, low_bits(layers<2, 4>(high, column % 128), 48));
  }
  static MB_INLINE void scales(const uint8_t *p, const uint8_t *, int, float *s, float *) {
    const float d = half_at(p + 208);
    for (int j = 0; j < 16; j += 8) scaled_signed_bytes(word64_at(p + 192 + j), d, s + j);
  }
};

struct Iq4Xs : Blocks256 {
  static constexpr bool kMinimums = false;
  static constexpr int kBits = 8, kGroup = 32, kBlockBytes = 136, kMiddle = 128;
  static MB_INLINE vb codes(const uint8_t *p, int column) {
    return lookup16(kIq4Codes, low_bits(halves_of_blocks<16>(p + 8, column), 15));
  }
  static MB_INLINE void scales(const uint8_t *p, const uint8_t *, int, float *s, float *) {
    const uint64_t low = word32_at(p + 4), high = word_at(p + 2);
    uint64_t bytes = 0;
    for (int j = 0; j < 8; j++) bytes |= ((low >> 4 * j & 15) | (high >> 2 * j & 3) << 4) << 8 * j;
    scaled_signed_bytes(centred_six_bits(bytes), half_at(p), s);
  }
};

// 2^(byte - 127)
inline float e8m0(uint32_t byte) { return float_from_bits(byte == 0 ? 0x00400000u : byte << 23); }

inline float e4m3(uint32_t byte) {
  if ((byte & 0x7f) == 0x7f) return float_from_bits(0x7fc00000);
  return 256.0f * half(static_cast<uint16_t>((byte & 0x80) << 8 | (byte & 0x7f) << 7));
}

// kRun / 2 bytes of codes with readable bytes behind them.
struct E2m1 {
  static constexpr bool kMinimums = false;
  static constexpr int kBits = 5, kColumns = 16, kBlockBytes = 8, kMiddle = 16;
  static inline int64_t whole(int64_t columns) { return columns > 2 * kLoadSlack ? columns - 2 * kLoadSlack : 0; }
  static MB_INLINE vb codes(const uint8_t *p, int column) { return lookup16(kE2m1Codes, spread_codes<4>(p + column / 2)); }
};

struct Mxfp4 : E2m1 {
  static constexpr int kGroup = 32;
  static MB_INLINE void scales(const uint8_t *, const uint8_t *extra, int n, float *s, float *) {
    for (int i = 0; i < n; i++) s[i] = 0.5f * e8m0(extra[i]);
  }
};

struct Nvfp4 : E2m1 {
  static constexpr int kGroup = 16;
  static MB_INLINE void scales(const uint8_t *, const uint8_t *extra, int n, float *s, float *) {
    for (int i = 0; i < n; i++) s[i] = 0.5f * e4m3(extra[i]);
  }
};

// Calls f with the format's struct.
template <class F>
inline auto with_blocks(Format format, const F &f) {
  switch (format) {
    case kQ4_0: return f(Q4_0());
    case kQ4_1: return f(Q4_1());
    case kQ5_0: return f(Q5_0());
    case kQ5_1: return f(Q5_1());
    case kQ8_0: return f(Q8_0());
    case kQ2K: return f(Q2K());
    case kQ3K: return f(Q3K());
    case kQ4K: return f(Q4K());
    case kQ5K: return f(Q5K());
    case kQ6K: return f(Q6K());
    case kIq4Nl: return f(Iq4Nl());
    case kIq4Xs: return f(Iq4Xs());
    case kMxfp4: return f(Mxfp4());
    default: return f(Nvfp4());
  }
}

// Where the run from column k on is read: where it lies, or a padded copy if it is the last of its row, whose vectors might
// reach beyond the weight.
struct RunBytes {
  alignas(64) uint8_t copy[kRun / 32 * 34 + 64];
  template <class B>
  inline const uint8_t *find(const uint8_t *row, int64_t k, int64_t columns) {
    const uint8_t *run = row + k / B::kColumns * B::kBlockBytes;
    if (B::kColumns == kRun || columns - k > kRun) return run;
    memcpy(copy, run, static_cast<size_t>((columns - k) / B::kColumns * B::kBlockBytes));
    return copy;
  }
};

}  // namespace
}  // namespace MB_ISA
}  // namespace mb
