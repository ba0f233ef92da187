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

// Puts the ids of the best into `chosen` and e^(logit - the largest) of each into `shares`; returns the sum of these. Lanes read
// the logits for each anew.
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
  const float sum = choose_many(from, p, lane, chosen, shares);
  if (p.has_shares != 0) {
    for (uint s = lane; s < p.slots; s += 32) {
      shares[s] = shares[s] / sum * load_scalar(scale, p.scale_format, chosen[s]);
    }
  }
}

// The same of up to kFewLogits logits and kFewSlots slots, with shares: the place of each logit is the number of those before it.
// Grid: rows.
[[kernel, max_total_threads_per_threadgroup(256)]] void best_few(
    device const float* logits  [[buffer(0)]],
    device const uchar* scale   [[buffer(1)]],
    device uint* ids            [[buffer(2)]],
    device float* y             [[buffer(3)]],
    constant BestParams& p      [[buffer(4)]],
    uint row       [[threadgroup_position_in_grid]],
    uint tid       [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane      [[thread_index_in_simdgroup]])
{
  threadgroup uint4 orders[kFewLogits / 4];
  threadgroup uint ranks[kFewLogits];
  threadgroup uint chosen[kFewSlots];
  threadgroup float chosen_logits[kFewSlots];
  // Two threads share the others of a logit where there are as many.
  const uint each = p.count <= kFewLogits / 2 ? kFewLogits / 2 : kFewLogits;
  const uint i = tid % each;
  const float logit = logits[ulong(row) * p.count + min(i, p.count - 1)] * p.factor;
  // A NaN comes after all others, yet before none.
  const uint order = i < p.count ? max(order_of(logit), 1u) : 0;
  if (tid < each) {
    ((threadgroup uint*)orders)[tid] = order;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint quads = each * each / (4 * kFewLogits);  // of a thread
  const uint first = tid / each * quads;
  uint rank = 0;
  for (uint q = first; q < first + quads; q++) {
    const uint4 other = orders[q];
    rank += other.x > (4 * q < i ? order - 1 : order) ? 1 : 0;
    rank += other.y > (4 * q + 1 < i ? order - 1 : order) ? 1 : 0;
    rank += other.z > (4 * q + 2 < i ? order - 1 : order) ? 1 : 0;
    rank += other.w > (4 * q + 3 < i ? order - 1 : order) ? 1 : 0;
  }
  ranks[tid] = rank;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  rank += each < kFewLogits && tid < each ? ranks[tid + each] : 0;
  if (tid < each && i < p.count && rank < p.slots) {
    chosen[rank] = i;
    chosen_logits[rank] = logit;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simdgroup != 0) {
    return;
  }
  const uint slot = min(lane, p.slots - 1);
  const uint id = chosen[slot];
  const float e = precise::exp(chosen_logits[slot] - chosen_logits[0]);
  float sum = 0.0f;
  for (uint s = 0; s < p.slots; s++) {
    sum += simd_shuffle(e, ushort(s));
  }
  if (lane < p.slots) {
    ids[row * p.slots + lane] = id;
    y[row * p.slots + lane] = e / sum * load_scalar(scale, p.scale_format, id);
  }
}
