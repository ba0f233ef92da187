// candidates.metal: the best 256 tokens of each row, and its log-sum-exps, by lists: candidates_chunk makes one for each 8192
// logits, candidates_merge makes one of 34 where there are more, candidates_finish sorts the last.
//
// A list has 256 entries of 64 bits in no particular order. An entry orders as its token does: the adjusted logit
// above, the lower id first among equals. 0 is no token. Beside each list stand four sums over its tokens.
#include "common.h"
#include "input_block.h"
#include "candidates_params.h"

constant constexpr uint kSimdgroups = kSelectThreads / 32;
constant constexpr uint kChunkEach = kChunkLogits / kSelectThreads;
constant constexpr uint kFewEach = 8;
constant constexpr uint kFewEntries = kFewEach * kSelectThreads;
constant constexpr float kNoLogit = -FLT_MAX;
constant constexpr uint kMinusInfinity = 0xff800000u;
constant constexpr uint kNoToken = 0xffffffffu;

// The order of floats as that of unsigned integers; -0 equals 0, and no number becomes 0.
static inline uint order_of(float x) {
  const uint bits = as_type<uint>(x) == 0x80000000u ? 0 : as_type<uint>(x);
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}
static inline float logit_of(ulong entry) {
  const uint order = uint(entry >> 32);
  return as_type<float>(order ^ ((order >> 31) != 0 ? 0x80000000u : 0xffffffffu));
}
static inline uint token_of(ulong entry) {
  return ~uint(entry);
}

// Sums over the threadgroup of three counts, of at most 34 in a thread. `partial` is another one at each second call, so that one
// barrier a call will do.
static inline uint3 threadgroup_counts(uint3 counts, threadgroup uint2* partial, uint simdgroup, uint lane) {
  const uint2 mine = uint2(simd_sum(counts.x | counts.y << 16), simd_sum(counts.z));
  if (lane == 0) {
    partial[simdgroup] = mine;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint2 theirs = lane < kSimdgroups ? partial[lane] : uint2(0u, 0u);
  const uint two = simd_sum(theirs.x);
  return uint3(two & 0xffffu, two >> 16, simd_sum(theirs.y));
}

// Largest of, and sum over, the threadgroup. `partial` is nobody's before and after.
static inline float threadgroup_largest(float x, threadgroup float* partial, uint simdgroup, uint lane) {
  const float largest = simd_max(x);
  if (lane == 0) {
    partial[simdgroup] = largest;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return simd_max(partial[lane % kSimdgroups]);
}
static inline float threadgroup_total(float x, threadgroup float* partial, uint simdgroup, uint lane) {
  const float sum = simd_sum(x);
  if (lane == 0) {
    partial[simdgroup] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return simd_sum(lane < kSimdgroups ? partial[lane] : 0.0f);
}

// Of the four values of two bits behind `least` the largest that at least 256 entries are no less than; how many these are goes
// to `above`. T: of entries' upper halves, or of entries.
template <typename T, int N>
static inline T with_two_bits(
    thread const T* entries, T least, uint bits, thread uint& above, threadgroup uint2* partial, uint simdgroup, uint lane)
{
  const T step = T(1) << (bits - 2);
  uint one = 0;
  uint two = 0;
  uint three = 0;
  #pragma clang loop unroll(full)
  for (uint i = 0; i < N; i++) {
    one += entries[i] >= least + step ? 1 : 0;
    two += entries[i] >= least + 2 * step ? 1 : 0;
    three += entries[i] >= least + 3 * step ? 1 : 0;
  }
  const uint3 counts = threadgroup_counts(uint3(one, two, three), partial + bits / 2 % 2 * kSimdgroups, simdgroup, lane);
  if (counts.x < kListEntries) {
    return least;
  }
  const uint times = counts.z >= kListEntries ? 3 : counts.y >= kListEntries ? 2 : 1;
  above = times == 3 ? counts.z : times == 2 ? counts.y : counts.x;
  return least + times * step;
}

// Where a thread's entries go among all: `before` becomes how many threads before this one have; returns how many there are in all.
// It uses the second half of `partial`, the counts that may follow at once the first. All threads of the threadgroup call this.
static inline uint places(uint mine, thread uint& before, threadgroup uint2* partial, uint simdgroup, uint lane) {
  threadgroup uint2* totals = partial + kSimdgroups;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  before = simd_prefix_exclusive_sum(mine);
  if (lane == 31) {
    totals[simdgroup].x = before + mine;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint theirs = lane < kSimdgroups ? totals[lane].x : 0u;
  before += simd_sum(lane < simdgroup ? theirs : 0u);
  return simd_sum(theirs);
}

// Puts the best 256 of the threadgroup's entries, N for each thread, into list[256], 0 where there are fewer.
//
// The 256th best is found from the top, two bits at a time. Logits, the upper halves, mostly tell all entries apart that matter;
// where they do not, the lower halves do. Entries differ (those of no token apart), so this ends with exactly 256 above or with 0,
// and mostly long before the last bits. `partial` holds 2 kSimdgroups.
template <int N>
static inline void select_of_all(
    thread const ulong* entries, threadgroup ulong* list, threadgroup uint2* partial, uint tid, uint simdgroup, uint lane)
{
  uint logits[N];
  #pragma clang loop unroll(full)
  for (uint i = 0; i < N; i++) {
    logits[i] = uint(entries[i] >> 32);
  }
  uint above = kListEntries + 1;
  uint least_logit = 0;
  for (uint bits = 32; bits > 0 && above != kListEntries; bits -= 2) {
    least_logit = with_two_bits<uint, N>(logits, least_logit, bits, above, partial, simdgroup, lane);
  }
  ulong least = ulong(least_logit) << 32;
  for (uint bits = 32; bits > 0 && above != kListEntries && least_logit != 0; bits -= 2) {
    least = with_two_bits<ulong, N>(entries, least, bits, above, partial, simdgroup, lane);
  }
  least = max(least, ulong(1));
  uint mine = 0;
  #pragma clang loop unroll(full)
  for (uint i = 0; i < N; i++) {
    mine += entries[i] >= least ? 1 : 0;
  }
  list[tid] = 0;
  uint at;
  places(mine, at, partial, simdgroup, lane);
  #pragma clang loop unroll(full)
  for (uint i = 0; i < N; i++) {
    if (entries[i] >= least) {
      list[at] = entries[i];
      at++;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// The same by way of those few that are no less than the least of the threads' best: 256 are, so all others are out. Where that
// leaves more than `few` has room for, of all. few: [kFewEntries].
template <int N>
static inline void select_best(
    thread const ulong* entries, threadgroup ulong* list, threadgroup ulong* few, threadgroup uint2* partial, uint tid,
    uint simdgroup, uint lane)
{
  uint best = 0;
  #pragma clang loop unroll(full)
  for (uint i = 0; i < N; i++) {
    best = max(best, uint(entries[i] >> 32));
  }
  best = simd_min(best);
  if (lane == 0) {
    partial[kSimdgroups + simdgroup].x = best;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint bound = simd_min(partial[kSimdgroups + lane % kSimdgroups].x);
  uint mine = 0;
  #pragma clang loop unroll(full)
  for (uint i = 0; i < N; i++) {
    mine += uint(entries[i] >> 32) >= bound ? 1 : 0;
  }
  uint at;
  const uint left = places(mine, at, partial, simdgroup, lane);
  if (left > kFewEntries) {
    select_of_all<N>(entries, list, partial, tid, simdgroup, lane);
    return;
  }
  #pragma clang loop unroll(full)
  for (uint i = 0; i < N; i++) {
    if (uint(entries[i] >> 32) >= bound) {
      few[at] = entries[i];
      at++;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  ulong own[kFewEach];
  #pragma clang loop unroll(full)
  for (uint i = 0; i < kFewEach; i++) {
    const uint from = i * kSelectThreads + tid;
    own[i] = from < left ? few[from] : 0;
  }
  select_of_all<kFewEach>(own, list, partial, tid, simdgroup, lane);
}

// Sorts 256 entries into `sorted`, largest first: each goes to where as many are as are larger.
static inline void sort_list(threadgroup const ulong* list, threadgroup ulong* sorted, uint tid) {
  const ulong mine = list[tid];
  uint rank = 0;
  #pragma clang loop unroll_count(16)
  for (uint i = 0; i < kListEntries; i++) {
    rank += list[i] > mine ? 1 : 0;
  }
  sorted[tid] = 0;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (mine != 0) {
    sorted[rank] = mine;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// Sums of a list: the largest raw logit, Σ e^(raw - it), the largest adjusted logit of an allowed token, and
// Σ e^((adjusted - it) / temperature).
struct Sums {
  float raw_largest;
  float raw_sum;
  float largest;
  float sum;
};

static inline void load_sums(device const float* from, thread Sums& s) {
  s.raw_largest = from[0];
  s.raw_sum = from[1];
  s.largest = from[2];
  s.sum = from[3];
}

static inline void store_sums(device float* to, thread const Sums& s) {
  to[0] = s.raw_largest;
  to[1] = s.raw_sum;
  to[2] = s.largest;
  to[3] = s.sum;
}

// The sums of `count` lists, by one simdgroup; all its lanes get them.
static inline void add_sums(device const float* lists, uint count, float temperature, uint lane, thread Sums& total) {
  constexpr uint each = (kMergedLists + 31) / 32;
  Sums mine[each];
  total.raw_largest = kNoLogit;
  total.largest = kNoLogit;
  #pragma clang loop unroll(full)
  for (uint i = 0; i < each; i++) {
    mine[i].raw_largest = mine[i].largest = kNoLogit;
    mine[i].raw_sum = mine[i].sum = 0.0f;
    if (lane + 32 * i < count) {
      load_sums(lists + 4 * (lane + 32 * i), mine[i]);
    }
    total.raw_largest = max(total.raw_largest, mine[i].raw_largest);
    total.largest = max(total.largest, mine[i].largest);
  }
  total.raw_largest = simd_max(total.raw_largest);
  total.largest = simd_max(total.largest);
  total.raw_sum = 0.0f;
  total.sum = 0.0f;
  #pragma clang loop unroll(full)
  for (uint i = 0; i < each; i++) {
    total.raw_sum += mine[i].raw_sum * exp(mine[i].raw_largest - total.raw_largest);
    if (mine[i].sum > 0.0f) {
      total.sum += mine[i].sum * exp((mine[i].largest - total.largest) / temperature);
    }
  }
  total.raw_sum = simd_sum(total.raw_sum);
  total.sum = simd_sum(total.sum);
}

// First index in [from, to) of ascending ids whose id is not below `id`, or `to`.
static inline uint lower_bound(device const uint* ids, uint from, uint to, uint id) {
  while (from < to) {
    const uint middle = from + (to - from) / 2;
    if (ids[middle] < id) {
      from = middle + 1;
    } else {
      to = middle;
    }
  }
  return from;
}

// This thread's entry of each list, 0 beyond `count`.
static inline void load_lists(device const ulong* entries, uint count, uint tid, thread ulong* found) {
  #pragma clang loop unroll(full)
  for (uint i = 0; i < kMergedLists; i++) {
    found[i] = i < count ? entries[i * kListEntries + tid] : 0;
  }
}

// One chunk of a row. Grid: chunks, rows.
// logits: f32 [rows, V]; entries: u64 [rows, lists, 256]; sums: f32 [rows, lists, 4]
[[kernel]] [[max_total_threads_per_threadgroup(256)]] void candidates_chunk(
    device const float* logits [[buffer(0)]],
    device const uint* input [[buffer(1)]],
    device ulong* entries [[buffer(2)]],
    device float* sums [[buffer(3)]],
    constant CandidatesParams& p [[buffer(4)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
  threadgroup ulong list[kListEntries];
  threadgroup ulong few[kFewEntries];
  threadgroup float partial[4 * kSimdgroups];
  threadgroup uint2 counts[2 * kSimdgroups];

  const uint row = p.first_row + group.y;
  const uint begin = group.x * kChunkLogits;
  const uint end = min(begin + kChunkLogits, p.vocabulary);
  device const float* x = logits + ulong(group.y) * p.vocabulary;
  const float temperature = input_temperature(input, p.groups)[row];
  const uint mask_index = input_mask_of(input, p.groups)[row];
  const uint mask_words = (p.vocabulary + 31) / 32;
  device const uint* mask = input_mask(input, p.groups) + (mask_index == kNoPage ? 0 : mask_index * mask_words);

  // Adjustments of the chunk's tokens: [low, high) of the row's, by ascending id.
  device const uint* ids = input_adjustment_id(input, p.groups);
  device const float* multiply = input_adjustment_multiply(input, p.groups);
  device const float* add = input_adjustment_add(input, p.groups);
  const uint first = input_adjustment_start(input, p.groups)[row];
  const uint last = input_adjustment_start(input, p.groups)[row + 1];
  const uint low = lower_bound(ids, first, last, begin);
  const uint high = lower_bound(ids, low, last, end);

  float raw[kChunkEach];
  #pragma clang loop unroll(full)
  for (uint i = 0; i < kChunkEach; i++) {
    raw[i] = x[min(begin + i * kSelectThreads + tid, end - 1)];
  }
  // The largest first: it wants all logits, so that all are on their way at once.
  float largest = kNoLogit;
  #pragma clang loop unroll(full)
  for (uint i = 0; i < kChunkEach; i++) {
    largest = max(largest, raw[i]);  // those beyond the end are the last one again
  }
  ulong found[kChunkEach];
  Sums s;
  s.raw_largest = threadgroup_largest(largest, partial, simdgroup, lane);
  s.largest = s.raw_largest;
  s.raw_sum = 0.0f;
  #pragma clang loop unroll(full)
  for (uint i = 0; i < kChunkEach; i++) {
    const uint id = begin + i * kSelectThreads + tid;
    found[i] = id < end ? (ulong(order_of(raw[i])) << 32) | ulong(~id) : 0;
    s.raw_sum += id < end ? exp(raw[i] - s.raw_largest) : 0.0f;
  }
  if (low < high || mask_index != kNoPage) {
    largest = kNoLogit;
    #pragma clang loop unroll(full)
    for (uint i = 0; i < kChunkEach; i++) {
      const uint id = begin + i * kSelectThreads + tid;
      if (id < end && low < high) {
        const uint a = lower_bound(ids, low, high, id);
        if (a < high && ids[a] == id) {
          const float value = (raw[i] > 0.0f ? raw[i] * multiply[a] : raw[i] / multiply[a]) + add[a];
          found[i] = (ulong(order_of(value)) << 32) | ulong(~id);
        }
      }
      if (id < end && mask_index != kNoPage && (mask[id / 32] >> (id % 32) & 1) == 0) {
        found[i] = 0;
      }
      largest = max(largest, found[i] != 0 ? logit_of(found[i]) : kNoLogit);
    }
    s.largest = threadgroup_largest(largest, partial + kSimdgroups, simdgroup, lane);
  }
  s.sum = 0.0f;
  const float inverse = 1.0f / temperature;
  #pragma clang loop unroll(full)
  for (uint i = 0; i < kChunkEach; i++) {
    s.sum += found[i] != 0 ? exp((logit_of(found[i]) - s.largest) * inverse) : 0.0f;
  }
  s.raw_sum = threadgroup_total(s.raw_sum, partial + 2 * kSimdgroups, simdgroup, lane);
  s.sum = threadgroup_total(s.sum, partial + 3 * kSimdgroups, simdgroup, lane);

  select_best<kChunkEach>(found, list, few, counts, tid, simdgroup, lane);
  const uint at = group.y * p.lists + group.x;
  entries[at * kListEntries + tid] = list[tid];
  if (tid == 0) {
    store_sums(sums + 4 * at, s);
  }
}

// One list of up to 34. Grid: lists that are written, rows. Shapes as above.
[[kernel]] [[max_total_threads_per_threadgroup(256)]] void candidates_merge(
    device const ulong* entries [[buffer(0)]],
    device const float* sums [[buffer(1)]],
    device const uint* input [[buffer(2)]],
    device ulong* merged_entries [[buffer(3)]],
    device float* merged_sums [[buffer(4)]],
    constant CandidatesParams& p [[buffer(5)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
  threadgroup ulong list[kListEntries];
  threadgroup ulong few[kFewEntries];
  threadgroup uint2 counts[2 * kSimdgroups];
  const uint first = group.x * kMergedLists;
  const uint count = min(p.lists - first, uint(kMergedLists));
  const uint from = group.y * p.lists + first;
  ulong found[kMergedLists];
  load_lists(entries + from * kListEntries, count, tid, found);
  select_best<kMergedLists>(found, list, few, counts, tid, simdgroup, lane);
  const uint at = group.y * p.merged + group.x;
  merged_entries[at * kListEntries + tid] = list[tid];
  if (simdgroup == 0) {
    Sums s;
    add_sums(sums + 4 * from, count, input_temperature(input, p.groups)[p.first_row + group.y], lane, s);
    if (lane == 0) {
      store_sums(merged_sums + 4 * at, s);
    }
  }
}

// The result of a row from its last lists, at most 34. Grid: rows.
// ids: u32 [rows, 256]; values: f32 [rows, 256]; stats: f32 [rows, 4]
[[kernel]] [[max_total_threads_per_threadgroup(256)]] void candidates_finish(
    device const ulong* entries [[buffer(0)]],
    device const float* sums [[buffer(1)]],
    device const uint* input [[buffer(2)]],
    device uint* ids [[buffer(3)]],
    device float* values [[buffer(4)]],
    device float* stats [[buffer(5)]],
    constant CandidatesParams& p [[buffer(6)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
  threadgroup ulong list[kListEntries];
  threadgroup ulong few[kFewEntries];
  threadgroup ulong sorted[kListEntries];
  threadgroup uint2 counts[2 * kSimdgroups];
  const uint from = row * p.lists;
  ulong found[kMergedLists];
  load_lists(entries + from * kListEntries, p.lists, tid, found);
  select_best<kMergedLists>(found, list, few, counts, tid, simdgroup, lane);
  sort_list(list, sorted, tid);
  const ulong entry = sorted[tid];
  ids[row * kListEntries + tid] = entry == 0 ? kNoToken : token_of(entry);
  values[row * kListEntries + tid] = entry == 0 ? as_type<float>(kMinusInfinity) : logit_of(entry);
  if (simdgroup > 0) {
    return;
  }
  const float temperature = input_temperature(input, p.groups)[p.first_row + row];
  Sums s;
  add_sums(sums + 4 * from, p.lists, temperature, lane, s);
  if (lane == 0) {
    stats[4 * row] = s.raw_largest + log(s.raw_sum);
    stats[4 * row + 1] = entry == 0 ? as_type<float>(kMinusInfinity) : s.largest / temperature + log(s.sum);
    stats[4 * row + 2] = entry == 0 ? as_type<float>(kMinusInfinity) : logit_of(entry);
    stats[4 * row + 3] = 0.0f;
  }
}
