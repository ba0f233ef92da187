// The best tokens of each row after adjustments and masks, and the log-sum-exps that sampling needs.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "../context.h"

namespace mb {

namespace {

constexpr int64_t kCandidateCount = 256;
constexpr int64_t kTokenSegment = 16384;  // logits that one thread scans at a time; a multiple of a block and of a mask word
constexpr int64_t kBlock = 64;       // as Kernels::block_maxima
constexpr float kLowest = -std::numeric_limits<float>::infinity();

struct Segment {
  float raw_largest, largest;  // before and after adjustments
  double raw_sum, sum;         // of exp(logit - raw_largest) and exp((adjusted - largest) / temperature)
};

struct Candidate {
  float value;
  uint32_t id;
  bool operator<(const Candidate &other) const { return value != other.value ? value > other.value : id < other.id; }
};

int64_t segments_of(int64_t vocabulary) { return (vocabulary + kTokenSegment - 1) / kTokenSegment; }
int64_t blocks_of(int64_t vocabulary) { return (vocabulary + kBlock - 1) / kBlock; }

bool is_adjusted(const Input &in, int64_t r) {
  return in.adjustment_start[r + 1] > in.adjustment_start[r] || in.mask_of[r] != kNoPage;
}

// Adjusted logits of [first, last) of row r; excluded tokens become -infinity.
void adjust(const Input &in, int64_t r, int64_t first, int64_t last, int64_t vocabulary, const float *logits, float *out) {
  memcpy(out + first, logits + first, static_cast<size_t>(last - first) * sizeof(float));
  const uint32_t *ids = in.adjustment_id;
  const uint32_t *begin = std::lower_bound(ids + in.adjustment_start[r], ids + in.adjustment_start[r + 1], first);
  for (const uint32_t *id = begin; id != ids + in.adjustment_start[r + 1] && *id < last; id++) {
    const int64_t i = id - ids;
    const float logit = logits[*id], multiply = in.adjustment_multiply[i];
    out[*id] = (logit > 0 ? logit * multiply : logit / multiply) + in.adjustment_add[i];
  }
  if (in.mask_of[r] == kNoPage) return;
  const uint32_t *mask = in.mask + in.mask_of[r] * ((vocabulary + 31) / 32);
  for (int64_t id = first; id < last; id++) {
    if (!(mask[id / 32] >> (id % 32) & 1)) out[id] = kLowest;
  }
}

double log_sum(const Segment *segments, int64_t count, float Segment::*largest, double Segment::*sum, double scale) {
  float top = kLowest;
  for (int64_t s = 0; s < count; s++) top = std::max(top, segments[s].*largest);
  if (top == kLowest) return kLowest;
  double total = 0;
  for (int64_t s = 0; s < count; s++) {
    if (segments[s].*largest == kLowest) continue;
    total += segments[s].*sum * std::exp((segments[s].*largest - static_cast<double>(top)) * scale);
  }
  return top * scale + std::log(total);
}

// The best tokens of a row of adjusted logits; block maxima as kernels give them.
void select(const float *logits, int64_t vocabulary, const float *maxima, uint32_t *ids, float *values) {
  // At least 256 tokens reach the 256th largest block maximum, so none below it can be among the best.
  const int64_t blocks = blocks_of(vocabulary);
  float threshold = kLowest;
  if (blocks > kCandidateCount) {
    std::vector<float> sorted(maxima, maxima + blocks);
    std::nth_element(sorted.begin(), sorted.begin() + kCandidateCount - 1, sorted.end(), std::greater<float>());
    threshold = sorted[kCandidateCount - 1];
  }
  std::vector<Candidate> found;
  for (int64_t b = 0; b < blocks; b++) {
    if (!(maxima[b] >= threshold)) continue;
    const int64_t last = std::min(vocabulary, (b + 1) * kBlock);
    for (int64_t id = b * kBlock; id < last; id++) {
      if (logits[id] >= threshold && logits[id] > kLowest) found.push_back({logits[id], static_cast<uint32_t>(id)});
    }
  }
  const int64_t count = std::min<int64_t>(kCandidateCount, static_cast<int64_t>(found.size()));
  if (static_cast<int64_t>(found.size()) > count) std::nth_element(found.begin(), found.begin() + count, found.end());
  std::sort(found.begin(), found.begin() + count);
  for (int64_t i = 0; i < kCandidateCount; i++) {
    ids[i] = i < count ? found[static_cast<size_t>(i)].id : 0xffffffffu;
    values[i] = i < count ? found[static_cast<size_t>(i)].value : kLowest;
  }
}

}  // namespace

ScratchNeed need_candidates(const Plan &plan, const Op &op) {
  const uint64_t rows = static_cast<uint64_t>(max_rows(plan, op.operands[0]));
  const int64_t vocabulary = columns_of(op.operands[0]);
  ScratchNeed need;
  need.add_shared(rows * static_cast<uint64_t>(segments_of(vocabulary)) * sizeof(Segment));
  need.add_shared(rows * static_cast<uint64_t>(blocks_of(vocabulary)) * sizeof(float));
  need.add_shared(rows * static_cast<uint64_t>(vocabulary) * sizeof(float));
  return need;
}

void run_candidates(Context &c, const Op &op) {
  const Input &in = *c.input;
  const Tensor *logits = op.operands[0];
  const int64_t rows = c.rows(logits), vocabulary = columns_of(logits);
  const int64_t segments = segments_of(vocabulary), blocks = blocks_of(vocabulary);
  Segment *all_segments = c.shared.take<Segment>(static_cast<uint64_t>(rows * segments));
  float *maxima = c.shared.take<float>(static_cast<uint64_t>(rows * blocks));
  float *copies = c.shared.take<float>(static_cast<uint64_t>(rows * vocabulary));  // touched by adjusted rows only
  const auto adjusted_row = [&](int64_t r) {
    return (is_adjusted(in, r) ? copies : c.f32(logits)) + r * vocabulary;
  };
  c.parallel(rows * segments, [&](int64_t chunk, int) {
    const int64_t r = chunk / segments, s = chunk % segments;
    const int64_t first = s * kTokenSegment, last = std::min(first + kTokenSegment, vocabulary);
    const float *raw = c.f32(logits) + r * vocabulary;
    float *block = maxima + r * blocks + first / kBlock;
    Segment &segment = all_segments[chunk];
    segment.raw_largest = c.kernels.block_maxima(raw + first, last - first, block);
    segment.raw_sum = 0;
    if (segment.raw_largest != kLowest) {
      segment.raw_sum = c.kernels.sum_exp(raw + first, last - first, segment.raw_largest, 1.0f);
    }
    segment.largest = segment.raw_largest;
    segment.sum = segment.raw_sum;
    const bool adjusted = is_adjusted(in, r);
    if (adjusted) {
      adjust(in, r, first, last, vocabulary, raw, copies + r * vocabulary);
      segment.largest = c.kernels.block_maxima(adjusted_row(r) + first, last - first, block);
    }
    if ((adjusted || in.temperature[r] != 1.0f) && segment.largest != kLowest) {
      segment.sum = c.kernels.sum_exp(adjusted_row(r) + first, last - first, segment.largest, 1.0f / in.temperature[r]);
    }
  });
  c.parallel(rows, [&](int64_t r, int) {
    const Segment *segment = all_segments + r * segments;
    uint32_t *ids = reinterpret_cast<uint32_t *>(c.bytes(op.operands[1])) + r * kCandidateCount;
    float *values = c.f32(op.operands[2]) + r * kCandidateCount, *stats = c.f32(op.operands[3]) + r * 4;
    select(adjusted_row(r), vocabulary, maxima + r * blocks, ids, values);
    stats[0] = static_cast<float>(log_sum(segment, segments, &Segment::raw_largest, &Segment::raw_sum, 1.0));
    stats[1] = static_cast<float>(
        log_sum(segment, segments, &Segment::largest, &Segment::sum, 1.0 / static_cast<double>(in.temperature[r])));
    stats[2] = values[0];
    stats[3] = 0.0f;
  });
}

}  // namespace mb
