// simd_avx2.h: AVX2, FMA and F16C.
#pragma once
#include "simd_x86.h"

namespace mb {
namespace MB_ISA {

constexpr int kLanes = 8;
// Rows and columns of a matrix product that are held in registers at once.
constexpr int kTileRows = 3, kTileColumns = 4;

using vf = __m256;

static inline __m256i lane_mask(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
// The first n 16-bit numbers, 0 < n <= 8, the others zero.
static inline __m128i load_16bit(const void *p, int64_t n) {
  uint16_t words[8] = {};
  for (int64_t i = 0; i < n; i++) words[i] = static_cast<const uint16_t *>(p)[i];
  return _mm_loadu_si128(reinterpret_cast<const __m128i *>(words));
}
static inline vf from_bf16(__m128i a) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(a), 16)); }

static inline vf set1(float x) { return _mm256_set1_ps(x); }
static inline vf zero() { return _mm256_setzero_ps(); }
static inline vf load(const float *p) { return _mm256_loadu_ps(p); }
static inline vf load(const F16 *p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))); }
static inline vf load(const BF16 *p) { return from_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))); }
// The first n lanes, 0 < n <= kLanes, the others zero; reads nothing else.
static inline vf load_n(const float *p, int64_t n) { return _mm256_maskload_ps(p, lane_mask(n)); }
static inline vf load_n(const F16 *p, int64_t n) { return _mm256_cvtph_ps(load_16bit(p, n)); }
static inline vf load_n(const BF16 *p, int64_t n) { return from_bf16(load_16bit(p, n)); }
static inline void store(float *p, vf a) { _mm256_storeu_ps(p, a); }
static inline void store_n(float *p, vf a, int64_t n) { _mm256_maskstore_ps(p, lane_mask(n), a); }
static inline vf add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf div(vf a, vf b) { return _mm256_div_ps(a, b); }
static inline vf fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
// b where either is NaN.
static inline vf max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf min(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline vf absolute(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
static inline vf round(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline __m128i half_bits(vf a) {
  const vf limit = set1(65504.0f);
  return _mm256_cvtps_ph(max(sub(zero(), limit), min(limit, a)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline void store(F16 *p, vf a) { _mm_storeu_si128(reinterpret_cast<__m128i *>(p), half_bits(a)); }
static inline void store_n(F16 *p, vf a, int64_t n) {
  F16 words[8];
  store(words, a);
  for (int64_t i = 0; i < n; i++) p[i] = words[i];
}
// 2^a for whole a in [-126, 127].
static inline vf power_of_two(vf a) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(a), _mm256_set1_epi32(127)), 23));
}
// a < b ? x : y, lane by lane.
static inline vf select_less(vf a, vf b, vf x, vf y) { return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ)); }
// Lanes are summed as a tree: halves first.
static inline float reduce_add(vf a) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
static inline float reduce_max(vf a) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

// ---- bytes ----
// A vector of bytes has 4 * kLanes; lane i of a dot product sums the products of bytes 4 i … 4 i + 3.

// Codes of 8 bits are dotted after this was taken from them; the weight's bias makes up for it.
constexpr int kWideOffset = 128;
// Rows and vectors of columns of an int8 product that are held in registers at once.
constexpr int kInt8Rows = 4, kInt8Vectors = 2;

using vi = __m256i;
using vb = __m256i;

static inline vi set1_int(int32_t x) { return _mm256_set1_epi32(x); }
static inline vi zero_int() { return _mm256_setzero_si256(); }
static inline vf to_float(vi a) { return _mm256_cvtepi32_ps(a); }
static inline vb load_bytes(const void *p) { return _mm256_loadu_si256(static_cast<const __m256i *>(p)); }
static inline vb load_bytes_n(const void *p, int64_t n) {
  uint8_t bytes[32] = {};
  memcpy(bytes, p, static_cast<size_t>(n));
  return load_bytes(bytes);
}
static inline void store_bytes(uint8_t *p, vb a) { _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), a); }
static inline vb broadcast4(const void *p) {
  int32_t word;
  memcpy(&word, p, 4);
  return _mm256_set1_epi32(word);
}
static inline vb low_nibbles(vb a) { return _mm256_and_si256(a, _mm256_set1_epi8(15)); }
static inline vb high_nibbles(vb a) { return low_nibbles(_mm256_srli_epi16(a, 4)); }
static inline vb offset_wide(vb a) { return _mm256_xor_si256(a, _mm256_set1_epi8(-128)); }
// Codes of blocks (blocks.h), for the columns [column, column + bytes of a vector) of a run; what lies above the bits of a code is
// left for a mask. layers: 32 columns for each B bits of 32 bytes, moved to bit To. halves_of_blocks, bytes_of_blocks: sixteen bytes of low, then
// high halves, or 32 bytes, for the 32 columns of each block, S bytes apart. fifth_bits: 16 where the column's bit of 32 is set;
// bit_bytes: where a bit of as many as a vector has bytes is.
template <int B, int To = 0>
static inline vb layers(const uint8_t *p, int column) {
  return _mm256_slli_epi64(_mm256_srl_epi64(load_bytes(p), _mm_cvtsi32_si128(B * (column / 32))), To);
}
template <int S>
static inline vb halves_of_blocks(const uint8_t *p, int column) {
  const vb twice = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p + column / 32 * S)));
  return _mm256_srlv_epi64(twice, _mm256_setr_epi64x(0, 0, 4, 4));
}
// bytes_of_halves: of blocks of S bytes that begin at p, the sixteen bytes from byte At on of each; two for a vector.
template <int S, int At>
static inline vb bytes_of_halves(const uint8_t *p) {
  const auto half = [p](int at) { return _mm_loadu_si128(reinterpret_cast<const __m128i *>(p + at)); };
  return _mm256_inserti128_si256(_mm256_castsi128_si256(half(At)), half(S + At), 1);
}
template <int S>
static inline vb bytes_of_blocks(const uint8_t *p, int column) { return load_bytes(p + column / 32 * S); }
static inline vb bit_bytes(uint64_t bits) {
  const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ull));
  const __m256i found = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int32_t>(bits)), spread), bit);
  return _mm256_and_si256(_mm256_cmpeq_epi8(found, bit), _mm256_set1_epi8(16));
}
template <int S>
static inline vb fifth_bits(const uint8_t *p, int column) {
  uint32_t word;
  memcpy(&word, p + column / 32 * S, 4);
  return bit_bytes(word);
}
static inline vb set1_byte(int x) { return _mm256_set1_epi8(static_cast<char>(x)); }
static inline vb flip(vb a, int bits) { return _mm256_xor_si256(a, set1_byte(bits)); }
// Byte a[i] of a table of 16, for a[i] below 16.
static inline vb lookup16(const uint8_t *table, vb a) {
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i *>(table))), a);
}
// Codes of at most 7 bits times signed activations: the pair sums stay below 2 * 127 * 127, so nothing saturates.
static inline vi dot(vi sum, vb codes, vb x) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), _mm256_set1_epi16(1)));
}
// Codes of 8 bits from which kWideOffset was taken. Their sign goes to the activation, whose least value is -127: the pair
// sums stay within 2 * 128 * 127 = 32512.
static inline vi dot_wide(vi sum, vb codes, vb x) {
  return dot(sum, _mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes));
}
// Codes times activations of sixteen bits, 128 * high + low; of two vectors of codes of five bits at most together. Two products of
// 4-bit codes, or one of any other, stay within sixteen bits.
static inline vi join_sixteen(__m256i high, __m256i low) {
  return _mm256_add_epi32(_mm256_madd_epi16(high, _mm256_set1_epi16(128)), _mm256_madd_epi16(low, _mm256_set1_epi16(1)));
}
static inline vi dot_sixteen(vb codes, vb high, vb low) {
  return join_sixteen(_mm256_maddubs_epi16(codes, high), _mm256_maddubs_epi16(codes, low));
}
static inline vi dot_sixteen(vb codes, vb high, vb low, vb codes2, vb high2, vb low2) {
  const __m256i highs = _mm256_add_epi16(_mm256_maddubs_epi16(codes, high), _mm256_maddubs_epi16(codes2, high2));
  return join_sixteen(highs, _mm256_add_epi16(_mm256_maddubs_epi16(codes, low), _mm256_maddubs_epi16(codes2, low2)));
}
static inline vi dot_sixteen_wide(vb codes, vb high, vb low) {
  return dot_sixteen(_mm256_abs_epi8(codes), _mm256_sign_epi8(high, codes), _mm256_sign_epi8(low, codes));
}
static inline void prefetch(const void *p) { _mm_prefetch(static_cast<const char *>(p), _MM_HINT_T1); }  // to L2
// Whole numbers in [-127, 127] to bytes.
static inline void store_codes(int8_t *p, vf a) {
  const __m256i words = _mm256_cvtps_epi32(a);
  const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i *>(p), _mm_packs_epi16(halves, halves));
}
static inline vf load_codes(const int8_t *p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p))));
}
// Lane i is p[i / N].
template <int N>
static inline vf spread(const float *p) {
  if (N >= 8) return set1(p[0]);
  return _mm256_set_m128(_mm_set1_ps(p[1]), _mm_set1_ps(p[0]));
}

// ---- 64-bit lanes of a vector of bytes ----

static inline vb set1_64(uint64_t x) { return _mm256_set1_epi64x(static_cast<long long>(x)); }
static inline vb both(vb a, vb b) { return _mm256_and_si256(a, b); }
static inline vb either(vb a, vb b) { return _mm256_or_si256(a, b); }
// The bits of a that the mask has, and those of b.
static inline vb merge(vb a, int mask, vb b) { return either(both(a, set1_byte(mask)), b); }
template <int N>
static inline vb shift_left64(vb a) { return _mm256_slli_epi64(a, N); }
template <int N>
static inline vb shift_right64(vb a) { return _mm256_srli_epi64(a, N); }
// Lane i gets bytes B i … B i + B - 1 of p and whatever follows; reads up to kLoadSlack bytes beyond the last lane's.
constexpr int kLoadSlack = 16;
template <int B>
static inline vb load_strided(const uint8_t *p) {
  const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i *>(p));
  const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i *>(p + 2 * B));
  const __m128i order = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, B, B + 1, B + 2, B + 3, B + 4, B + 5, B + 6, B + 7);
  return _mm256_shuffle_epi8(_mm256_set_m128i(high, low), _mm256_broadcastsi128_si256(order));
}

// ---- words: kLanes vectors of kLanes 32-bit words as a square ----

static inline vb as_bytes(vf a) { return _mm256_castps_si256(a); }
static inline void transpose(vb *a) {
  vb t[8];
  for (int i = 0; i < 4; i++) {
    t[2 * i] = _mm256_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
  }
  for (int i = 0; i < 2; i++) {  // a[4 i + j]: words j and 4 + j of rows 4 i … 4 i + 3
    a[4 * i] = _mm256_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    a[4 * i + 1] = _mm256_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    a[4 * i + 2] = _mm256_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    a[4 * i + 3] = _mm256_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  for (int j = 0; j < 4; j++) {
    t[j] = _mm256_permute2x128_si256(a[j], a[4 + j], 0x20);
    t[4 + j] = _mm256_permute2x128_si256(a[j], a[4 + j], 0x31);
  }
  for (int i = 0; i < 8; i++) a[i] = t[i];
}

}  // namespace MB_ISA
}  // namespace mb
