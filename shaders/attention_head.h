// attention_head.h: one head of one row in the registers of a simdgroup, and where its K and V lie in the pages.
#ifndef MARKBASE_ATTENTION_HEAD_H
#define MARKBASE_ATTENTION_HEAD_H
#include "common.h"
#include "input_block.h"
#include "attention_params.h"

// Scores are q · k as they are. This one stands for none: finite, and lower than any real one.
constant constexpr float kNoScore = -1e30f;
constant constexpr float kTurn = 1.462918079267160e-9f;  // 2π / 2^32

// Softmax weight of a score relative to the largest. The difference comes first: it is exact where the scores are.
static inline float weight_of(float score, float largest, float scale) {
  return exp2((score - largest) * scale);
}

// The text of a host name that a macro has put together.
#define TEXT(x) #x

// A head x[D] spread over a simdgroup: lane i holds the pairs (i + 32m, i + 32m + D/2) as low[m], high[m], so that norm
// and rotation need nothing but a sum. Heads of 32 leave half of the lanes empty.
#define PAIRS(D) (D >= 64 ? D / 64 : 1)

template <int D>
static inline void head_load(device const float* x, uint lane, thread float* low, thread float* high) {
  #pragma clang loop unroll(full)
  for (uint m = 0; m < PAIRS(D); m++) {
    const uint i = lane + 32 * m;
    const bool present = i < D / 2;
    low[m] = present ? x[i] : 0.0f;
    high[m] = present ? x[i + D / 2] : 0.0f;
  }
}

// x · (mean(x²) + eps)^-1/2
template <int D>
static inline void head_normalise(float eps, thread float* low, thread float* high) {
  float squares = 0.0f;
  #pragma clang loop unroll(full)
  for (uint m = 0; m < PAIRS(D); m++) {
    squares = fma(low[m], low[m], squares);
    squares = fma(high[m], high[m], squares);
  }
  const float scale = precise::rsqrt(simd_sum(squares) / float(D) + eps);
  #pragma clang loop unroll(full)
  for (uint m = 0; m < PAIRS(D); m++) {
    low[m] *= scale;
    high[m] *= scale;
  }
}

// A head's norm weights [D], spread like the head. The format is looked at once, so that all loads are under way together.
template <uint32_t F, int D>
static inline void head_weights_as(device const uchar* weight, uint lane, thread float* low, thread float* high) {
  #pragma clang loop unroll(full)
  for (uint m = 0; m < PAIRS(D); m++) {
    const uint i = lane + 32 * m;
    const bool present = i < D / 2;
    low[m] = present ? load_as<F>(weight, i) : 0.0f;
    high[m] = present ? load_as<F>(weight, i + D / 2) : 0.0f;
  }
}
template <int D>
static inline void head_weights(
    device const uchar* weight, uint format, uint lane, thread float* low, thread float* high) {
  if (format == kF32) {
    head_weights_as<kF32, D>(weight, lane, low, high);
  } else if (format == kF16) {
    head_weights_as<kF16, D>(weight, lane, low, high);
  } else {
    head_weights_as<kBF16, D>(weight, lane, low, high);
  }
}

template <int D>
static inline void head_multiply(
    thread const float* weight_low, thread const float* weight_high, thread float* low, thread float* high) {
  #pragma clang loop unroll(full)
  for (uint m = 0; m < PAIRS(D); m++) {
    low[m] *= weight_low[m];
    high[m] *= weight_high[m];
  }
}

// The norm with weight [D] in the given format; none with kNoNorm.
template <int D>
static inline void head_norm(
    device const uchar* weight, uint format, float eps, uint lane, thread float* low, thread float* high) {
  if (format == kNoNorm) {
    return;
  }
  float weight_low[PAIRS(D)];
  float weight_high[PAIRS(D)];
  head_weights<D>(weight, format, lane, weight_low, weight_high);
  head_normalise<D>(eps, low, high);
  head_multiply<D>(weight_low, weight_high, low, high);
}

// a · b / 2^64, to 3 units.
static inline ulong product_high(ulong a, ulong b) {
  const ulong upper = a >> 32;
  const ulong other = b >> 32;
  return upper * other + (upper * (b & 0xffffffffu) >> 32) + ((a & 0xffffffffu) * other >> 32);
}

// Turns per position of this lane's pairs lane + 32m, in units of 2^-64. The bits of the lane's number are common to all.
template <int D>
static inline void head_turns(constant AttentionParams& p, uint lane, thread ulong* turns) {
  ulong common = (ulong(p.turns_high) << 32) | p.turns_low;
  #pragma clang loop unroll(full)
  for (uint j = 0; j < 5; j++) {
    const ulong ratio = (ulong(p.ratio_high[j]) << 32) | p.ratio_low[j];
    common = (lane >> j & 1) != 0 ? product_high(common, ratio) : common;
  }
  turns[0] = common;
  #pragma clang loop unroll(full)
  for (uint j = 0; j < kRatios - 5; j++) {
    const ulong ratio = (ulong(p.ratio_high[j + 5]) << 32) | p.ratio_low[j + 5];
    #pragma clang loop unroll(full)
    for (uint m = 0; m < 1u << j; m++) {
      if (m + (1u << j) < PAIRS(D)) {
        turns[m + (1u << j)] = product_high(turns[m], ratio);
      }
    }
  }
}

// Sine and cosine of phase / 2^32 turns. What is left of the phase beyond a whole number of quarter turns is exact.
static inline void turn_sincos(uint phase, thread float& sine, thread float& cosine) {
  const uint quarter = (phase + 0x20000000u) >> 30;
  const float r = float(int(phase - (quarter << 30))) * kTurn;  // -π/4 … π/4
  const float z = r * r;
  const float s = fma(r * z, fma(z, fma(z, -1.9515296e-4f, 8.3321609e-3f), -1.6666655e-1f), r);
  const float c = fma(z * z, fma(z, fma(z, 2.4433157e-5f, -1.3887316e-3f), 4.1666646e-2f), fma(-0.5f, z, 1.0f));
  const bool odd = (quarter & 1) != 0;
  sine = (quarter & 2) != 0 ? -(odd ? c : s) : odd ? c : s;
  cosine = ((quarter + 1) & 2) != 0 ? -(odd ? s : c) : odd ? s : c;
}

// Sines and cosines of this lane's pairs at `position`, and the pairs below rotated_pairs turned by them.
template <int D>
static inline void head_angles(
    constant AttentionParams& p, uint position, uint lane, thread float* sines, thread float* cosines) {
  ulong turns[PAIRS(D)];
  head_turns<D>(p, lane, turns);
  #pragma clang loop unroll(full)
  for (uint m = 0; m < PAIRS(D); m++) {
    turn_sincos(uint(turns[m] * position >> 32), sines[m], cosines[m]);  // whole turns overflow away
  }
}
template <int D>
static inline void head_turn(
    thread const float* sines, thread const float* cosines, uint rotated_pairs, uint lane, thread float* low, thread float* high) {
  #pragma clang loop unroll(full)
  for (uint m = 0; m < PAIRS(D); m++) {
    if (lane + 32 * m < rotated_pairs) {
      const float x = low[m];
      low[m] = fma(x, cosines[m], -high[m] * sines[m]);
      high[m] = fma(high[m], cosines[m], x * sines[m]);
    }
  }
}

// Turns each pair below rotated_pairs by its angle at `position`.
template <int D>
static inline void head_rotate(
    thread const ulong* turns, uint rotated_pairs, uint position, uint lane, thread float* low, thread float* high) {
  #pragma clang loop unroll(full)
  for (uint m = 0; m < PAIRS(D); m++) {
    if (lane + 32 * m < rotated_pairs) {
      float s;
      float c;
      turn_sincos(uint(turns[m] * position >> 32), s, c);  // whole turns overflow away
      const float x = low[m];
      low[m] = fma(x, c, -high[m] * s);
      high[m] = fma(high[m], c, x * s);
    }
  }
}

// Pages hold 32 tokens of a head as numbers T [32, D], or as codes char [32, D] and after them their scales, float [32]: a value
// is scale · code. Both are HEAD_ELEMENTS elements of T.
#define IS_CODES(T) (sizeof(T) == 1)
#define HEAD_ELEMENTS(T, D) (kTokensPerPage * (IS_CODES(T) ? D + 4 : D))

// What lies beyond the largest half becomes that, infinity too, as on the CPU: a stored key or value must stay finite. NaN stays.
static inline float in_half(float x) { return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x; }

// The head as the pages hold it: numbers rounded to their type, or codes, whose scale is returned; that of numbers is 1. The
// largest value of a head has the code 127, others are rounded to even. NaN and Inf stay visible in the scale.
template <typename T, int D>
static inline float head_round(thread float* low, thread float* high) {
  if (!IS_CODES(T)) {
    #pragma clang loop unroll(full)
    for (uint m = 0; m < PAIRS(D); m++) {
      low[m] = float(T(sizeof(T) == 2 ? in_half(low[m]) : low[m]));
      high[m] = float(T(sizeof(T) == 2 ? in_half(high[m]) : high[m]));
    }
    return 1.0f;
  }
  float largest = 0.0f;
  float poison = 0.0f;
  #pragma clang loop unroll(full)
  for (uint m = 0; m < PAIRS(D); m++) {
    largest = max3(largest, fabs(low[m]), fabs(high[m]));
    poison += low[m] * 0.0f + high[m] * 0.0f;
  }
  largest = simd_max(largest);
  const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
  #pragma clang loop unroll(full)
  for (uint m = 0; m < PAIRS(D); m++) {
    const float a = rint(low[m] * inverse);
    const float b = rint(high[m] * inverse);
    low[m] = fabs(a) <= 127.0f ? a : 0.0f;
    high[m] = fabs(b) <= 127.0f ? b : 0.0f;
  }
  return largest / 127.0f + simd_sum(poison);
}

template <int D>
static inline void head_q(
    device const float* row, device const uchar* q_norm, constant AttentionParams& p, uint head, uint position, uint lane,
    thread float* low, thread float* high) {
  head_load<D>(row + head * D, lane, low, high);
  ulong turns[PAIRS(D)];
  head_turns<D>(p, lane, turns);
  head_norm<D>(q_norm, p.q_norm, p.eps, lane, low, high);
  head_rotate<D>(turns, p.rotated_pairs, position + p.position_offset, lane, low, high);
}

// What the pages hold for k, see head_round.
template <typename T, int D>
static inline float head_k(
    device const float* row, device const uchar* k_norm, constant AttentionParams& p, uint kv_head, uint position,
    uint lane, thread float* low, thread float* high) {
  head_load<D>(row + p.k_column + kv_head * D, lane, low, high);
  ulong turns[PAIRS(D)];
  head_turns<D>(p, lane, turns);
  head_norm<D>(k_norm, p.k_norm, p.eps, lane, low, high);
  head_rotate<D>(turns, p.rotated_pairs, position + p.position_offset, lane, low, high);
  return head_round<T, D>(low, high);
}

template <typename T, int D>
static inline float head_v(
    device const float* row, constant AttentionParams& p, uint kv_head, uint lane, thread float* low, thread float* high) {
  head_load<D>(row + p.v_column + kv_head * D, lane, low, high);
  if (p.flags & kNormaliseValue) {
    head_normalise<D>(p.eps, low, high);
  }
  return head_round<T, D>(low, high);
}

// Stores what head_round has left as token `slot` of a head of a page.
template <typename T, int D>
static inline void head_store(
    device T* head, uint slot, uint lane, thread const float* low, thread const float* high, float scale) {
  device T* to = head + slot * D;
  #pragma clang loop unroll(full)
  for (uint m = 0; m < PAIRS(D); m++) {
    const uint i = lane + 32 * m;
    if (i < D / 2) {
      to[i] = T(low[m]);
      to[i + D / 2] = T(high[m]);
    }
  }
  if (IS_CODES(T) && lane == 0) {
    ((device float*)(head + kTokensPerPage * D))[slot] = scale;
  }
}

// Shares the head times `scale`.
template <typename T, int D>
static inline void head_share(
    threadgroup T* to, uint lane, thread const float* low, thread const float* high, float scale) {
  #pragma clang loop unroll(full)
  for (uint m = 0; m < PAIRS(D); m++) {
    const uint i = lane + 32 * m;
    if (i < D / 2) {
      to[i] = T(low[m] * scale);
      to[i + D / 2] = T(high[m] * scale);
    }
  }
}

// Row of the input block that row `i` of a dispatch stands for.
static inline uint input_row(device const uint* input, constant AttentionParams& p, uint i) {
  return p.gathered ? input[p.out_row_word + p.first_row + i] : p.first_row + i;
}

// Id of the sequence's page that holds positions from 32 · page on; the sequence holds it.
static inline uint row_page(device const uint* input, constant AttentionParams& p, uint sequence, uint page) {
  const uint start = input[p.pages_word + sequence];
  const uint first = input[p.pages_word + p.sequences + sequence];
  return input[p.table_word + start + page - first];
}

// First key that a row at `position` sees.
static inline uint first_key(constant AttentionParams& p, uint position) {
  return p.window == 0 || position < p.window ? 0 : position - p.window + 1;
}

// Keys in a part of the context of a row at `position`, for split attention.
static inline uint part_keys(uint position) {
  const uint blocks = position / kBlockTokens + 1;
  return (blocks + kMostSplits - 1) / kMostSplits * kBlockTokens;
}

// The same of attention_spread: of eight parts up to 2,048 keys, in multiples of `least`, and of 256 beyond. The later parts may be empty.
static inline uint spread_keys(uint position, uint least) {
  return position < 2048 ? (position / (8 * least) + 1) * least : part_keys(position);
}

// Elements before a head's 32 keys in page `page`; V's keys follow at plane + 1.
template <typename T, int D>
static inline ulong page_offset(constant AttentionParams& p, uint page, uint plane, uint kv_head) {
  return ((ulong(page) * p.planes + plane) * p.kv_heads + kv_head) * HEAD_ELEMENTS(T, D);
}

// Scale of token `slot` of a head of a page of codes.
template <typename T, int D>
static inline float slot_scale(device const T* head, uint slot) {
  return ((device const float*)(head + kTokensPerPage * D))[slot];
}

// N consecutive values as they are in memory, in one load or, for f32, two.
template <typename T, uint N>
struct Run;
template <>
struct Run<half, 8> {
  uint4 bits;
};
template <>
struct Run<float, 8> {
  float4 low;
  float4 high;
};
template <>
struct Run<char, 8> {
  uint2 bits;
};
template <>
struct Run<char, 16> {
  uint4 bits;
};

static inline void load_raw(device const half* from, thread Run<half, 8>& to) {
  to.bits = *(device const uint4*)from;
}
static inline void load_raw(device const float* from, thread Run<float, 8>& to) {
  to.low = *(device const float4*)from;
  to.high = *(device const float4*)(from + 4);
}
static inline void load_raw(device const char* from, thread Run<char, 8>& to) {
  to.bits = *(device const uint2*)from;
}
static inline void load_raw(device const char* from, thread Run<char, 16>& to) {
  to.bits = *(device const uint4*)from;
}

static inline void load_raw_shared(threadgroup const half* from, thread Run<half, 8>& to) {
  to.bits = *(threadgroup const uint4*)from;
}
static inline void load_raw_shared(threadgroup const float* from, thread Run<float, 8>& to) {
  to.low = *(threadgroup const float4*)from;
  to.high = *(threadgroup const float4*)(from + 4);
}
static inline void load_raw_shared(threadgroup const char* from, thread Run<char, 8>& to) {
  to.bits = *(threadgroup const uint2*)from;
}
static inline void load_raw_shared(threadgroup const char* from, thread Run<char, 16>& to) {
  to.bits = *(threadgroup const uint4*)from;
}

// Four codes as float: each goes into the mantissa of 2^23 as code + 128, which is then subtracted. Exact, and cheaper than a
// conversion where that runs at a fraction of the rate.
static inline void widen_codes(uint bits, thread float* to) {
  const uint moved = bits ^ 0x80808080u;
  #pragma clang loop unroll(full)
  for (uint i = 0; i < 4; i++) {
    to[i] = as_type<float>((moved >> 8 * i & 0xffu) | 0x4b000000u) - 8388736.0f;
  }
}

// Values 8 · part … 8 · part + 7 of a run as float; of codes without their scale.
static inline void widen(thread const Run<half, 8>& from, uint, thread float* to) {
  #pragma clang loop unroll(full)
  for (uint i = 0; i < 4; i++) {
    const float2 v = float2(as_type<half2>(from.bits[i]));
    to[2 * i] = v.x;
    to[2 * i + 1] = v.y;
  }
}
static inline void widen(thread const Run<float, 8>& from, uint, thread float* to) {
  #pragma clang loop unroll(full)
  for (uint i = 0; i < 4; i++) {
    to[i] = from.low[i];
    to[4 + i] = from.high[i];
  }
}
static inline void widen(thread const Run<char, 8>& from, uint, thread float* to) {
  widen_codes(from.bits.x, to);
  widen_codes(from.bits.y, to + 4);
}
static inline void widen(thread const Run<char, 16>& from, uint part, thread float* to) {
  widen_codes(from.bits[2 * part], to);
  widen_codes(from.bits[2 * part + 1], to + 4);
}

#endif
