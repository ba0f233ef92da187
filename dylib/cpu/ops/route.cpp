// Which experts a row goes to. The router's products are taken in f32 in every mode: a choice that flips with the precision
// changes the whole layer.
#include <algorithm>
#include <cmath>

#include "../context.h"

namespace mb {

namespace {

constexpr int64_t kTile = 16;      // experts whose weights are widened together
constexpr int64_t kRowBlock = 64;  // rows that meet them at a time

// The K best of one row's logits in descending order, ties by lower index and NaN last, and their shares.
void choose(const float *logits, int64_t count, const float *per_expert_scale, int64_t slots, uint32_t *experts, float *shares) {
  const auto better = [&](uint32_t a, uint32_t b) {
    const float x = logits[a], y = logits[b];
    if (std::isnan(x) || std::isnan(y)) return std::isnan(x) == std::isnan(y) ? a < b : std::isnan(y);
    return x != y ? x > y : a < b;
  };
  // Insertion into a sorted list of at most `slots`: both are small.
  int64_t held = 0;
  for (int64_t e = 0; e < count; e++) {
    const uint32_t id = static_cast<uint32_t>(e);
    if (held == slots && !better(id, experts[held - 1])) continue;
    int64_t at = held < slots ? held++ : held - 1;
    for (; at > 0 && better(id, experts[at - 1]); at--) experts[at] = experts[at - 1];
    experts[at] = id;
  }
  const float largest = logits[experts[0]];
  float sum = 0.0f;
  for (int64_t s = 0; s < slots; s++) sum += shares[s] = std::exp(logits[experts[s]] - largest);
  for (int64_t s = 0; s < slots; s++) shares[s] = shares[s] / sum * per_expert_scale[experts[s]];
}

void choose_rows(const Context &c, const float *logits, int64_t count, const float *per_expert_scale, const Tensor *experts,
                 const Tensor *shares) {
  const int64_t slots = columns_of(experts);
  c.parallel_ranges(c.rows(shares), 16, [&](int64_t first, int64_t last, int) {
    for (int64_t r = first; r < last; r++) {
      choose(logits + r * count, count, per_expert_scale, slots, reinterpret_cast<uint32_t *>(c.bytes(experts)) + r * slots,
             c.f32(shares) + r * slots);
    }
  });
}

}  // namespace

ScratchNeed need_route(const Plan &plan, const Op &op) {
  const Tensor *x = op.operands[0], *projection = op.operands[2];
  const uint64_t rows = static_cast<uint64_t>(max_rows(plan, x)), columns = static_cast<uint64_t>(columns_of(x));
  ScratchNeed need;
  need_vector(need, op.operands[1]);
  need_vector(need, op.operands[3]);
  need.add_shared(rows * columns * 4);
  need.add_shared(rows * static_cast<uint64_t>(projection->dims[0]) * 4);
  need.add_thread(kTile * columns * 4);
  return need;
}

void run_route(Context &c, const Op &op) {
  const Tensor *x = op.operands[0];
  const Weight projection = weight_of(c.plan, op.operands[2]);
  const float *scale = c.vector(op.operands[1]), *per_expert_scale = c.vector(op.operands[3]);
  const int64_t rows = c.rows(x), n = columns_of(x), count = projection.rows;
  const float eps = op.floats[0], in_scale = op.floats[1];
  float *u = c.shared.take<float>(static_cast<uint64_t>(rows * n));
  float *logits = c.shared.take<float>(static_cast<uint64_t>(rows * count));
  c.parallel_ranges(rows, 4, [&](int64_t first, int64_t last, int) {
    for (int64_t r = first; r < last; r++) {
      const float *from = c.f32(x) + r * n;
      const float mean = c.kernels.sum_of_squares(from, n) / static_cast<float>(n);
      c.kernels.scale_row(u + r * n, from, in_scale / std::sqrt(mean + eps), scale, n);
    }
  });
  c.parallel((count + kTile - 1) / kTile, [&](int64_t chunk, int thread) {
    Scratch scratch = c.thread_scratch[static_cast<size_t>(thread)];
    const int64_t first = chunk * kTile, last = std::min(first + kTile, count);
    const void *numbers = projection.row(first);
    Format format = projection.format;
    if (!is_plain(format)) {
      float *wide = scratch.take<float>(static_cast<uint64_t>(kTile * n));
      for (int64_t e = first; e < last; e++) c.kernels.dequantize(projection, e, 0, n, wide + (e - first) * n);
      numbers = wide;
      format = kF32;
    }
    for (int64_t r = 0; r < rows; r += kRowBlock) {
      c.kernels.matmul(u + r * n, n, std::min(kRowBlock, rows - r), numbers, format, n, last - first, n,
                       logits + r * count + first, count);
    }
  });
  choose_rows(c, logits, count, per_expert_scale, op.operands[4], op.operands[5]);
}

void run_top_k(Context &c, const Op &op) {
  const Tensor *logits = op.operands[0];
  choose_rows(c, c.f32(logits), columns_of(logits), c.vector(op.operands[1]), op.operands[2], op.operands[3]);
}

}  // namespace mb
