// Attention of audio frames to frames around them. Keys of distances are made anew in each run: they take less time than one
// row of the projections.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "../context.h"
#include "../softmax.h"

namespace mb {

namespace {

constexpr int64_t kTileRows = 64;  // of `relative` that are dequantised together

enum Slot { kQ, kK, kV, kPerDimScale, kRelative, kValid, kY };

// Keys that a row can see at most; the first of them is `left` - 1 rows before it.
int64_t reach(const Op &op) { return int64_t{op.ints[2]} + std::max<int64_t>(int64_t{op.ints[3]} - 1, 0); }

// Sines, then cosines, of the distance of each key, in the order of keys: [reach, n].
void fill_distances(const Op &op, int64_t n, float *table) {
  for (int64_t j = 0; j < reach(op); j++) {
    const double position = static_cast<double>(int64_t{op.ints[2]} - 1 - j) + static_cast<double>(op.floats[0]);
    for (int64_t i = 0; i < n / 2; i++) {
      const double angle = position * std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(n / 2 - 1));
      table[j * n + i] = static_cast<float>(std::sin(angle));
      table[j * n + n / 2 + i] = static_cast<float>(std::cos(angle));
    }
  }
}

}  // namespace

ScratchNeed need_local_attention(const Op &op) {
  const int64_t heads = op.ints[0], d = op.ints[1], n = columns_of(op.operands[kRelative]);
  ScratchNeed need;
  need_vector(need, op.operands[kPerDimScale]);
  need.add_shared(static_cast<uint64_t>(reach(op) * n) * 4);
  need.add_shared(static_cast<uint64_t>(reach(op) * heads * d) * 4);
  need.add_shared(static_cast<uint64_t>(d) * 4);
  need.add_thread(static_cast<uint64_t>(std::max(kTileRows * n, d)) * 4);
  for (int i = 0; i < 2; i++) need.add_thread(static_cast<uint64_t>(reach(op)) * 4);
  return need;
}

void run_local_attention(Context &c, const Op &op) {
  const auto &o = op.operands;
  const Kernels &k = c.kernels;
  const int64_t rows = c.rows(o[kQ]), heads = op.ints[0], d = op.ints[1], left = op.ints[2], width = heads * d;
  const float key_scale = op.floats[2], cap = op.floats[3];
  const float *per_dim_scale = c.vector(o[kPerDimScale]);
  const Weight relative = weight_of(c.plan, o[kRelative]);
  const int64_t n = relative.columns, most = reach(op);
  const auto *valid = reinterpret_cast<const uint32_t *>(c.bytes(o[kValid]));
  float *distances = c.shared.take<float>(static_cast<uint64_t>(most * n));
  float *relative_keys = c.shared.take<float>(static_cast<uint64_t>(most * width));
  float *query_scale = c.shared.take<float>(static_cast<uint64_t>(d));
  for (int64_t i = 0; i < d; i++) {
    const double x = per_dim_scale[i];
    query_scale[i] = static_cast<float>(static_cast<double>(op.floats[1]) * (std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x)))));
  }
  fill_distances(op, n, distances);
  c.parallel((width + kTileRows - 1) / kTileRows, [&](int64_t chunk, int thread) {
    Scratch scratch = c.thread_scratch[static_cast<size_t>(thread)];
    const int64_t first = chunk * kTileRows, count = std::min(kTileRows, width - first);
    float *weights = scratch.take<float>(static_cast<uint64_t>(kTileRows * n));
    for (int64_t i = 0; i < count; i++) k.dequantize(relative, first + i, 0, n, weights + i * n);
    k.matmul(distances, n, most, weights, kF32, n, count, n, relative_keys + first, width);
  });

  c.parallel_ranges(rows, 4, [&](int64_t begin, int64_t end, int thread) {
    Scratch scratch = c.thread_scratch[static_cast<size_t>(thread)];
    float *query = scratch.take<float>(static_cast<uint64_t>(std::max(kTileRows * n, d)));
    float *scores = scratch.take<float>(static_cast<uint64_t>(most));
    float *distance_scores = scratch.take<float>(static_cast<uint64_t>(most));
    for (int64_t a = begin; a < end; a++) {
      const int64_t first = std::max<int64_t>(0, a - left + 1), last = std::min(rows, a - left + 1 + most);
      const int64_t count = last - first, skipped = first - (a - left + 1);
      for (int64_t h = 0; h < heads; h++) {
        float *out = c.f32(o[kY]) + a * width + h * d;
        k.scale_row(query, c.f32(o[kQ]) + a * width + h * d, 1.0f, query_scale, d);
        k.matmul(query, d, 1, c.f32(o[kK]) + first * width + h * d, kF32, width, count, d, scores, count);
        k.matmul(query, d, 1, relative_keys + skipped * width + h * d, kF32, width, count, d, distance_scores, count);
        k.add_rows(scores, scores, key_scale, distance_scores, 1.0f, 1.0f, count);
        k.softcap(scores, scores, cap, count);
        float largest = 0.0f;
        bool any = false;
        for (int64_t j = 0; j < count; j++) {
          if (valid[first + j] == 0) continue;
          largest = any ? std::max(largest, scores[j]) : scores[j];
          any = true;
        }
        memset(out, 0, static_cast<size_t>(d) * sizeof(float));
        float sum = 0.0f;
        for (int64_t j = 0; j < count; j++) {
          if (valid[first + j] == 0) continue;
          const float weight = softmax_weight(scores[j] - largest);
          sum += weight;
          k.blend(out, 1.0f, c.f32(o[kV]) + (first + j) * width + h * d, weight, d);
        }
        if (any) k.scale_row(out, out, 1.0f / sum, nullptr, d);
      }
    }
  });
}

}  // namespace mb
