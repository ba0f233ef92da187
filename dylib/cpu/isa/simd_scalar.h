// simd_scalar.h: vectors as short arrays; any compiler makes something of the loops.
#pragma once

namespace mb {
namespace MB_ISA {

constexpr int kLanes = 8;
// Rows and columns of a matrix product that are held in registers at once.
constexpr int kTileRows = 2, kTileColumns = 2;

struct vf {
  float v[kLanes];
};

#define MB_EACH for (int i = 0; i < kLanes; i++)

static inline vf set1(float x) { vf r; MB_EACH r.v[i] = x; return r; }
static inline vf zero() { return set1(0.0f); }
template <class T>
static inline vf load(const T *p) { vf r; MB_EACH r.v[i] = to_float(p[i]); return r; }
// The first n lanes, 0 < n <= kLanes, the others zero; reads nothing else.
template <class T>
static inline vf load_n(const T *p, int64_t n) { vf r; MB_EACH r.v[i] = i < n ? to_float(p[i]) : 0.0f; return r; }
static inline void store(float *p, vf a) { MB_EACH p[i] = a.v[i]; }
static inline void store_n(float *p, vf a, int64_t n) { for (int64_t i = 0; i < n; i++) p[i] = a.v[i]; }
static inline void store(F16 *p, vf a) { MB_EACH p[i] = to_f16(a.v[i]); }
static inline void store_n(F16 *p, vf a, int64_t n) { for (int64_t i = 0; i < n; i++) p[i] = to_f16(a.v[i]); }
static inline vf add(vf a, vf b) { MB_EACH a.v[i] += b.v[i]; return a; }
static inline vf sub(vf a, vf b) { MB_EACH a.v[i] -= b.v[i]; return a; }
static inline vf mul(vf a, vf b) { MB_EACH a.v[i] *= b.v[i]; return a; }
static inline vf div(vf a, vf b) { MB_EACH a.v[i] /= b.v[i]; return a; }
static inline vf fma(vf a, vf b, vf c) { MB_EACH c.v[i] += a.v[i] * b.v[i]; return c; }
// As x86 has it: b where either is NaN.
static inline vf max(vf a, vf b) { MB_EACH a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
static inline vf min(vf a, vf b) { MB_EACH a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return a; }
static inline vf absolute(vf a) { MB_EACH a.v[i] = a.v[i] < 0 ? -a.v[i] : a.v[i]; return a; }
// To nearest even; |a| < 2^22.
static inline vf round(vf a) {
  MB_EACH {
    const float big = a.v[i] < 0 ? -0x1.8p23f : 0x1.8p23f;
    const volatile float sum = a.v[i] + big;
    a.v[i] = sum - big;
  }
  return a;
}
// 2^a for whole a in [-126, 127].
static inline vf power_of_two(vf a) {
  MB_EACH a.v[i] = float_from_bits(static_cast<uint32_t>(static_cast<int32_t>(a.v[i]) + 127) << 23);
  return a;
}
// a < b ? x : y, lane by lane.
static inline vf select_less(vf a, vf b, vf x, vf y) { MB_EACH x.v[i] = a.v[i] < b.v[i] ? x.v[i] : y.v[i]; return x; }
// Lanes are summed as a tree: halves first.
static inline float reduce_add(vf a) {
  for (int n = kLanes / 2; n; n /= 2) for (int i = 0; i < n; i++) a.v[i] += a.v[i + n];
  return a.v[0];
}
static inline float reduce_max(vf a) {
  float m = a.v[0];
  for (int i = 1; i < kLanes; i++) m = a.v[i] > m ? a.v[i] : m;
  return m;
}

// ---- bytes ----
// A vector of bytes has 4 * kLanes; lane i of a dot product sums the products of bytes 4 i … 4 i + 3.

// Codes of 8 bits are dotted after this was taken from them; the weight's bias makes up for it.
constexpr int kWideOffset = 0;
// Rows and vectors of columns of an int8 product that are held in registers at once.
constexpr int kInt8Rows = 4, kInt8Vectors = 2;

struct vi {
  int32_t v[kLanes];
};
struct vb {
  uint8_t v[4 * kLanes];
};

static inline vi set1_int(int32_t x) { vi r; MB_EACH r.v[i] = x; return r; }
static inline vi zero_int() { return vi{}; }
static inline vf to_float(vi a) { vf r; MB_EACH r.v[i] = static_cast<float>(a.v[i]); return r; }
static inline vb load_bytes(const void *p) { vb r; memcpy(r.v, p, sizeof r.v); return r; }
static inline vb load_bytes_n(const void *p, int64_t n) { vb r{}; memcpy(r.v, p, static_cast<size_t>(n)); return r; }
static inline void store_bytes(uint8_t *p, vb a) { memcpy(p, a.v, sizeof a.v); }
static inline vb broadcast4(const void *p) { vb r; MB_EACH memcpy(r.v + 4 * i, p, 4); return r; }
static inline vb low_nibbles(vb a) { for (uint8_t &b : a.v) b &= 15; return a; }
static inline vb high_nibbles(vb a) { for (uint8_t &b : a.v) b >>= 4; return a; }
static inline vb offset_wide(vb a) { return a; }
// Codes of blocks (blocks.h), for the columns [column, column + bytes of a vector) of a run; what lies above the bits of a code is
// left for a mask. layers: 32 columns for each B bits of 32 bytes, moved to bit To. halves_of_blocks, bytes_of_blocks: sixteen bytes of low, then
// high halves, or 32 bytes, for the 32 columns of each block, S bytes apart. fifth_bits: 16 where the column's bit of 32 is set;
// bit_bytes: where a bit of as many as a vector has bytes is.
template <int B, int To = 0>
static inline vb layers(const uint8_t *p, int column) {
  vb r;
  for (int i = 0; i < 32; i++) r.v[i] = static_cast<uint8_t>(p[i] >> B * (column / 32) << To);
  return r;
}
template <int S>
static inline vb halves_of_blocks(const uint8_t *p, int column) {
  vb r;
  for (int i = 0; i < 32; i++) r.v[i] = static_cast<uint8_t>(p[column / 32 * S + i % 16] >> i / 16 * 4);
  return r;
}
// bytes_of_halves: of blocks of S bytes that begin at p, the sixteen bytes from byte At on of each; two for a vector.
template <int S, int At>
static inline vb bytes_of_halves(const uint8_t *p) {
  vb r;
  for (int i = 0; i < 32; i++) r.v[i] = p[i / 16 * S + At + i % 16];
  return r;
}
template <int S>
static inline vb bytes_of_blocks(const uint8_t *p, int column) { return load_bytes(p + column / 32 * S); }
static inline vb bit_bytes(uint64_t bits) {
  vb r;
  for (int i = 0; i < 32; i++) r.v[i] = static_cast<uint8_t>((bits >> i & 1) << 4);
  return r;
}
template <int S>
static inline vb fifth_bits(const uint8_t *p, int column) {
  uint32_t word;
  memcpy(&word, p + column / 32 * S, 4);
  return bit_bytes(word);
}
static inline vb set1_byte(int x) { vb r; memset(r.v, x, sizeof r.v); return r; }
static inline vb flip(vb a, int bits) { for (uint8_t &b : a.v) b ^= static_cast<uint8_t>(bits); return a; }
static inline float half(uint16_t bits) { return to_float(F16{bits}); }
// Eight halves, S bytes apart, of which only n exist: the last one fills up.
template <int S>
static MB_INLINE void strided_halves(const uint8_t *p, int n, float *y) {
  for (int i = 0; i < 8; i++) {
    uint16_t bits;
    memcpy(&bits, p + S * (i < n ? i : n - 1), 2);
    y[i] = half(bits);
  }
}
// y[i] = scale * byte i of eight.
static MB_INLINE void scaled_bytes(uint64_t bytes, float scale, float *y) {
  for (int i = 0; i < 8; i++) y[i] = scale * static_cast<float>(static_cast<uint8_t>(bytes >> 8 * i));
}
static MB_INLINE void scaled_signed_bytes(uint64_t bytes, float scale, float *y) {
  for (int i = 0; i < 8; i++) y[i] = scale * static_cast<float>(static_cast<int8_t>(bytes >> 8 * i));
}
// Byte a[i] of a table of 16, for a[i] below 16.
static inline vb lookup16(const uint8_t *table, vb a) { for (uint8_t &b : a.v) b = table[b & 15]; return a; }
// Codes of at most 7 bits times signed activations.
static inline vi dot(vi sum, vb codes, vb x) {
  MB_EACH for (int j = 0; j < 4; j++) sum.v[i] += codes.v[4 * i + j] * static_cast<int8_t>(x.v[4 * i + j]);
  return sum;
}
// Codes of 8 bits from which kWideOffset was taken.
static inline vi dot_wide(vi sum, vb codes, vb x) { return dot(sum, codes, x); }
static inline vi times_128(vi a) { MB_EACH a.v[i] *= 128; return a; }
// Codes times activations of sixteen bits, 128 * high + low; of two vectors of codes of five bits at most together.
static inline vi dot_sixteen(vb codes, vb high, vb low) {
  return dot(times_128(dot(zero_int(), codes, high)), codes, low);
}
static inline vi dot_sixteen(vb codes, vb high, vb low, vb codes2, vb high2, vb low2) {
  return dot(dot(times_128(dot(dot(zero_int(), codes, high), codes2, high2)), codes, low), codes2, low2);
}
static inline vi dot_sixteen_wide(vb codes, vb high, vb low) { return dot_sixteen(codes, high, low); }
static inline void prefetch(const void *) {}
// Whole numbers in [-127, 127] to bytes.
static inline void store_codes(int8_t *p, vf a) { MB_EACH p[i] = static_cast<int8_t>(a.v[i]); }
static inline vf load_codes(const int8_t *p) { vf r; MB_EACH r.v[i] = p[i]; return r; }
// Lane i is p[i / N].
template <int N>
static inline vf spread(const float *p) { vf r; MB_EACH r.v[i] = p[i / N]; return r; }

// ---- 64-bit lanes of a vector of bytes ----

static inline vb set1_64(uint64_t x) { vb r; for (int i = 0; i < kLanes / 2; i++) memcpy(r.v + 8 * i, &x, 8); return r; }
static inline vb both(vb a, vb b) { for (int i = 0; i < 4 * kLanes; i++) a.v[i] &= b.v[i]; return a; }
static inline vb either(vb a, vb b) { for (int i = 0; i < 4 * kLanes; i++) a.v[i] |= b.v[i]; return a; }
// The bits of a that the mask has, and those of b.
static inline vb merge(vb a, int mask, vb b) { return either(both(a, set1_byte(mask)), b); }
template <int N>
static inline vb shift_left64(vb a) {
  for (int i = 0; i < kLanes / 2; i++) {
    uint64_t x;
    memcpy(&x, a.v + 8 * i, 8);
    x <<= N;
    memcpy(a.v + 8 * i, &x, 8);
  }
  return a;
}
template <int N>
static inline vb shift_right64(vb a) {
  for (int i = 0; i < kLanes / 2; i++) {
    uint64_t x;
    memcpy(&x, a.v + 8 * i, 8);
    x >>= N;
    memcpy(a.v + 8 * i, &x, 8);
  }
  return a;
}
// Lane i gets bytes B i … B i + B - 1 of p and whatever follows; reads up to kLoadSlack bytes beyond the last lane's.
constexpr int kLoadSlack = 8;
template <int B>
static inline vb load_strided(const uint8_t *p) {
  vb r;
  for (int i = 0; i < kLanes / 2; i++) memcpy(r.v + 8 * i, p + B * i, 8);
  return r;
}

// ---- words: kLanes vectors of kLanes 32-bit words as a square ----

static inline vb as_bytes(vf a) { vb r; memcpy(r.v, a.v, sizeof r.v); return r; }
static inline void transpose(vb *a) {
  for (int i = 0; i < kLanes; i++) {
    for (int j = 0; j < i; j++) {
      uint32_t x, y;
      memcpy(&x, a[i].v + 4 * j, 4);
      memcpy(&y, a[j].v + 4 * i, 4);
      memcpy(a[i].v + 4 * j, &y, 4);
      memcpy(a[j].v + 4 * i, &x, 4);
    }
  }
}

#undef MB_EACH

}  // namespace MB_ISA
}  // namespace mb
