// simd_avx512.h: AVX-512 F, BW, DQ, VL and VNNI.
#pragma once
#include "simd_x86.h"

namespace mb {
namespace MB_ISA {

constexpr int kLanes = 16;
// Rows and columns of a matrix product that are held in registers at once.
constexpr int kTileRows = 4, kTileColumns = 5;

using vf = __m512;

static inline __mmask16 lane_mask(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }
static inline vf from_bf16(__m256i a) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(a), 16)); }

static inline vf set1(float x) { return _mm512_set1_ps(x); }
static inline vf zero() { return _mm512_setzero_ps(); }
static inline vf load(const float *p) { return _mm512_loadu_ps(p); }
static inline vf load(const F16 *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p))); }
static inline vf load(const BF16 *p) { return from_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p))); }
// The first n lanes, 0 < n <= kLanes, the others zero; reads nothing else.
static inline vf load_n(const float *p, int64_t n) { return _mm512_maskz_loadu_ps(lane_mask(n), p); }
static inline vf load_n(const F16 *p, int64_t n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lane_mask(n), p)); }
static inline vf load_n(const BF16 *p, int64_t n) { return from_bf16(_mm256_maskz_loadu_epi16(lane_mask(n), p)); }
static inline void store(float *p, vf a) { _mm512_storeu_ps(p, a); }
static inline void store_n(float *p, vf a, int64_t n) { _mm512_mask_storeu_ps(p, lane_mask(n), a); }
static inline vf add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
// b where either is NaN.
static inline vf max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vf absolute(vf a) { return _mm512_abs_ps(a); }
static inline vf round(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline __m256i half_bits(vf a) {
  const vf limit = set1(65504.0f);
  return _mm512_cvtps_ph(max(sub(zero(), limit), min(limit, a)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline void store(F16 *p, vf a) { _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), half_bits(a)); }
static inline void store_n(F16 *p, vf a, int64_t n) { _mm256_mask_storeu_epi16(p, lane_mask(n), half_bits(a)); }
// 2^a for whole a in [-126, 127].
static inline vf power_of_two(vf a) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(a), _mm512_set1_epi32(127)), 23));
}
// a < b ? x : y, lane by lane.
static inline vf select_less(vf a, vf b, vf x, vf y) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
// Lanes are summed as a tree: halves first.
static inline float reduce_add(vf a) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
static inline float reduce_max(vf a) { return _mm512_reduce_max_ps(a); }

// ---- bytes ----
// A vector of bytes has 4 * kLanes; lane i of a dot product sums the products of bytes 4 i … 4 i + 3.

// Codes of 8 bits are dotted after this was taken from them; the weight's bias makes up for it.
constexpr int kWideOffset = 0;
// Rows and vectors of columns of an int8 product that are held in registers at once.
constexpr int kInt8Rows = 4, kInt8Vectors = 2;

using vi = __m512i;
using vb = __m512i;

static inline vi set1_int(int32_t x) { return _mm512_set1_epi32(x); }
static inline vi zero_int() { return _mm512_setzero_si512(); }
static inline vf to_float(vi a) { return _mm512_cvtepi32_ps(a); }
static inline vb load_bytes(const void *p) { return _mm512_loadu_si512(p); }
static inline vb load_bytes_n(const void *p, int64_t n) { return _mm512_maskz_loadu_epi8((1ull << n) - 1, p); }
static inline void store_bytes(uint8_t *p, vb a) { _mm512_storeu_si512(p, a); }
static inline vb broadcast4(const void *p) {
  int32_t word;
  memcpy(&word, p, 4);
  return _mm512_set1_epi32(word);
}
static inline vb low_nibbles(vb a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
static inline vb high_nibbles(vb a) { return low_nibbles(_mm512_srli_epi16(a, 4)); }
static inline vb offset_wide(vb a) { return a; }
// Codes of blocks (blocks.h), for the columns [column, column + bytes of a vector) of a run; what lies above the bits of a code is
// left for a mask. layers: 32 columns for each B bits of 32 bytes, moved to bit To. halves_of_blocks, bytes_of_blocks: sixteen bytes of low, then
// high halves, or 32 bytes, for the 32 columns of each block, S bytes apart. fifth_bits: 16 where the column's bit of 32 is set;
// bit_bytes: where a bit of as many as a vector has bytes is.
template <int B, int To = 0>
static inline vb layers(const uint8_t *p, int column) {
  const vb both = _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
  const int shift = B * (column / 32);
  if (To) return _mm512_rolv_epi64(both, _mm512_add_epi64(_mm512_set1_epi64(To - shift), _mm512_setr_epi64(0, 0, 0, 0, -B, -B, -B, -B)));
  return _mm512_srlv_epi64(both, _mm512_add_epi64(_mm512_set1_epi64(shift), _mm512_setr_epi64(0, 0, 0, 0, B, B, B, B)));
}
static inline __m256i load_twice(const uint8_t *p) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
}
template <int S>
static inline vb halves_of_blocks(const uint8_t *p, int column) {
  p += column / 32 * S;
  const vb blocks = _mm512_inserti64x4(_mm512_castsi256_si512(load_twice(p)), load_twice(p + S), 1);
  return _mm512_srlv_epi64(blocks, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4));
}
// bytes_of_halves: of blocks of S bytes that begin at p, the sixteen bytes from byte At on of each; four for a vector.
template <int S, int At>
static inline vb bytes_of_halves(const uint8_t *p) {
  constexpr int from = 4 * S - 64, a = (At - from) / 2, w = S / 2;  // a vector that ends with the fourth has all of three
  static_assert(At >= 3 * S - 64 && S % 2 == 0 && At % 2 == 0);
  const auto eight = [](int first) MB_ALWAYS_INLINE {
    return _mm_add_epi16(_mm_set1_epi16(static_cast<int16_t>(first)), _mm_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7));
  };
  __m512i order = _mm512_castsi128_si512(eight(0));
  order = _mm512_inserti32x4(order, eight(a + w), 1);
  order = _mm512_inserti32x4(order, eight(a + 2 * w), 2);
  order = _mm512_inserti32x4(order, eight(a + 3 * w), 3);
  const vb three = _mm512_permutexvar_epi16(order, _mm512_loadu_si512(p + from));
  return _mm512_mask_broadcast_i32x4(three, 15, _mm_loadu_si128(reinterpret_cast<const __m128i *>(p + At)));
}
template <int S>
static inline vb bytes_of_blocks(const uint8_t *p, int column) {
  p += column / 32 * S;
  const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p));
  return _mm512_inserti64x4(_mm512_castsi256_si512(first), _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p + S)), 1);
}
static inline vb bit_bytes(uint64_t bits) { return _mm512_maskz_set1_epi8(bits, 16); }
template <int S>
static inline vb fifth_bits(const uint8_t *p, int column) {
  p += column / 32 * S;
  uint32_t first, second;
  memcpy(&first, p, 4);
  memcpy(&second, p + S, 4);
  return bit_bytes(first | static_cast<uint64_t>(second) << 32);
}
static inline vb set1_byte(int x) { return _mm512_set1_epi8(static_cast<char>(x)); }
static inline vb flip(vb a, int bits) { return _mm512_xor_si512(a, set1_byte(bits)); }
// Byte a[i] of a table of 16, for a[i] below 16.
static inline vb lookup16(const uint8_t *table, vb a) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i *>(table))), a);
}
// Unsigned codes of any width times signed activations.
static inline vi dot(vi sum, vb codes, vb x) { return _mm512_dpbusd_epi32(sum, codes, x); }
static inline vi dot_wide(vi sum, vb codes, vb x) { return _mm512_dpbusd_epi32(sum, codes, x); }
// Codes times activations of sixteen bits, 128 * high + low; of two vectors of codes of five bits at most together.
static inline vi dot_sixteen(vb codes, vb high, vb low) {
  return dot(_mm512_slli_epi32(dot(zero_int(), codes, high), 7), codes, low);
}
static inline vi dot_sixteen(vb codes, vb high, vb low, vb codes2, vb high2, vb low2) {
  const vi highs = dot(dot(zero_int(), codes, high), codes2, high2);
  return dot(dot(_mm512_slli_epi32(highs, 7), codes, low), codes2, low2);
}
static inline vi dot_sixteen_wide(vb codes, vb high, vb low) { return dot_sixteen(codes, high, low); }
static inline void prefetch(const void *p) { _mm_prefetch(static_cast<const char *>(p), _MM_HINT_T1); }  // to L2
// Whole numbers in [-127, 127] to bytes.
static inline void store_codes(int8_t *p, vf a) {
  _mm_storeu_si128(reinterpret_cast<__m128i *>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a)));
}
static inline vf load_codes(const int8_t *p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))));
}
// Lane i is p[i / N].
template <int N>
static inline vf spread(const float *p) {
  if (N >= 16) return set1(p[0]);
  if (N == 8) {
    const __m128 two = _mm_castsi128_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p)));
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1), _mm512_castps128_ps512(two));
  }
  const __m512 four = _mm512_castps128_ps512(_mm_loadu_ps(p));
  return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3), four);
}

// ---- 64-bit lanes of a vector of bytes ----

static inline vb set1_64(uint64_t x) { return _mm512_set1_epi64(static_cast<long long>(x)); }
static inline vb both(vb a, vb b) { return _mm512_and_si512(a, b); }
static inline vb either(vb a, vb b) { return _mm512_or_si512(a, b); }
// The bits of a that the mask has, and those of b.
static inline vb merge(vb a, int mask, vb b) { return _mm512_ternarylogic_epi64(a, set1_byte(mask), b, 0xea); }
template <int N>
static inline vb shift_left64(vb a) { return _mm512_slli_epi64(a, N); }
template <int N>
static inline vb shift_right64(vb a) { return _mm512_srli_epi64(a, N); }
// Lane i gets bytes B i … B i + B - 1 of p and whatever follows; reads up to kLoadSlack bytes beyond the last lane's.
constexpr int kLoadSlack = 16;
template <int B>
static inline vb load_strided(const uint8_t *p) {
  const auto at = [p](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i *>(p + 2 * B * i)); };
  const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(at(0)), at(1), 1);
  const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(at(2)), at(3), 1);
  const __m128i order = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, B, B + 1, B + 2, B + 3, B + 4, B + 5, B + 6, B + 7);
  return _mm512_shuffle_epi8(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1), _mm512_broadcast_i32x4(order));
}

// ---- words: kLanes vectors of kLanes 32-bit words as a square ----

static inline vb as_bytes(vf a) { return _mm512_castps_si512(a); }
static inline void transpose(vb *a) {
  vb t[16];
  for (int i = 0; i < 8; i++) {
    t[2 * i] = _mm512_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
  }
  for (int i = 0; i < 4; i++) {  // a[4 i + j]: words j, 4 + j, 8 + j, 12 + j of rows 4 i … 4 i + 3
    a[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    a[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    a[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    a[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  for (int j = 0; j < 4; j++) {
    const vb low = _mm512_shuffle_i32x4(a[j], a[4 + j], 0x88), high = _mm512_shuffle_i32x4(a[j], a[4 + j], 0xdd);
    const vb low2 = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0x88), high2 = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0xdd);
    t[j] = _mm512_shuffle_i32x4(low, low2, 0x88);
    t[8 + j] = _mm512_shuffle_i32x4(low, low2, 0xdd);
    t[4 + j] = _mm512_shuffle_i32x4(high, high2, 0x88);
    t[12 + j] = _mm512_shuffle_i32x4(high, high2, 0xdd);
  }
  for (int i = 0; i < 16; i++) a[i] = t[i];
}

}  // namespace MB_ISA
}  // namespace mb
