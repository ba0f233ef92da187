// simd_neon.h: Armv8 NEON.
#pragma once
#include <arm_neon.h>

namespace mb {
namespace MB_ISA {

constexpr int kLanes = 4;
// Rows and columns of a matrix product that are held in registers at once.
constexpr int kTileRows = 4, kTileColumns = 5;

using vf = float32x4_t;

static inline vf from_bf16(uint16x4_t a) { return vreinterpretq_f32_u32(vshll_n_u16(a, 16)); }
static inline vf from_f16(uint16x4_t a) { return vcvt_f32_f16(vreinterpret_f16_u16(a)); }
// The first n 16-bit numbers, 0 < n <= 4, the others zero.
static inline uint16x4_t load_16bit(const void *p, int64_t n) {
  uint16_t words[4] = {};
  for (int64_t i = 0; i < n; i++) words[i] = static_cast<const uint16_t *>(p)[i];
  return vld1_u16(words);
}

static inline vf set1(float x) { return vdupq_n_f32(x); }
static inline vf zero() { return vdupq_n_f32(0.0f); }
static inline vf load(const float *p) { return vld1q_f32(p); }
static inline vf load(const F16 *p) { return from_f16(vld1_u16(reinterpret_cast<const uint16_t *>(p))); }
static inline vf load(const BF16 *p) { return from_bf16(vld1_u16(reinterpret_cast<const uint16_t *>(p))); }
// The first n lanes, 0 < n <= kLanes, the others zero; reads nothing else.
static inline vf load_n(const float *p, int64_t n) {
  float words[4] = {};
  for (int64_t i = 0; i < n; i++) words[i] = p[i];
  return vld1q_f32(words);
}
static inline vf load_n(const F16 *p, int64_t n) { return from_f16(load_16bit(p, n)); }
static inline vf load_n(const BF16 *p, int64_t n) { return from_bf16(load_16bit(p, n)); }
static inline void store(float *p, vf a) { vst1q_f32(p, a); }
static inline void store_n(float *p, vf a, int64_t n) {
  float words[4];
  vst1q_f32(words, a);
  for (int64_t i = 0; i < n; i++) p[i] = words[i];
}
static inline vf add(vf a, vf b) { return vaddq_f32(a, b); }
static inline vf sub(vf a, vf b) { return vsubq_f32(a, b); }
static inline vf mul(vf a, vf b) { return vmulq_f32(a, b); }
static inline vf div(vf a, vf b) { return vdivq_f32(a, b); }
static inline vf fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
// b where either is NaN, as on x86.
static inline vf max(vf a, vf b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline vf min(vf a, vf b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
static inline vf absolute(vf a) { return vabsq_f32(a); }
static inline vf round(vf a) { return vrndnq_f32(a); }
static inline uint16x4_t half_bits(vf a) {
  const vf limit = set1(65504.0f);
  return vreinterpret_u16_f16(vcvt_f16_f32(max(sub(zero(), limit), min(limit, a))));
}
static inline void store(F16 *p, vf a) { vst1_u16(reinterpret_cast<uint16_t *>(p), half_bits(a)); }
static inline void store_n(F16 *p, vf a, int64_t n) {
  F16 words[4];
  store(words, a);
  for (int64_t i = 0; i < n; i++) p[i] = words[i];
}
// 2^a for whole a in [-126, 127].
static inline vf power_of_two(vf a) {
  return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(a), vdupq_n_s32(127)), 23));
}
// a < b ? x : y, lane by lane.
static inline vf select_less(vf a, vf b, vf x, vf y) { return vbslq_f32(vcltq_f32(a, b), x, y); }
// Lanes are summed as a tree: halves first.
static inline float reduce_add(vf a) {
  const float32x2_t s = vadd_f32(vget_low_f32(a), vget_high_f32(a));
  return vget_lane_f32(s, 0) + vget_lane_f32(s, 1);
}
static inline float reduce_max(vf a) { return vmaxvq_f32(a); }

// ---- bytes ----
// A vector of bytes has 4 * kLanes; lane i of a dot product sums the products of bytes 4 i … 4 i + 3.

// Codes of 8 bits are dotted after this was taken from them; the weight's bias makes up for it.
constexpr int kWideOffset = 128;
// Rows and vectors of columns of an int8 product that are held in registers at once.
constexpr int kInt8Rows = 4, kInt8Vectors = 4;

using vi = int32x4_t;
using vb = uint8x16_t;

static inline vi set1_int(int32_t x) { return vdupq_n_s32(x); }
static inline vi zero_int() { return vdupq_n_s32(0); }
static inline vf to_float(vi a) { return vcvtq_f32_s32(a); }
static inline vb load_bytes(const void *p) { return vld1q_u8(static_cast<const uint8_t *>(p)); }
static inline vb load_bytes_n(const void *p, int64_t n) {
  uint8_t bytes[16] = {};
  memcpy(bytes, p, static_cast<size_t>(n));
  return load_bytes(bytes);
}
static inline void store_bytes(uint8_t *p, vb a) { vst1q_u8(p, a); }
static inline vb broadcast4(const void *p) {
  uint32_t word;
  memcpy(&word, p, 4);
  return vreinterpretq_u8_u32(vdupq_n_u32(word));
}
static inline vb low_nibbles(vb a) { return vandq_u8(a, vdupq_n_u8(15)); }
static inline vb high_nibbles(vb a) { return vshrq_n_u8(a, 4); }
static inline vb offset_wide(vb a) { return veorq_u8(a, vdupq_n_u8(0x80)); }
// Codes of blocks (blocks.h), for the columns [column, column + bytes of a vector) of a run; what lies above the bits of a code is
// left for a mask. layers: 32 columns for each B bits of 32 bytes, moved to bit To. halves_of_blocks, bytes_of_blocks: sixteen bytes of low, then
// high halves, or 32 bytes, for the 32 columns of each block, S bytes apart. fifth_bits: 16 where the column's bit of 32 is set;
// bit_bytes: where a bit of as many as a vector has bytes is.
template <int B, int To = 0>
static inline vb layers(const uint8_t *p, int column) {
  return vshlq_u8(vld1q_u8(p + column % 32), vdupq_n_s8(static_cast<int8_t>(To - B * (column / 32))));
}
template <int S>
static inline vb halves_of_blocks(const uint8_t *p, int column) {
  return vshlq_u8(vld1q_u8(p + column / 32 * S), vdupq_n_s8(column % 32 == 0 ? 0 : -4));
}
// bytes_of_halves: of a block at p, the sixteen bytes from byte At on.
template <int S, int At>
static inline vb bytes_of_halves(const uint8_t *p) { return vld1q_u8(p + At); }
template <int S>
static inline vb bytes_of_blocks(const uint8_t *p, int column) { return vld1q_u8(p + column / 32 * S + column % 32); }
static inline vb bit_bytes(uint64_t bits) {
  const vb bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201ull));
  const uint8x8_t first = vdup_n_u8(static_cast<uint8_t>(bits)), second = vdup_n_u8(static_cast<uint8_t>(bits >> 8));
  return vandq_u8(vtstq_u8(vcombine_u8(first, second), bit), vdupq_n_u8(16));
}
template <int S>
static inline vb fifth_bits(const uint8_t *p, int column) {
  p += column / 32 * S + column % 32 / 8;
  return bit_bytes(p[0] | p[1] << 8);
}
static inline vb set1_byte(int x) { return vdupq_n_u8(static_cast<uint8_t>(x)); }
static inline vb flip(vb a, int bits) { return veorq_u8(a, set1_byte(bits)); }
static inline float half(uint16_t bits) {
  return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(bits))), 0);
}
// Eight halves, S bytes apart, of which only n exist: the last one fills up.
template <int S>
static MB_INLINE void strided_halves(const uint8_t *p, int n, float *y) {
  uint16_t bits[8];
  for (int i = 0; i < 8; i++) memcpy(bits + i, p + S * (i < n ? i : n - 1), 2);
  for (int i = 0; i < 8; i += kLanes) store(y + i, from_f16(vld1_u16(bits + i)));
}
// y[i] = scale * byte i of eight.
static MB_INLINE void scaled_bytes(uint64_t bytes, float scale, float *y) {
  const uint16x8_t words = vmovl_u8(vcreate_u8(bytes));
  store(y, mul(set1(scale), vcvtq_f32_u32(vmovl_u16(vget_low_u16(words)))));
  store(y + 4, mul(set1(scale), vcvtq_f32_u32(vmovl_u16(vget_high_u16(words)))));
}
static MB_INLINE void scaled_signed_bytes(uint64_t bytes, float scale, float *y) {
  const int16x8_t words = vmovl_s8(vcreate_s8(bytes));
  store(y, mul(set1(scale), vcvtq_f32_s32(vmovl_s16(vget_low_s16(words)))));
  store(y + 4, mul(set1(scale), vcvtq_f32_s32(vmovl_s16(vget_high_s16(words)))));
}
// Byte a[i] of a table of 16, for a[i] below 16.
static inline vb lookup16(const uint8_t *table, vb a) { return vqtbl1q_u8(vld1q_u8(table), a); }
// Codes of at most 7 bits times signed activations.
static inline vi dot(vi sum, vb codes, vb x) {
  const int8x16_t w = vreinterpretq_s8_u8(codes), a = vreinterpretq_s8_u8(x);
#if MB_ISA_NUMBER == 4
  return vdotq_s32(sum, w, a);
#else
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(a)));
  const int32x4_t high = vpaddlq_s16(vmull_s8(vget_high_s8(w), vget_high_s8(a)));
  return vaddq_s32(sum, vpaddq_s32(low, high));
#endif
}
// Codes of 8 bits from which kWideOffset was taken.
static inline vi dot_wide(vi sum, vb codes, vb x) { return dot(sum, codes, x); }
static inline vi times_128(vi a) { return vshlq_n_s32(a, 7); }
// Codes times activations of sixteen bits, 128 * high + low; of two vectors of codes of five bits at most together.
static inline vi dot_sixteen(vb codes, vb high, vb low) {
  return dot(times_128(dot(zero_int(), codes, high)), codes, low);
}
static inline vi dot_sixteen(vb codes, vb high, vb low, vb codes2, vb high2, vb low2) {
  return dot(dot(times_128(dot(dot(zero_int(), codes, high), codes2, high2)), codes, low), codes2, low2);
}
static inline vi dot_sixteen_wide(vb codes, vb high, vb low) { return dot_sixteen(codes, high, low); }
static inline void prefetch(const void *p) { __builtin_prefetch(p, 0, 2); }  // to L2
// Whole numbers in [-127, 127] to bytes.
static inline void store_codes(int8_t *p, vf a) {
  const int16x4_t halves = vmovn_s32(vcvtq_s32_f32(a));
  const int8x8_t bytes = vmovn_s16(vcombine_s16(halves, halves));
  const int32_t word = vget_lane_s32(vreinterpret_s32_s8(bytes), 0);
  memcpy(p, &word, 4);
}
static inline vf load_codes(const int8_t *p) {
  int32_t word;
  memcpy(&word, p, 4);
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(word))))));
}
// Lane i is p[i / N].
template <int N>
static inline vf spread(const float *p) {
  static_assert(N >= kLanes, "a group fills a vector at least");
  return set1(p[0]);
}

// ---- 64-bit lanes of a vector of bytes ----

static inline vb set1_64(uint64_t x) { return vreinterpretq_u8_u64(vdupq_n_u64(x)); }
static inline vb both(vb a, vb b) { return vandq_u8(a, b); }
static inline vb either(vb a, vb b) { return vorrq_u8(a, b); }
// The bits of a that the mask has, and those of b.
static inline vb merge(vb a, int mask, vb b) { return either(both(a, set1_byte(mask)), b); }
template <int N>
static inline vb shift_left64(vb a) { return vreinterpretq_u8_u64(vshlq_n_u64(vreinterpretq_u64_u8(a), N)); }
template <int N>
static inline vb shift_right64(vb a) { return vreinterpretq_u8_u64(vshrq_n_u64(vreinterpretq_u64_u8(a), N)); }
// Lane i gets bytes B i … B i + B - 1 of p and whatever follows; reads up to kLoadSlack bytes beyond the last lane's.
constexpr int kLoadSlack = 8;
template <int B>
static inline vb load_strided(const uint8_t *p) { return vcombine_u8(vld1_u8(p), vld1_u8(p + B)); }

// ---- words: kLanes vectors of kLanes 32-bit words as a square ----

static inline vb as_bytes(vf a) { return vreinterpretq_u8_f32(a); }
static inline void transpose(vb *a) {
  const auto words = [](vb x) { return vreinterpretq_u32_u8(x); };
  const auto doubles = [](uint32x4_t x) { return vreinterpretq_u64_u32(x); };
  const uint64x2_t t0 = doubles(vtrn1q_u32(words(a[0]), words(a[1]))), t1 = doubles(vtrn2q_u32(words(a[0]), words(a[1])));
  const uint64x2_t t2 = doubles(vtrn1q_u32(words(a[2]), words(a[3]))), t3 = doubles(vtrn2q_u32(words(a[2]), words(a[3])));
  a[0] = vreinterpretq_u8_u64(vtrn1q_u64(t0, t2));
  a[1] = vreinterpretq_u8_u64(vtrn1q_u64(t1, t3));
  a[2] = vreinterpretq_u8_u64(vtrn2q_u64(t0, t2));
  a[3] = vreinterpretq_u8_u64(vtrn2q_u64(t1, t3));
}

}  // namespace MB_ISA
}  // namespace mb
