// The two ends of a drafter: its input from its target's embedding and state, and its head over the best centroids.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "../context.h"

namespace mb {

void run_draft_input(Context &c, const Op &op) {
  const Tensor *state = op.operands[1], *y = op.operands[2];
  const Weight table = weight_of(c.plan, op.operands[0]);
  const int64_t n = table.columns;
  c.parallel_ranges(c.rows(y), 8, [&](int64_t first, int64_t last, int) {
    for (int64_t r = first; r < last; r++) {
      float *out = c.f32(y) + r * 2 * n;
      c.kernels.dequantize(table, c.input->token[c.input_row(y, r)], 0, n, out);
      c.kernels.scale_row(out, out, op.floats[0], nullptr, n);
      memcpy(out + n, c.f32(state) + r * n, static_cast<size_t>(n) * sizeof(float));
    }
  });
}

namespace {
enum Slot { kX, kNorm, kScores, kOrdering, kTable, kY };
}

ScratchNeed need_centroid_head(const Plan &plan, const Op &op) {
  const auto &o = op.operands;
  const uint64_t rows = static_cast<uint64_t>(max_rows(plan, o[kX])), n = static_cast<uint64_t>(columns_of(o[kX]));
  const uint64_t chosen = op.ints[0], each = static_cast<uint64_t>(columns_of(o[kOrdering]));
  ScratchNeed need;
  need_vector(need, o[kNorm]);
  need.add_shared(rows * n * 4);
  need.add_shared(rows * chosen * 4);
  need.add_shared(rows * chosen * each * 4);
  need.add_thread(n * 4);
  return need;
}

void run_centroid_head(Context &c, const Op &op) {
  const auto &o = op.operands;
  const Kernels &k = c.kernels;
  const Weight table = weight_of(c.plan, o[kTable]);
  const int64_t rows = c.rows(o[kX]), n = columns_of(o[kX]), count = columns_of(o[kScores]), chosen = op.ints[0];
  const int64_t each = columns_of(o[kOrdering]), tokens = table.rows;
  const uint32_t *ordering = reinterpret_cast<const uint32_t *>(c.bytes(o[kOrdering]));
  const float *norm = c.vector(o[kNorm]);
  float *u = c.shared.take<float>(static_cast<uint64_t>(rows * n));
  uint32_t *centroids = c.shared.take<uint32_t>(static_cast<uint64_t>(rows * chosen));
  float *logits = c.shared.take<float>(static_cast<uint64_t>(rows * chosen * each));
  c.parallel_ranges(rows, 1, [&](int64_t first, int64_t last, int) {
    std::vector<uint32_t> order(static_cast<size_t>(count));
    for (int64_t r = first; r < last; r++) {
      const float *x = c.f32(o[kX]) + r * n, *score = c.f32(o[kScores]) + r * count;
      const float scale = norm ? 1.0f / std::sqrt(k.sum_of_squares(x, n) / static_cast<float>(n) + op.floats[0]) : 1.0f;
      k.scale_row(u + r * n, x, scale, norm, n);
      for (int64_t i = 0; i < count; i++) order[static_cast<size_t>(i)] = static_cast<uint32_t>(i);
      const auto better = [&](uint32_t a, uint32_t b) {
        const bool a_nan = std::isnan(score[a]), b_nan = std::isnan(score[b]);
        if (a_nan || b_nan) return a_nan == b_nan ? a < b : b_nan;
        return score[a] != score[b] ? score[a] > score[b] : a < b;
      };
      std::partial_sort(order.begin(), order.begin() + chosen, order.end(), better);
      memcpy(centroids + r * chosen, order.data(), static_cast<size_t>(chosen) * sizeof(uint32_t));
    }
  });
  c.parallel(rows * chosen, [&](int64_t chunk, int thread) {
    Scratch scratch = c.thread_scratch[static_cast<size_t>(thread)];
    float *wide = scratch.take<float>(static_cast<uint64_t>(n));
    const float *row = u + chunk / chosen * n;
    const uint32_t *ids = ordering + centroids[chunk] * each;
    for (int64_t i = 0; i < each; i++) {
      if (ids[i] >= tokens) continue;
      const void *numbers = table.row(ids[i]);
      if (!is_plain(table.format)) {
        k.dequantize(table, ids[i], 0, n, wide);
        numbers = wide;
      }
      k.matmul(row, n, 1, numbers, is_plain(table.format) ? table.format : kF32, n, 1, n, logits + chunk * each + i, 1);
    }
  });
  c.parallel(rows, [&](int64_t r, int) {
    float *y = c.f32(o[kY]) + r * tokens;
    const auto visit = [&](auto use) {
      for (int64_t s = 0; s < chosen; s++) {
        const uint32_t *ids = ordering + centroids[r * chosen + s] * each;
        for (int64_t i = 0; i < each; i++) if (ids[i] < tokens) use(ids[i], logits[(r * chosen + s) * each + i]);
      }
    };
    float least = INFINITY;
    visit([&](uint32_t, float logit) { least = std::min(least, logit); });
    std::fill(y, y + tokens, (least == INFINITY ? 0.0f : least) - 1.0f);
    visit([&](uint32_t id, float logit) { y[id] = logit; });
  });
}

}  // namespace mb
