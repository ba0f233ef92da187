// Stored codes to numbers: bit streams to bytes, scales to f32, whole rows to f32.
// isa: scalar avx2 avx512 neon neon_dotprod
#include "functions.h"

namespace mb {
namespace MB_ISA {

namespace {

// Eight codes of B bits fill B bytes. They are spread over eight bytes by halving: four and four, two and two, one and one.
template <int B>
inline uint64_t spread(uint64_t x) {
  constexpr uint64_t one = (1ull << B) - 1;
  constexpr uint64_t two = (1ull << 2 * B) - 1, four = B == 8 ? 0xffffffffull : (1ull << 4 * B) - 1;
  x = (x & four) | (x >> 4 * B & four) << 32;
  constexpr uint64_t pair = two | two << 32;
  x = (x & pair) | (x >> 2 * B & pair) << 16;
  constexpr uint64_t each = one | one << 16 | one << 32 | one << 48;
  return (x & each) | (x >> B & each) << 8;
}

template <int B>
void unpack(const uint8_t *packed, int64_t count, uint8_t *codes) {
  for (int64_t i = 0; i < count / 8; i++) {
    uint64_t x = 0;
    __builtin_memcpy(&x, packed + i * B, B);
    x = spread<B>(x);
    __builtin_memcpy(codes + i * 8, &x, 8);
  }
}

template <class T>
void widen(const void *p, int64_t count, float *y) {
  const T *x = static_cast<const T *>(p);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(y + i, load(x + i));
  if (i < count) store_n(y + i, load_n(x + i, count - i), count - i);
}

constexpr int64_t kRun = 256;  // columns unpacked at a time

void dequantize_affine(const Weight &w, int64_t row, int64_t first, int64_t count, float *y) {
  uint8_t codes[kRun];
  float scales[kRun / 32], biases[kRun / 32];
  const int64_t scale_bytes = bytes_of_format(w.scale_format);
  for (int64_t k = 0; k < count; k += kRun) {
    const int64_t n = count - k < kRun ? count - k : kRun;
    const int64_t group = (first + k) / w.group, groups = (n + w.group - 1) / w.group;
    unpack_codes(w.row(row) + (first + k) * w.bits / 8, w.bits, (n + 7) / 8 * 8, codes);
    read_scales(w.scale_row(row) + group * scale_bytes, w.scale_format, groups, scales);
    read_scales(w.bias_row(row) + group * scale_bytes, w.scale_format, groups, biases);
    for (int64_t g = 0; g < groups; g++) {
      const int64_t last = (g + 1) * w.group < n ? (g + 1) * w.group : n;
      for (int64_t i = g * w.group; i < last; i++) y[k + i] = scales[g] * codes[i] + biases[g];
    }
  }
}

}  // namespace

void unpack_codes(const uint8_t *packed, uint32_t bits, int64_t count, uint8_t *codes) {
  switch (bits) {
    case 2: return unpack<2>(packed, count, codes);
    case 3: return unpack<3>(packed, count, codes);
    case 4: return unpack<4>(packed, count, codes);
    case 5: return unpack<5>(packed, count, codes);
    case 6: return unpack<6>(packed, count, codes);
    default: __builtin_memcpy(codes, packed, static_cast<size_t>(count));
  }
}

void read_scales(const uint8_t *p, Format format, int64_t count, float *y) {
  if (format == kBF16) return widen<BF16>(p, count, y);
  if (format == kF16) return widen<F16>(p, count, y);
  widen<float>(p, count, y);
}

void dequantize(const Weight &w, int64_t row, int64_t first, int64_t count, float *y) {
  if (w.format == kAffine) return dequantize_affine(w, row, first, count, y);
  read_scales(w.row(row) + first * bytes_of_format(w.format), w.format, count, y);
}

}  // namespace MB_ISA
}  // namespace mb
