// best.metal: the K best of each row: experts with their shares, or centroids.
#include "common.h"
#include "experts_params.h"

// Orders floats as unsigned integers, NaN below all; both zeros are one number.
static inline uint order_of(float v) {
  const uint bits = as_type<uint>(v);
  const uint magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return 0u;
  }
  return magnitude == 0 ? 0x80000000u : (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

constant constexpr uint kFewEach = 8;  // logits of a row that a lane holds

// Puts the ids of the best into `chosen` and e^(logit - the largest) of each into `shares`; returns the sum of these. Of up to
// 32 kFewEach logits, which lanes hold.
static inline float choose_few(
    device const float* from, constant BestParams& p, uint lane, device uint* chosen, device float* shares)
{
  float logits[kFewEach];
  uint orders[kFewEach];  // 0 where it is chosen already or there is none
  #pragma clang loop unroll(full)
  for (uint n = 0; n < kFewEach; n++) {
    const uint i = lane + 32 * n;
    logits[n] = from[min(i, p.count - 1)] * p.factor;
    // A NaN comes after all others, yet before none.
    orders[n] = i < p.count ? max(order_of(logits[n]), 1u) : 0;
  }
  float largest = 0.0f;
  float sum = 0.0f;
  for (uint s = 0; s < p.slots; s++) {
    uint mine = 0;
    #pragma clang loop unroll(full)
    for (uint n = 0; n < kFewEach; n++) {
      mine = max(mine, orders[n]);
    }
    const uint order = simd_max(mine);
    uint id = 0xffffffffu;
    #pragma clang loop unroll(full)
    for (uint n = 0; n < kFewEach; n++) {
      id = min(id, orders[n] == order ? lane + 32 * n : 0xffffffffu);
    }
    id = simd_min(id);
    float logit = 0.0f;
    #pragma clang loop unroll(full)
    for (uint n = 0; n < kFewEach; n++) {
      if (id == lane + 32 * n) {
        logit = logits[n];
        orders[n] = 0;
      }
    }
    logit = simd_shuffle(logit, ushort(id % 32));
    largest = s == 0 ? logit : largest;
    const float e = precise::exp(logit - largest);
    sum += e;
    // A slot belongs to one lane, which alone reads what it has written.
    if (lane == s % 32) {
      chosen[s] = id;
      if (p.has_shares != 0) {
        shares[s] = e;
      }
    }
  }
  return sum;
}

// The same of any number, which lanes read for each anew.
static inline float choose_many(
    device const float* from, constant BestParams& p, uint lane, device uint* chosen, device float* shares)
{
  // The one before in the order: the next is the largest below it.
  uint last_order = 0xffffffffu;
  uint last_id = 0;
  float largest = 0.0f;
  float sum = 0.0f;
  for (uint s = 0; s < p.slots; s++) {
    uint mine = 0;
    uint mine_id = 0xffffffffu;
    for (uint i = lane; i < p.count; i += 32) {
      const uint order = order_of(from[i] * p.factor);
      const bool below = s == 0 || order < last_order || (order == last_order && i > last_id);
      if (below && (mine_id == 0xffffffffu || order > mine)) {
        mine = order;
        mine_id = i;
      }
    }
    last_order = simd_max(mine);
    last_id = simd_min(mine == last_order ? mine_id : 0xffffffffu);
    // A slot belongs to one lane, which alone reads what it has written.
    if (lane == s % 32) {
      chosen[s] = last_id;
    }
    if (p.has_shares != 0) {
      const float logit = from[last_id] * p.factor;
      largest = s == 0 ? logit : largest;
      const float e = precise::exp(logit - largest);
      sum += e;
      if (lane == s % 32) {
        shares[s] = e;
      }
    }
  }
  return sum;
}

// ids [rows, slots]: where a row of logits [rows, count] · factor is largest, in descending order, ties by lower index and NaN
// last. y [rows, slots]: softmax over these · scale [count] at each. A simdgroup makes a row; grid: rows by 8.
[[kernel, max_total_threads_per_threadgroup(256)]] void best(
    device const float* logits  [[buffer(0)]],
    device const uchar* scale   [[buffer(1)]],
    device uint* ids            [[buffer(2)]],
    device float* y             [[buffer(3)]],
    constant BestParams& p      [[buffer(4)]],
    uint tg        [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane      [[thread_index_in_simdgroup]])
{
  const uint row = tg * 8 + simdgroup;
  if (row >= p.rows) {
    return;
  }
  device const float* from = logits + ulong(row) * p.count;
  device uint* chosen = ids + ulong(row) * p.slots;
  device float* shares = y + ulong(row) * p.slots;
  const float sum = p.count <= 32 * kFewEach
      ? choose_few(from, p, lane, chosen, shares) : choose_many(from, p, lane, chosen, shares);
  if (p.has_shares != 0) {
    for (uint s = lane; s < p.slots; s += 32) {
      shares[s] = shares[s] / sum * load_scalar(scale, p.scale_format, chosen[s]);
    }
  }
}
