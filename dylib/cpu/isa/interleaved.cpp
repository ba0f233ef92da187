// Weights in bands of sixteen rows (band_form.h): how they are made, and products with them.
// isa: scalar avx2 avx512 neon neon_dotprod
#include "../band_form.h"
#include "blocks.h"

namespace mb {
namespace MB_ISA {

namespace {

static_assert(tile_columns % kBandRows == 0, "a run's prefill rows and decode rows take the same chunks of a weight");
constexpr int kParts = kBandRows / kLanes;  // vectors that hold a number of each row
constexpr int64_t kAhead = 8 << 10;         // bytes between what is read and what is prefetched
constexpr int kWordBytes = 4 * kBandRows;   // of a word of each row

template <int I>
struct Index {
  static constexpr int value = I;
};
// body(Index<0>()), body(Index<1>()), …
template <int Count, int I = 0, class Body>
MB_INLINE void each_index(const Body &body) {
  if constexpr (I < Count) {
    body(Index<I>());
    each_index<Count, I + 1>(body);
  }
}

// ---- scales ----
// Each kind reads those of a block at p: scale(g, part) and minimum(g, part) of group g for the rows of a part.

template <bool Minimums>
struct HalfScales {
  static constexpr int kKinds = Minimums ? 2 : 1;
  const F16 *p;
  MB_INLINE HalfScales(const uint8_t *from, Format) : p(reinterpret_cast<const F16 *>(from)) {}
  MB_INLINE vf at(int g, int kind, int part) const { return load(p + (g * kKinds + kind) * kBandRows + part * kLanes); }
  MB_INLINE vf scale(int g, int part) const { return at(g, 0, part); }
  MB_INLINE vf minimum(int g, int part) const { return at(g, 1, part); }
};

struct AffineScales {
  const uint8_t *p;
  const bool brain;  // bf16, not f16
  MB_INLINE AffineScales(const uint8_t *from, Format format) : p(from), brain(format == kBF16) {}
  MB_INLINE vf at(int g, int kind, int part) const {
    const int64_t i = (2 * g + kind) * kBandRows + part * kLanes;
    return brain ? load(reinterpret_cast<const BF16 *>(p) + i) : load(reinterpret_cast<const F16 *>(p) + i);
  }
  MB_INLINE vf scale(int g, int part) const { return at(g, 0, part); }
  MB_INLINE vf minimum(int g, int part) const { return at(g, 1, part); }
};

template <bool Minimums>
struct TwoLevelScales {
  static constexpr int kKinds = Minimums ? 2 : 1;
  const int8_t *bytes;
  vf d[kParts], least[kParts];
  MB_INLINE TwoLevelScales(const uint8_t *p, Format) : bytes(reinterpret_cast<const int8_t *>(p + 64)) {
    const F16 *halves = reinterpret_cast<const F16 *>(p);
    for (int part = 0; part < kParts; part++) {
      d[part] = load(halves + part * kLanes);
      if (Minimums) least[part] = sub(zero(), load(halves + kBandRows + part * kLanes));
    }
  }
  MB_INLINE vf at(int g, int kind, int part) const { return load_codes(bytes + (g * kKinds + kind) * kBandRows + part * kLanes); }
  MB_INLINE vf scale(int g, int part) const { return mul(d[part], at(g, 0, part)); }
  MB_INLINE vf minimum(int g, int part) const { return mul(least[part], at(g, 1, part)); }
};

// ---- codes ----
// Eight columns of a part's rows: four and four. `more` holds the fifth bits of the columns from those of `codes` on.

struct Words {
  vb first, second;
};

template <int Bits>
struct BandCodes {
  static_assert(Bits == 4 || Bits == 5);
  static constexpr int kPairBytes = kWordBytes, kMoreBytes = (Bits - 4) * kWordBytes / 4;  // of eight columns

  // Pair P of columns, where P is even if `codes` begins with a multiple of sixteen columns.
  template <int P>
  static MB_INLINE Words words(const uint8_t *codes, const uint8_t *more, int part) {
    const vb bytes = load_bytes(codes + P * kWordBytes + part * kCodeBytes);
    const Words four{low_nibbles(bytes), high_nibbles(bytes)};
    if constexpr (Bits == 5) {
      const auto fifth = [more, part](int word) MB_ALWAYS_INLINE {
        uint64_t bits = 0;
        memcpy(&bits, more + 8 * word + part * kCodeBytes / 8, kCodeBytes / 8);
        return bit_bytes(bits);
      };
      return {either(four.first, fifth(2 * P)), either(four.second, fifth(2 * P + 1))};
    } else {
      return four;
    }
  }
  static MB_INLINE vi multiply(vi sum, vb codes, vb x) { return dot(sum, codes, x); }
};

template <>
struct BandCodes<6> {
  static constexpr int kPairBytes = 3 * kWordBytes / 2, kMoreBytes = 0;

  template <int P>
  static MB_INLINE Words words(const uint8_t *codes, const uint8_t *, int part) {
    const uint8_t *p = codes + P / 2 * 3 * kWordBytes + part * kCodeBytes;
    const vb a = load_bytes(p), b = load_bytes(p + kWordBytes), six = set1_byte(63);
    if constexpr (P % 2 == 0) return {both(a, six), both(b, six)};
    const vb c = load_bytes(p + 2 * kWordBytes), lowest = both(shift_right64<6>(a), set1_byte(3));
    return {both(c, six), merge(shift_right64<2>(c), 0x30, merge(shift_right64<4>(b), 0x0c, lowest))};
  }
  static MB_INLINE vi multiply(vi sum, vb codes, vb x) { return dot(sum, codes, x); }
};

template <>
struct BandCodes<8> {
  static constexpr int kPairBytes = 2 * kWordBytes, kMoreBytes = 0;

  template <int P>
  static MB_INLINE Words words(const uint8_t *codes, const uint8_t *, int part) {
    const uint8_t *p = codes + P * kPairBytes + part * kCodeBytes;
    return {offset_wide(load_bytes(p)), offset_wide(load_bytes(p + kWordBytes))};
  }
  static MB_INLINE vi multiply(vi sum, vb codes, vb x) { return dot_wide(sum, codes, x); }
};

// ---- formats ----

template <bool First, class A, class B>
struct Either {
  using Type = A;
};
template <class A, class B>
struct Either<false, A, B> {
  using Type = B;
};

// A code stands for scale * (code - kMiddle), or for scale * code + minimum where the form has minimums.

template <Format F, int Bits = 0, int Group = 0>
struct Band {
  static constexpr BandForm kForm = band_form(F, Bits, Group, kF16);
  static constexpr int kBits = kForm.bits, kGroup = kForm.group, kBlock = kForm.block(), kScaleBytes = kForm.scale_bytes(),
                       kBlockBytes = kForm.block_bytes();
  static constexpr bool kMinimums = kForm.minimums;
  static constexpr int kMiddle = kMinimums ? 0 : 1 << (kBits - 1), kTaken = kBits == 8 ? kWideOffset : 0;
  using Codes = BandCodes<kBits>;
  static constexpr int kMoreAt = kScaleBytes + kBlock / 8 * Codes::kPairBytes;  // in a block
  using PlainScales = typename Either<F == kAffine, AffineScales, HalfScales<kMinimums>>::Type;
  using Scales = typename Either<kForm.two_levels, TwoLevelScales<kMinimums>, PlainScales>::Type;
};

template <int Bits, class Body>
MB_INLINE void with_group(const Weight &w, const Body &body) {
  if (w.group == 32) body(Band<kAffine, Bits, 32>());
  else if (w.group == 64) body(Band<kAffine, Bits, 64>());
  else body(Band<kAffine, Bits, 128>());
}

// body(Band) of w's format.
template <class Body>
MB_INLINE void with_band(const Weight &w, const Body &body) {
  switch (w.format) {
    case kQ4_0: return body(Band<kQ4_0>());
    case kQ4_1: return body(Band<kQ4_1>());
    case kQ5_0: return body(Band<kQ5_0>());
    case kQ5_1: return body(Band<kQ5_1>());
    case kQ8_0: return body(Band<kQ8_0>());
    case kQ4K: return body(Band<kQ4K>());
    case kQ5K: return body(Band<kQ5K>());
    case kQ6K: return body(Band<kQ6K>());
    default: return w.bits == 8 ? with_group<8>(w, body) : with_group<4>(w, body);
  }
}

// ---- making ----

// The scales of a block of columns from k on, of row r of the band, to its place in the block at `to`.
template <class B>
void interleave_scales(const Weight &w, int64_t row, int64_t k, int64_t r, uint8_t *to) {
  constexpr int kinds = B::kMinimums ? 2 : 1, groups = B::kBlock / B::kGroup;
  const auto place = [&](int g, int kind, int64_t bytes) { return to + ((g * kinds + kind) * kBandRows + r) * bytes; };
  if (w.format == kAffine) {
    for (int g = 0; g < groups; g++) {
      memcpy(place(g, 0, 2), w.scale_row(row) + (k / B::kGroup + g) * 2, 2);
      memcpy(place(g, 1, 2), w.bias_row(row) + (k / B::kGroup + g) * 2, 2);
    }
    return;
  }
  if (!B::kForm.two_levels) {
    const int64_t block_bytes = w.row_bytes / (w.columns / 32);
    for (int g = 0; g < groups; g++) {
      const uint8_t *from = w.row(row) + (k / 32 + g) * block_bytes;
      for (int kind = 0; kind < kinds; kind++) memcpy(place(g, kind, 2), from + 2 * kind, 2);
    }
    return;
  }
  const uint8_t *from = w.row(row) + k / 256 * (w.row_bytes / (w.columns / 256));
  const auto bytes_of = [&](int kind, uint64_t bytes, int first) {
    for (int g = 0; g < 8; g++) place(first + g, kind, 1)[64] = static_cast<uint8_t>(bytes >> 8 * g);
  };
  if (w.format == kQ6K) {
    memcpy(to + 2 * r, from + 208, 2);
    for (int g = 0; g < 16; g += 8) bytes_of(0, word64_at(from + 192 + g), g);
    return;
  }
  for (int kind = 0; kind < 2; kind++) memcpy(to + 2 * (kind * kBandRows + r), from + 2 * kind, 2);
  const SixBits six = six_bits(from + 4);
  bytes_of(0, six.scales, 0);
  bytes_of(1, six.minimums, 0);
}

// Bit 4 of each of four bytes.
inline uint32_t fifth_of_each(uint32_t word) { return ((word >> 4 & 0x01010101) * 0x01020408) >> 24 & 15; }

// A byte a code, [rows of the band, kRun], to the codes of the block at `to` that begins with column b of the run.
template <int Bits, int Block>
void interleave_codes(const uint8_t (*codes)[kRun], int64_t b, uint8_t *to) {
  const auto put = [](uint8_t *place, int64_t r, uint32_t word) { memcpy(place + 4 * r, &word, 4); };
  if constexpr (Bits == 6) {
    for (int i = 0; i < Block; i += 16, to += 3 * kWordBytes) {
      for (int64_t r = 0; r < kBandRows; r++) {
        const uint8_t *from = codes[r] + b + i;
        const uint32_t last = word32_at(from + 12);
        for (int n = 0; n < 3; n++) put(to + n * kWordBytes, r, word32_at(from + 4 * n) | (last >> 2 * n & 0x03030303) << 6);
      }
    }
    return;
  }
  for (int pair = 0; pair < Block / 8; pair++) {
    uint8_t *more = to + Block / 8 * kWordBytes;
    uint64_t fifth[2] = {};
    for (int64_t r = 0; r < kBandRows; r++) {
      const uint32_t first = word32_at(codes[r] + b + 8 * pair), second = word32_at(codes[r] + b + 8 * pair + 4);
      if constexpr (Bits == 8) {
        put(to + 2 * pair * kWordBytes, r, first);
        put(to + (2 * pair + 1) * kWordBytes, r, second);
        continue;
      }
      put(to + pair * kWordBytes, r, (first & 0x0f0f0f0f) | (second & 0x0f0f0f0f) << 4);
      if (Bits == 5) {
        fifth[0] |= static_cast<uint64_t>(fifth_of_each(first)) << 4 * r;
        fifth[1] |= static_cast<uint64_t>(fifth_of_each(second)) << 4 * r;
      }
    }
    if (Bits == 5) memcpy(more + 16 * pair, fifth, 16);
  }
}

template <class B>
void interleave_band(const Weight &w, int64_t first, uint8_t *to) {
  for (int64_t k = 0; k < w.columns; k += kRun) {
    const int64_t columns = w.columns - k < kRun ? w.columns - k : kRun;
    uint8_t codes[kBandRows][kRun];
    for (int64_t r = 0; r < kBandRows; r++) {
      if (w.format == kAffine) {
        unpack_codes(w.row(first + r) + k * w.bits / 8, w.bits, columns, codes[r]);
        continue;
      }
      float scales[kRun / 16], biases[kRun / 16];
      unpack_run(w, first + r, k, columns, codes[r], scales, biases);
    }
    for (int64_t b = 0; b < columns; b += B::kBlock, to += B::kBlockBytes) {
      for (int64_t r = 0; r < kBandRows; r++) interleave_scales<B>(w, first + r, k + b, r, to);
      interleave_codes<B::kBits, B::kBlock>(codes, b, to + B::kScaleBytes);
    }
  }
}

// ---- products ----

// Activation rows that share each vector of codes, as many as registers hold; without vectors that is nothing but more code.
constexpr int kRowsTogether = MB_ISA_NUMBER == 0 || kLanes < 8 ? 1 : kLanes / 4;

// The rows of the band at p with R activation rows. A product's bits do not depend on R.
template <class B, int R>
void band_product(const uint8_t *p, const Weight &w, const QuantizedRow *a, float *out, int64_t out_stride) {
  using Codes = typename B::Codes;
  constexpr int kPairs = B::kGroup / 8, kUnrolled = kPairs < 4 ? kPairs : 4;
  const int8_t *high_codes[R], *low_codes[R];
  const float *sums[R];
  vf total[kParts][R], rest[kParts][R];  // of what codes stand for without their minimums or middles; of these
  for (int r = 0; r < R; r++) {
    high_codes[r] = a[r].high;
    low_codes[r] = a[r].low;
    sums[r] = a[r].sums;
    for (int part = 0; part < kParts; part++) total[part][r] = rest[part][r] = zero();
  }
  int64_t column = 0;
  for (int64_t k = 0; k < w.columns; k += kRun) {
    const int64_t last = w.columns - k < kRun ? w.columns : k + kRun;
    vf sum[kParts][R];
    for (int part = 0; part < kParts; part++) for (int r = 0; r < R; r++) sum[part][r] = zero();
    for (; column < last; p += B::kBlockBytes) {
      for (int byte = 0; byte < B::kBlockBytes; byte += 64) prefetch(p + kAhead + byte);
      const typename B::Scales scales(p, w.scale_format);
      const uint8_t *codes = p + B::kScaleBytes, *more = p + B::kMoreAt;
      for (int g = 0; g < B::kBlock / B::kGroup; g++) {
        vi high[kParts][R], low[kParts][R];
        for (int part = 0; part < kParts; part++) for (int r = 0; r < R; r++) high[part][r] = low[part][r] = zero_int();
        for (int q = 0; q < kPairs; q += kUnrolled, column += 8 * kUnrolled) {
          each_index<kUnrolled>([&](auto pair) MB_ALWAYS_INLINE {
            constexpr int P = decltype(pair)::value;
            for (int part = 0; part < kParts; part++) {
              const Words words = Codes::template words<P>(codes, more, part);
              for (int r = 0; r < R; r++) {
                const int8_t *h = high_codes[r] + column + 8 * P, *l = low_codes[r] + column + 8 * P;
                high[part][r] = Codes::multiply(high[part][r], words.first, broadcast4(h));
                high[part][r] = Codes::multiply(high[part][r], words.second, broadcast4(h + 4));
                low[part][r] = Codes::multiply(low[part][r], words.first, broadcast4(l));
                low[part][r] = Codes::multiply(low[part][r], words.second, broadcast4(l + 4));
              }
            }
          });
          codes += kUnrolled * Codes::kPairBytes;
          more += kUnrolled * Codes::kMoreBytes;
        }
        for (int part = 0; part < kParts; part++) {
          const vf scale = scales.scale(g, part);
          vf offset = scale;
          if constexpr (B::kMinimums) {
            offset = scales.minimum(g, part);
            if (B::kTaken) offset = fma(scale, set1(B::kTaken), offset);
          }
          for (int r = 0; r < R; r++) {
            const vf product = fma(to_float(high[part][r]), set1(128.0f), to_float(low[part][r]));
            sum[part][r] = fma(product, scale, sum[part][r]);
            rest[part][r] = fma(offset, set1(*sums[r]), rest[part][r]);
          }
        }
        for (int r = 0; r < R; r++) sums[r]++;
      }
    }
    for (int part = 0; part < kParts; part++) {
      for (int r = 0; r < R; r++) total[part][r] = fma(sum[part][r], set1(a[r].scales[k / kRun]), total[part][r]);
    }
  }
  for (int part = 0; part < kParts; part++) {
    for (int r = 0; r < R; r++) {
      const vf factor = set1(B::kMinimums ? 1.0f : static_cast<float>(B::kTaken - B::kMiddle));
      store(out + r * out_stride + part * kLanes, fma(rest[part][r], factor, total[part][r]));
    }
  }
}

template <class B, int R>
inline int64_t bands_with_rows(const Weight &w, const uint8_t *p, const QuantizedRow *a, int64_t r, int64_t rows, float *out,
                               int64_t out_stride) {
  for (; r + R <= rows; r += R) band_product<B, R>(p, w, a + r, out + r * out_stride, out_stride);
  return r;
}

// ---- single rows ----

// Scale or minimum of group g for row r of the band whose block is at p.
template <class B>
inline float scale_at(const uint8_t *p, const Weight &w, int g, int kind, int64_t r) {
  const int64_t i = (g * (B::kMinimums ? 2 : 1) + kind) * kBandRows + r;
  F16 half;
  if constexpr (B::kForm.two_levels) {
    memcpy(&half, p + 2 * (kind * kBandRows + r), 2);
    const float byte = static_cast<int8_t>(p[64 + i]);
    return (kind == 0 ? to_float(half) : -to_float(half)) * byte;
  }
  memcpy(&half, p + 2 * i, 2);
  return w.scale_format == kBF16 ? to_float(BF16{half.bits}) : to_float(half);
}

template <class B>
inline uint32_t code_at(const uint8_t *p, int64_t column, int64_t r) {
  const int64_t word = column / 4, byte = 4 * r + column % 4;
  const uint8_t *codes = p + B::kScaleBytes, *more = p + B::kMoreAt;
  if (B::kBits == 8) return codes[word * kWordBytes + byte];
  if (B::kBits == 6) {
    const uint8_t *three = codes + word / 4 * 3 * kWordBytes + byte;
    if (word % 4 < 3) return three[word % 4 * kWordBytes] & 63;
    return three[0] >> 6 | three[kWordBytes] >> 6 << 2 | three[2 * kWordBytes] >> 6 << 4;
  }
  const uint32_t four = codes[word / 2 * kWordBytes + byte] >> word % 2 * 4 & 15;
  if (B::kBits == 5) return four | (more[8 * word + byte / 8] >> byte % 8 & 1) << 4;
  return four;
}

}  // namespace

void dequantize_of_bands(const Weight &w, int64_t row, int64_t first, int64_t count, float *y) {
  with_band(w, [&](auto band) {
    using B = decltype(band);
    const uint8_t *p = w.interleaved + row / kBandRows * (w.columns / B::kBlock * B::kBlockBytes);
    const int64_t r = row % kBandRows;
    for (int64_t k = first; k < first + count; k += B::kGroup, y += B::kGroup) {
      const uint8_t *block = p + k / B::kBlock * B::kBlockBytes;
      const int g = static_cast<int>(k % B::kBlock / B::kGroup);
      const float scale = scale_at<B>(block, w, g, 0, r);
      const float bias = B::kMinimums ? scale_at<B>(block, w, g, 1, r) : -B::kMiddle * scale;
      for (int64_t i = 0; i < B::kGroup && k + i < first + count; i++) {
        y[i] = scale * static_cast<float>(code_at<B>(block, k % B::kBlock + i, r)) + bias;
      }
    }
  });
}

void interleave(const Weight &w, int64_t first, int64_t last, uint8_t *to) {
  with_band(w, [&](auto band) {
    using B = decltype(band);
    for (int64_t i = first; i < last; i++, to += w.columns / B::kBlock * B::kBlockBytes) interleave_band<B>(w, i * kBandRows, to);
  });
}

void product_bands(const Weight &w, int64_t first, int64_t last, const QuantizedRow *a, int64_t rows, float *out, int64_t out_stride) {
  with_band(w, [&](auto band) {
    using B = decltype(band);
    const int64_t band_bytes = w.columns / B::kBlock * B::kBlockBytes;
    for (int64_t n = first; n < last; n += kBandRows) {
      const uint8_t *p = w.interleaved + n / kBandRows * band_bytes;
      int64_t r = 0;
      if constexpr (kRowsTogether >= 4) r = bands_with_rows<B, 4>(w, p, a, r, rows, out + n - first, out_stride);
      if constexpr (kRowsTogether >= 2) r = bands_with_rows<B, 2>(w, p, a, r, rows, out + n - first, out_stride);
      bands_with_rows<B, 1>(w, p, a, r, rows, out + n - first, out_stride);
    }
  });
}

void pack_tile_of_bands(const Weight &w, int64_t row, float *scales, float *biases, uint8_t *codes) {
  const int part = static_cast<int>(row % kBandRows / kLanes);
  with_band(w, [&](auto band) {
    using B = decltype(band);
    const vf middle = set1(static_cast<float>(1 << (B::kBits - 1)));
    const uint8_t *p = w.interleaved + row / kBandRows * (w.columns / B::kBlock * B::kBlockBytes);
    for (int64_t b = 0; b < w.columns; b += B::kBlock, p += B::kBlockBytes) {
      const typename B::Scales of_block(p, w.scale_format);
      for (int g = 0; g < B::kBlock / B::kGroup; g++, scales += tile_columns, biases += tile_columns) {
        const vf scale = of_block.scale(g, part);
        store(scales, scale);
        if constexpr (B::kMinimums) store(biases, fma(scale, middle, of_block.minimum(g, part)));
        else store(biases, zero());  // the middle stands for zero
      }
      const uint8_t *from = p + B::kScaleBytes, *more = p + B::kMoreAt;
      for (int pair = 0; pair < B::kBlock / 8; pair += 2, from += 2 * B::Codes::kPairBytes, more += 2 * B::Codes::kMoreBytes) {
        each_index<2>([&](auto index) MB_ALWAYS_INLINE {
          constexpr int P = decltype(index)::value;
          if constexpr (B::kBits == 4) {  // a word of a tile holds the same eight codes
            store_bytes(codes, load_bytes(from + P * kWordBytes + part * kCodeBytes));
            codes += 4 * tile_columns;
          } else {
            const Words two = B::Codes::template words<P>(from, more, part);
            store_bytes(codes, two.first);
            store_bytes(codes + 4 * tile_columns, two.second);
            codes += 8 * tile_columns;
          }
        });
      }
    }
  });
}

}  // namespace MB_ISA
}  // namespace mb
