// Attention of every patch to every patch: heads are normalised and rotated into [head, rows, d], keys into blocks of
// [d, 256 keys], then tiles of query rows walk the blocks. Lanes are keys for the scores and dimensions for the values, so that
// nothing is summed across lanes. A row's order of addition depends on the number of rows alone.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "../context.h"
#include "../softmax.h"

namespace mb {

namespace {

constexpr int64_t kBlockKeys = 256;
constexpr int64_t kTileQueries = 32;

enum Slot { kQ, kK, kV, kQNorm, kKNorm, kPositions, kY };

struct Partial {
  float largest, sum;
};

int64_t blocks_of(int64_t rows) { return (rows + kBlockKeys - 1) / kBlockKeys; }

// Cosines and sines [pairs] of one axis.
void turn(uint32_t position, const double *frequencies, int64_t pairs, float *cosines, float *sines) {
  for (int64_t i = 0; i < pairs; i++) {
    cosines[i] = static_cast<float>(std::cos(position * frequencies[i]));
    sines[i] = static_cast<float>(std::sin(position * frequencies[i]));
  }
}

}  // namespace

ScratchNeed need_patch_attention(const Plan &plan, const Op &op) {
  const int64_t rows = max_rows(plan, op.operands[kQ]), heads = op.ints[0], kv_heads = op.ints[1], d = op.ints[2];
  ScratchNeed need;
  need_vector(need, op.operands[kQNorm]);
  need_vector(need, op.operands[kKNorm]);
  need.add_shared(static_cast<uint64_t>(rows * heads * d) * 4);
  need.add_shared(static_cast<uint64_t>(blocks_of(rows) * kBlockKeys * kv_heads * d) * 4);
  need.add_shared(static_cast<uint64_t>(rows * kv_heads * d) * 4);
  need.add_thread(static_cast<uint64_t>(kTileQueries * kBlockKeys) * 4);
  for (int i = 0; i < 2; i++) need.add_thread(static_cast<uint64_t>(kTileQueries * d) * 4);
  for (int i = 0; i < 3; i++) need.add_thread(static_cast<uint64_t>(d) * 4);
  return need;
}

void run_patch_attention(Context &c, const Op &op) {
  const auto &o = op.operands;
  const Kernels &k = c.kernels;
  const int64_t rows = c.rows(o[kQ]), heads = op.ints[0], kv_heads = op.ints[1], d = op.ints[2], pairs = d / 4;
  const float eps = op.floats[1], score_scale = op.floats[2];
  const float *q_norm = c.vector(o[kQNorm]), *k_norm = c.vector(o[kKNorm]);
  const auto *positions = reinterpret_cast<const uint32_t *>(c.bytes(o[kPositions]));
  float *queries = c.shared.take<float>(static_cast<uint64_t>(rows * heads * d));
  const int64_t blocks = blocks_of(rows), block_floats = d * kBlockKeys;
  float *keys = c.shared.take<float>(static_cast<uint64_t>(kv_heads * blocks * block_floats));  // [kv head, block, d, keys]
  float *values = c.shared.take<float>(static_cast<uint64_t>(rows * kv_heads * d));
  std::vector<double> frequencies(static_cast<size_t>(pairs));
  for (int64_t i = 0; i < pairs; i++) {
    frequencies[static_cast<size_t>(i)] = std::pow(static_cast<double>(op.floats[0]), -4.0 * static_cast<double>(i) / static_cast<double>(d));
  }

  c.parallel_ranges(rows, 4, [&](int64_t first, int64_t last, int thread) {
    Scratch scratch = c.thread_scratch[static_cast<size_t>(thread)];
    float *cosines = scratch.take<float>(static_cast<uint64_t>(2 * pairs));  // [axis, pairs]
    float *sines = scratch.take<float>(static_cast<uint64_t>(2 * pairs));
    float *key = scratch.take<float>(static_cast<uint64_t>(d));
    for (int64_t r = first; r < last; r++) {
      for (int64_t axis = 0; axis < 2; axis++) {
        turn(positions[2 * r + axis], frequencies.data(), pairs, cosines + axis * pairs, sines + axis * pairs);
      }
      const auto normed = [&](float *to, const float *from, const float *weight) {
        k.scale_row(to, from, 1.0f / std::sqrt(k.sum_of_squares(from, d) / static_cast<float>(d) + eps), weight, d);
      };
      const auto ready = [&](float *to, const float *from, const float *weight) {
        normed(to, from, weight);
        for (int64_t axis = 0; axis < 2; axis++) {
          float *half = to + axis * 2 * pairs;
          k.rotate(half, half, cosines + axis * pairs, sines + axis * pairs, 2 * pairs, pairs);
        }
      };
      for (int64_t h = 0; h < heads; h++) ready(queries + (h * rows + r) * d, c.f32(o[kQ]) + (r * heads + h) * d, q_norm);
      for (int64_t h = 0; h < kv_heads; h++) {
        ready(key, c.f32(o[kK]) + (r * kv_heads + h) * d, k_norm);
        float *to = keys + (h * blocks + r / kBlockKeys) * block_floats + r % kBlockKeys;
        for (int64_t i = 0; i < d; i++) to[i * kBlockKeys] = key[i];
        normed(values + (h * rows + r) * d, c.f32(o[kV]) + (r * kv_heads + h) * d, nullptr);
      }
    }
  });

  const int64_t tiles = (rows + kTileQueries - 1) / kTileQueries;
  c.parallel(heads * tiles, [&](int64_t chunk, int thread) {
    const int64_t head = chunk / tiles, first = chunk % tiles * kTileQueries, n = std::min(kTileQueries, rows - first);
    const int64_t kv_head = head / (heads / kv_heads);
    Scratch scratch = c.thread_scratch[static_cast<size_t>(thread)];
    float *scores = scratch.take<float>(kTileQueries * kBlockKeys);
    float *sums = scratch.take<float>(static_cast<uint64_t>(kTileQueries * d));
    float *block_sums = scratch.take<float>(static_cast<uint64_t>(kTileQueries * d));
    Partial partials[kTileQueries] = {};
    int32_t begins[kTileQueries] = {}, ends[kTileQueries], dims[kTileQueries];
    std::fill(dims, dims + n, static_cast<int32_t>(d));
    for (int64_t start = 0; start < rows; start += kBlockKeys) {
      const int64_t count = std::min(kBlockKeys, rows - start);
      // Beyond the last key the scores mean nothing, and nobody looks at them.
      memset(scores, 0, static_cast<size_t>(n * kBlockKeys) * sizeof(float));
      k.weighted_sum(queries + (head * rows + first) * d, d, n, begins, dims,
                     keys + (kv_head * blocks + start / kBlockKeys) * block_floats, kF32, kBlockKeys, scores, kBlockKeys);
      Partial block[kTileQueries];
      for (int64_t i = 0; i < n; i++) {
        block[i].sum = k.softmax_block(scores + i * kBlockKeys, score_scale, count, &block[i].largest);
        ends[i] = static_cast<int32_t>(count);
      }
      memset(block_sums, 0, static_cast<size_t>(n * d) * sizeof(float));
      k.weighted_sum(scores, kBlockKeys, n, begins, ends, values + (kv_head * rows + start) * d, kF32, d, block_sums, d);
      if (start == 0) {
        memcpy(sums, block_sums, static_cast<size_t>(n * d) * sizeof(float));
        std::copy(block, block + n, partials);
        continue;
      }
      for (int64_t i = 0; i < n; i++) {
        const float largest = std::max(partials[i].largest, block[i].largest);
        const float keep = softmax_weight(partials[i].largest - largest), take = softmax_weight(block[i].largest - largest);
        k.blend(sums + i * d, keep, block_sums + i * d, take, d);
        partials[i] = {largest, partials[i].sum * keep + block[i].sum * take};
      }
    }
    for (int64_t i = 0; i < n; i++) {
      k.scale_row(c.f32(o[kY]) + ((first + i) * heads + head) * d, sums + i * d, 1.0f / partials[i].sum, nullptr, d);
    }
  });
}

}  // namespace mb
