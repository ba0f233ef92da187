// Stored codes to numbers: bit streams to bytes, scales to f32, whole rows to f32.
// isa: scalar avx2 avx512 neon neon_dotprod
#include "functions.h"

namespace mb {
namespace MB_ISA {

namespace {

template <int B>
void unpack(const uint8_t *packed, int64_t count, uint8_t *codes) {
  constexpr int columns = 4 * kLanes, bytes = columns / 8 * B;
  int64_t i = 0;
  for (; count - i >= columns && (count - i) / 8 * B >= bytes + kLoadSlack; i += columns) {
    store_bytes(codes + i, spread_codes<B>(packed + i / 8 * B));
  }
  for (; i < count; i += columns) {
    const int64_t n = count - i < columns ? count - i : columns;
    uint8_t rest[bytes + kLoadSlack] = {}, out[columns];
    memcpy(rest, packed + i / 8 * B, static_cast<size_t>(n / 8 * B));
    store_bytes(out, spread_codes<B>(rest));
    memcpy(codes + i, out, static_cast<size_t>(n));
  }
}

template <class T>
void widen(const void *p, int64_t count, float *y) {
  const T *x = static_cast<const T *>(p);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(y + i, load(x + i));
  if (i < count) store_n(y + i, load_n(x + i, count - i), count - i);
}

void dequantize_codes(const Weight &w, int64_t row, int64_t first, int64_t count, float *y) {
  uint8_t codes[kRun] = {};
  float scales[kRun / 16], biases[kRun / 16];
  for (int64_t k = 0; k < count; k += kRun) {
    const int64_t n = count - k < kRun ? count - k : kRun;
    unpack_run(w, row, first + k, n, codes, scales, biases);
    for (int64_t g = 0; g < n / w.group; g++) {
      float *to = y + k + g * w.group;
      for (int64_t i = 0; i < w.group; i++) to[i] = scales[g] * codes[g * w.group + i] + biases[g];
    }
  }
}

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
  if (w.interleaved) return dequantize_of_bands(w, row, first, count, y);
  if (w.format == kAffine) return dequantize_affine(w, row, first, count, y);
  if (w.format == kMxfp8) return dequantize_mxfp8(w, row, first, count, y);
  if (!is_plain(w.format)) return dequantize_codes(w, row, first, count, y);
  read_scales(w.row(row) + first * bytes_of_format(w.format), w.format, count, y);
}

}  // namespace MB_ISA
}  // namespace mb
