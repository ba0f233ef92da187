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

// The norm with weight [D] in the given format; none with kNoNorm.
template <int D>
static inline void head_norm(
    device const uchar* weight, uint format, float eps, uint lane, thread float* low, thread float* high) {
  if (format == kNoNorm) {
    return;
  }
  head_normalise<D>(eps, low, high);
  #pragma clang loop unroll(full)
  for (uint m = 0; m < PAIRS(D); m++) {
    const uint i = lane + 32 * m;
    if (i < D / 2) {
      low[m] *= load_scalar(weight, format, i);
      high[m] *= load_scalar(weight, format, i + D / 2);
    }
  }
}

// a · b / 2^64, to 3 units.
static inline ulong product_high(ulong a, ulong b) {
  const ulong upper = a >> 32;
  const ulong other = b >> 32;
  return upper * other + (upper * (b & 0xffffffffu) >> 32) + ((a & 0xffffffffu) * other >> 32);
}

// Angle of pair i at `position`, between -π and π.
static inline float rope_angle(constant AttentionParams& p, uint position, uint i) {
  ulong turns = (ulong(p.turns_high) << 32) | p.turns_low;
  #pragma clang loop unroll(full)
  for (uint j = 0; j < kRatios; j++) {
    const ulong ratio = (ulong(p.ratio_high[j]) << 32) | p.ratio_low[j];
    turns = (i >> j & 1) != 0 ? product_high(turns, ratio) : turns;
  }
  const uint phase = uint(turns * (position + p.position_offset) >> 32);  // whole turns overflow away
  return float(int(phase)) * kTurn;
}

// Turns each pair below rotated_pairs by its angle at `position`.
template <int D>
static inline void head_rotate(
    constant AttentionParams& p, uint position, uint lane, thread float* low, thread float* high) {
  #pragma clang loop unroll(full)
  for (uint m = 0; m < PAIRS(D); m++) {
    const uint i = lane + 32 * m;
    if (i < p.rotated_pairs) {
      const float angle = rope_angle(p, position, i);
      const float c = precise::cos(angle);
      const float s = precise::sin(angle);
      const float x = low[m];
      low[m] = fma(x, c, -high[m] * s);
      high[m] = fma(high[m], c, x * s);
    }
  }
}

template <int D>
static inline void head_q(
    device const float* row, device const uchar* q_norm, constant AttentionParams& p, uint head, uint position, uint lane,
    thread float* low, thread float* high) {
  head_load<D>(row + head * D, lane, low, high);
  head_norm<D>(q_norm, p.q_norm, p.eps, lane, low, high);
  head_rotate<D>(p, position, lane, low, high);
}

// The values that the pages hold for k: rounded to their type T.
template <typename T, int D>
static inline void head_k(
    device const float* row, device const uchar* k_norm, constant AttentionParams& p, uint kv_head, uint position,
    uint lane, thread float* low, thread float* high) {
  head_load<D>(row + p.k_column + kv_head * D, lane, low, high);
  head_norm<D>(k_norm, p.k_norm, p.eps, lane, low, high);
  head_rotate<D>(p, position, lane, low, high);
  #pragma clang loop unroll(full)
  for (uint m = 0; m < PAIRS(D); m++) {
    low[m] = float(T(low[m]));
    high[m] = float(T(high[m]));
  }
}

template <typename T, int D>
static inline void head_v(
    device const float* row, constant AttentionParams& p, uint kv_head, uint lane, thread float* low, thread float* high) {
  head_load<D>(row + p.v_column + kv_head * D, lane, low, high);
  if (p.flags & kNormaliseValue) {
    head_normalise<D>(p.eps, low, high);
  }
  #pragma clang loop unroll(full)
  for (uint m = 0; m < PAIRS(D); m++) {
    low[m] = float(T(low[m]));
    high[m] = float(T(high[m]));
  }
}

template <typename T, int D>
static inline void head_store(device T* to, uint lane, thread const float* low, thread const float* high) {
  #pragma clang loop unroll(full)
  for (uint m = 0; m < PAIRS(D); m++) {
    const uint i = lane + 32 * m;
    if (i < D / 2) {
      to[i] = T(low[m]);
      to[i + D / 2] = T(high[m]);
    }
  }
}

template <typename T, int D>
static inline void head_share(threadgroup T* to, uint lane, thread const float* low, thread const float* high) {
  #pragma clang loop unroll(full)
  for (uint m = 0; m < PAIRS(D); m++) {
    const uint i = lane + 32 * m;
    if (i < D / 2) {
      to[i] = T(low[m]);
      to[i + D / 2] = T(high[m]);
    }
  }
}

// Row of the input block that row `i` of a dispatch stands for.
static inline uint input_row(device const uint* input, constant AttentionParams& p, uint i) {
  return p.gathered ? input_out_row(input)[p.first_row + i] : p.first_row + i;
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

// Elements before a head's 32 keys in page `page`; V's keys follow at plane + 1.
template <int D>
static inline ulong page_offset(constant AttentionParams& p, uint page, uint plane, uint kv_head) {
  return ((ulong(page) * p.planes + plane) * p.kv_heads + kv_head) * (kTokensPerPage * D);
}

// Eight consecutive values as float; eight halves are one 16-byte load.
static inline void load_eight(device const half* from, thread float* to) {
  const uint4 bits = *(device const uint4*)from;
  for (uint i = 0; i < 4; i++) {
    const float2 v = float2(as_type<half2>(bits[i]));
    to[2 * i] = v.x;
    to[2 * i + 1] = v.y;
  }
}
static inline void load_eight(device const float* from, thread float* to) {
  for (uint i = 0; i < 8; i += 4) {
    const float4 v = *(device const float4*)(from + i);
    to[i] = v.x;
    to[i + 1] = v.y;
    to[i + 2] = v.z;
    to[i + 3] = v.w;
  }
}

// N consecutive values as float, N = 1, 2, 4 or 8.
template <int N, typename T>
static inline void load_values(device const T* from, thread float* to) {
  if (N == 8) {
    load_eight(from, to);
  } else if (N == 4) {
    const float4 v = float4(*(device const vec<T, 4>*)from);
    to[0] = v.x;
    to[1] = v.y;
    to[2] = v.z;
    to[3] = v.w;
  } else {
    for (uint i = 0; i < N; i++) {
      to[i] = float(from[i]);
    }
  }
}

#endif
