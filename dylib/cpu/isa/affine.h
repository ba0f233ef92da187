// affine.h: how affine codes of each width are read: as vectors of kColumns columns, of which each lane of dot() sums
// kLaneColumns. `whole`: vectors that load() may take, of a row with that many columns. kTaken was subtracted from the codes.
#pragma once
#include "functions.h"

namespace mb {
namespace MB_ISA {
namespace {

// 4-bit codes as they are stored: an even column and an odd one in each byte.
struct Nibbles {
  static constexpr int kBits = 4, kColumns = 2 * kCodeBytes, kLaneColumns = 8, kTaken = 0;
  static inline int64_t whole(int64_t columns) { return columns / kColumns; }
  static inline vb load(const uint8_t *codes, int64_t v) { return load_bytes(codes + v * kCodeBytes); }
  static inline vb load_n(const uint8_t *codes, int64_t v, int64_t columns) {
    return load_bytes_n(codes + v * kCodeBytes, columns / 2);
  }
  static inline vi dot(vb c, const int8_t *high, const int8_t *low) {
    return dot_sixteen(low_nibbles(c), load_bytes(high), load_bytes(low), high_nibbles(c), load_bytes(high + kCodeBytes),
                       load_bytes(low + kCodeBytes));
  }
};

struct Bytes {
  static constexpr int kBits = 8, kColumns = kCodeBytes, kLaneColumns = 4, kTaken = kWideOffset;
  static inline int64_t whole(int64_t columns) { return columns / kColumns; }
  static inline vb load(const uint8_t *codes, int64_t v) { return offset_wide(load_bytes(codes + v * kCodeBytes)); }
  static inline vb load_n(const uint8_t *codes, int64_t v, int64_t columns) {
    return offset_wide(load_bytes_n(codes + v * kCodeBytes, columns));  // what lies beyond meets activations of zero
  }
  static inline vi dot(vb c, const int8_t *high, const int8_t *low) {
    return dot_sixteen_wide(c, load_bytes(high), load_bytes(low));
  }
};

template <int B>
struct Packed {
  static constexpr int kBits = B, kColumns = kCodeBytes, kLaneColumns = 4, kTaken = 0;
  static constexpr int kVectorBytes = kCodeBytes / 8 * B;
  static inline int64_t whole(int64_t columns) {
    const int64_t bytes = columns / 8 * B - kLoadSlack;
    return bytes > 0 ? bytes / kVectorBytes : 0;
  }
  static inline vb load(const uint8_t *codes, int64_t v) { return spread_codes<B>(codes + v * kVectorBytes); }
  static inline vb load_n(const uint8_t *codes, int64_t v, int64_t columns) {
    uint8_t rest[kVectorBytes + kLoadSlack] = {};
    memcpy(rest, codes + v * kVectorBytes, static_cast<size_t>(columns / 8 * B));
    return spread_codes<B>(rest);
  }
  static inline vi dot(vb c, const int8_t *high, const int8_t *low) { return dot_sixteen(c, load_bytes(high), load_bytes(low)); }
};

}  // namespace
}  // namespace MB_ISA
}  // namespace mb
