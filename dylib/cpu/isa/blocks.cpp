// Blocks of GGUF and the floating-point modes of MLX as codes of one byte each with f32 scales and biases: w = scale * code +
// bias. Products of scale and code are exact in f32, and where a format has no minimum the bias is -middle * scale, so that
// the sum is exact too: a weight is rounded at most once, as its format says.
// isa: scalar avx2 avx512 neon neon_dotprod
#include "functions.h"

namespace mb {
namespace MB_ISA {

namespace {

constexpr int kBytes = 4 * kLanes;  // of a vector

// What 4-bit codes stand for, with the middle of the range of bytes added.
alignas(16) constexpr uint8_t kIq4Codes[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
// e2m1 numbers doubled, and 16 added.
alignas(16) constexpr uint8_t kE2m1Codes[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};

inline float half_at(const uint8_t *p) {
  F16 h;
  memcpy(&h, p, 2);
  return to_float(h);
}

// The half at byte `at` of each of n blocks, n at most kRun / 32.
template <int B>
inline void halves(const uint8_t *blocks, int64_t n, int64_t at, float *y) {
  F16 h[kRun / 32] = {};
  for (int64_t i = 0; i < n; i++) memcpy(h + i, blocks + i * B + at, 2);
  read_scales(reinterpret_cast<const uint8_t *>(h), kF16, n, y);
}

inline void centre(const float *scales, int64_t n, float middle, float *biases) {
  for (int64_t i = 0; i < n; i++) biases[i] = -middle * scales[i];
}

// Sixteen bytes to 32 codes: low halves, then high halves.
inline void halves_of_bytes(const uint8_t *q, uint8_t *codes) {
  for (int i = 0; i < 16; i++) codes[i] = q[i] & 15;
  for (int i = 0; i < 16; i++) codes[16 + i] = q[i] >> 4;
}

// Adds 16 to code i of 32 where bit i is set. Eight bits are spread over eight bytes at a time.
inline void add_fifth_bits(uint8_t *codes, const uint8_t *bits) {
  for (int i = 0; i < 4; i++) {
    uint64_t x = bits[i] * 0x0101010101010101ull & 0x8040201008040201ull, c;
    x = (x + 0x7f7f7f7f7f7f7f7full) >> 3 & 0x1010101010101010ull;
    memcpy(&c, codes + 8 * i, 8);
    c |= x;
    memcpy(codes + 8 * i, &c, 8);
  }
}

inline void look_up(const uint8_t *table, int64_t count, uint8_t *codes) {
  for (int64_t i = 0; i < count; i += kBytes) store_bytes(codes + i, lookup16(table, load_bytes(codes + i)));
}

// Each reads `count` columns of blocks that begin at b.

template <int B, int At>
inline void nibble_blocks(const uint8_t *b, int64_t count, uint8_t *codes) {
  for (int64_t i = 0; i < count / 32; i++) halves_of_bytes(b + i * B + At, codes + 32 * i);
}

void q4_0(const uint8_t *b, int64_t count, uint8_t *codes, float *scales, float *biases) {
  halves<18>(b, count / 32, 0, scales);
  centre(scales, count / 32, 8, biases);
  nibble_blocks<18, 2>(b, count, codes);
}

void q4_1(const uint8_t *b, int64_t count, uint8_t *codes, float *scales, float *biases) {
  halves<20>(b, count / 32, 0, scales);
  halves<20>(b, count / 32, 2, biases);
  nibble_blocks<20, 4>(b, count, codes);
}

void q5_0(const uint8_t *b, int64_t count, uint8_t *codes, float *scales, float *biases) {
  halves<22>(b, count / 32, 0, scales);
  centre(scales, count / 32, 16, biases);
  nibble_blocks<22, 6>(b, count, codes);
  for (int64_t i = 0; i < count / 32; i++) add_fifth_bits(codes + 32 * i, b + i * 22 + 2);
}

void q5_1(const uint8_t *b, int64_t count, uint8_t *codes, float *scales, float *biases) {
  halves<24>(b, count / 32, 0, scales);
  halves<24>(b, count / 32, 2, biases);
  nibble_blocks<24, 8>(b, count, codes);
  for (int64_t i = 0; i < count / 32; i++) add_fifth_bits(codes + 32 * i, b + i * 24 + 4);
}

void q8_0(const uint8_t *b, int64_t count, uint8_t *codes, float *scales, float *biases) {
  halves<34>(b, count / 32, 0, scales);
  centre(scales, count / 32, 128, biases);
  for (int64_t i = 0; i < count / 32; i++) {
    for (int j = 0; j < 32; j++) codes[32 * i + j] = b[34 * i + 2 + j] ^ 0x80;
  }
}

void iq4_nl(const uint8_t *b, int64_t count, uint8_t *codes, float *scales, float *biases) {
  halves<18>(b, count / 32, 0, scales);
  centre(scales, count / 32, 128, biases);
  nibble_blocks<18, 2>(b, count, codes);
  look_up(kIq4Codes, count, codes);
}

// The blocks of 256.

// 2-bit codes: four layers of 32 columns in each 32 bytes.
inline void two_bits(const uint8_t *q, uint8_t *codes) {
  for (int n = 0; n < 2; n++, q += 32, codes += 128) {
    for (int i = 0; i < 32; i++) codes[i] = q[i] & 3;
    for (int i = 0; i < 32; i++) codes[32 + i] = q[i] >> 2 & 3;
    for (int i = 0; i < 32; i++) codes[64 + i] = q[i] >> 4 & 3;
    for (int i = 0; i < 32; i++) codes[96 + i] = q[i] >> 6;
  }
}

// 4-bit codes: 32 low halves, then 32 high halves in each 32 bytes.
inline void four_bits(const uint8_t *q, uint8_t *codes) {
  for (int n = 0; n < 4; n++, q += 32, codes += 64) {
    for (int i = 0; i < 32; i++) codes[i] = q[i] & 15;
    for (int i = 0; i < 32; i++) codes[32 + i] = q[i] >> 4;
  }
}

// Eight 6-bit scales and minimums in twelve bytes.
inline void six_bit_scales(const uint8_t *packed, float d, float least, float *scales, float *biases) {
  for (int j = 0; j < 4; j++) {
    const int high = packed[j] >> 6 << 4, high_minimum = packed[j + 4] >> 6 << 4;
    scales[j] = d * static_cast<float>(packed[j] & 63);
    biases[j] = -least * static_cast<float>(packed[j + 4] & 63);
    scales[j + 4] = d * static_cast<float>((packed[j + 8] & 15) | high);
    biases[j + 4] = -least * static_cast<float>(packed[j + 8] >> 4 | high_minimum);
  }
}

void q2_k(const uint8_t *b, int64_t, uint8_t *codes, float *scales, float *biases) {
  const float d = half_at(b + 80), least = half_at(b + 82);
  for (int j = 0; j < 16; j++) {
    scales[j] = d * static_cast<float>(b[j] & 15);
    biases[j] = -least * static_cast<float>(b[j] >> 4);
  }
  two_bits(b + 16, codes);
}

void q3_k(const uint8_t *b, int64_t, uint8_t *codes, float *scales, float *biases) {
  const float d = half_at(b + 108);
  const uint8_t *packed = b + 96;
  for (int j = 0; j < 16; j++) {
    const int low = j < 8 ? packed[j] & 15 : packed[j - 8] >> 4, high = packed[8 + j % 4] >> 2 * (j / 4) & 3;
    scales[j] = d * static_cast<float>((low | high << 4) - 32);
  }
  centre(scales, 16, 4, biases);
  two_bits(b + 32, codes);
  for (int n = 0; n < 8; n++) {
    for (int i = 0; i < 32; i++) codes[32 * n + i] |= static_cast<uint8_t>((b[i] >> n & 1) << 2);
  }
}

void q4_k(const uint8_t *b, int64_t, uint8_t *codes, float *scales, float *biases) {
  six_bit_scales(b + 4, half_at(b), half_at(b + 2), scales, biases);
  four_bits(b + 16, codes);
}

void q5_k(const uint8_t *b, int64_t, uint8_t *codes, float *scales, float *biases) {
  six_bit_scales(b + 4, half_at(b), half_at(b + 2), scales, biases);
  four_bits(b + 48, codes);
  for (int n = 0; n < 8; n++) {
    for (int i = 0; i < 32; i++) codes[32 * n + i] |= static_cast<uint8_t>((b[16 + i] >> n & 1) << 4);
  }
}

void q6_k(const uint8_t *b, int64_t, uint8_t *codes, float *scales, float *biases) {
  const float d = half_at(b + 208);
  for (int j = 0; j < 16; j++) scales[j] = d * static_cast<float>(static_cast<int8_t>(b[192 + j]));
  centre(scales, 16, 32, biases);
  for (int n = 0; n < 2; n++, codes += 128) {
    const uint8_t *low = b + 64 * n, *high = b + 128 + 32 * n;
    for (int i = 0; i < 32; i++) codes[i] = static_cast<uint8_t>((low[i] & 15) | (high[i] & 3) << 4);
    for (int i = 0; i < 32; i++) codes[32 + i] = static_cast<uint8_t>((low[32 + i] & 15) | (high[i] >> 2 & 3) << 4);
    for (int i = 0; i < 32; i++) codes[64 + i] = static_cast<uint8_t>(low[i] >> 4 | (high[i] >> 4 & 3) << 4);
    for (int i = 0; i < 32; i++) codes[96 + i] = static_cast<uint8_t>(low[32 + i] >> 4 | high[i] >> 6 << 4);
  }
}

void iq4_xs(const uint8_t *b, int64_t, uint8_t *codes, float *scales, float *biases) {
  const float d = half_at(b);
  const int high = b[2] | b[3] << 8;
  for (int j = 0; j < 8; j++) {
    scales[j] = d * static_cast<float>(((b[4 + j / 2] >> 4 * (j % 2) & 15) | (high >> 2 * j & 3) << 4) - 32);
    halves_of_bytes(b + 8 + 16 * j, codes + 32 * j);
  }
  centre(scales, 8, 128, biases);
  look_up(kIq4Codes, 256, codes);
}

using Unpack = void (*)(const uint8_t *, int64_t, uint8_t *, float *, float *);

struct Layout {
  Unpack unpack;
  int columns, bytes;  // of a block
};

Layout layout_of(Format format) {
  switch (format) {
    case kQ4_0: return {q4_0, 32, 18};
    case kQ4_1: return {q4_1, 32, 20};
    case kQ5_0: return {q5_0, 32, 22};
    case kQ5_1: return {q5_1, 32, 24};
    case kQ8_0: return {q8_0, 32, 34};
    case kQ2K: return {q2_k, 256, 84};
    case kQ3K: return {q3_k, 256, 110};
    case kQ4K: return {q4_k, 256, 144};
    case kQ5K: return {q5_k, 256, 176};
    case kQ6K: return {q6_k, 256, 210};
    case kIq4Nl: return {iq4_nl, 32, 18};
    default: return {iq4_xs, 256, 136};
  }
}

// 2^(byte - 127)
inline float e8m0(uint32_t byte) { return float_from_bits(byte == 0 ? 0x00400000u : byte << 23); }

inline float e4m3(uint32_t byte) {
  if ((byte & 0x7f) == 0x7f) return float_from_bits(0x7fc00000);
  return 256.0f * to_float(F16{static_cast<uint16_t>((byte & 0x80) << 8 | (byte & 0x7f) << 7)});
}

}  // namespace

void unpack_run(const Weight &w, int64_t row, int64_t first, int64_t count, uint8_t *codes, float *scales, float *biases) {
  if (is_gguf(w.format)) {
    const Layout layout = layout_of(w.format);
    return layout.unpack(w.row(row) + first / layout.columns * layout.bytes, count, codes, scales, biases);
  }
  const uint8_t *bytes = w.scale_row(row) + first / w.group;
  const int64_t groups = count / w.group;
  for (int64_t g = 0; g < groups; g++) scales[g] = 0.5f * (w.format == kMxfp4 ? e8m0(bytes[g]) : e4m3(bytes[g]));
  centre(scales, groups, 16, biases);
  unpack_codes(w.row(row) + first / 2, 4, count, codes);
  look_up(kE2m1Codes, count, codes);
}

void dequantize_mxfp8(const Weight &w, int64_t row, int64_t first, int64_t count, float *y) {
  const uint8_t *codes = w.row(row) + first, *scales = w.scale_row(row) + first / w.group;
  for (int64_t i = 0; i < count; i++) y[i] = e4m3(codes[i]) * e8m0(scales[i / w.group]);
}

}  // namespace MB_ISA
}  // namespace mb
