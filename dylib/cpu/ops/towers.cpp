// The small ops of towers: positions, pooling, subsampling, the light convolution, layer norm.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "../context.h"

namespace mb {

namespace {

const uint32_t *ids(const Context &c, const Tensor *t) { return reinterpret_cast<const uint32_t *>(c.bytes(t)); }

uint64_t floats(int64_t count) { return static_cast<uint64_t>(count) * sizeof(float); }

// y = (x - mean) / deviation * weight (+ bias). y may be x.
void layer_norm(const Kernels &k, float *y, const float *x, const float *weight, const float *bias, int64_t n, float eps) {
  const float mean = k.sum(x, n) / static_cast<float>(n);
  for (int64_t i = 0; i < n; i++) y[i] = x[i] - mean;
  k.scale_row(y, y, 1.0f / std::sqrt(k.sum_of_squares(y, n) / static_cast<float>(n) + eps), weight, n);
  if (bias) k.add_rows(y, y, 1.0f, bias, 1.0f, 1.0f, n);
}

}  // namespace

ScratchNeed need_tower(const Op &op) {
  const auto &o = op.operands;
  ScratchNeed need;
  switch (op.kind) {
    case kAddPositions: need.add_thread(floats(columns_of(o[0]))); break;
    case kPoolRows:
      need_vector(need, o[2]);
      need_vector(need, o[3]);
      break;
    case kSubsample:
      need.add_shared(floats(o[2]->dims[0] * o[2]->dims[1]));
      need_vector(need, o[3]);
      need.add_thread(floats(int64_t{op.ints[0]} / 2 * o[2]->dims[1]));
      break;
    case kLightConv:
      need.add_shared(floats(o[1]->dims[0] * o[1]->dims[1]));
      need_vector(need, o[2]);
      need.add_thread(floats(o[1]->dims[0] * o[1]->dims[1]));
      need.add_thread(floats(o[1]->dims[1]));
      break;
    default:
      need_vector(need, o[1]);
      need_vector(need, o[2]);
  }
  return need;
}

void run_add_positions(Context &c, const Op &op) {
  const Tensor *x = op.operands[0], *y = op.operands[3];
  const Weight table = weight_of(c.plan, op.operands[1]);
  const uint32_t *positions = ids(c, op.operands[2]);
  const int64_t n = columns_of(x);
  c.parallel_ranges(c.rows(x), 8, [&](int64_t first, int64_t last, int thread) {
    Scratch scratch = c.thread_scratch[static_cast<size_t>(thread)];
    float *row = scratch.take<float>(static_cast<uint64_t>(n));
    for (int64_t r = first; r < last; r++) {
      float *out = c.f32(y) + r * n;
      memcpy(out, c.f32(x) + r * n, static_cast<size_t>(n) * sizeof(float));
      for (uint32_t axis = 0; axis < 2; axis++) {
        const uint32_t position = positions[2 * r + axis];
        if (position >= op.ints[0]) continue;
        c.kernels.dequantize(table, int64_t{position} * op.ints[1] + (axis ? op.ints[2] : 0), 0, n, row);
        c.kernels.add_rows(out, out, 1.0f, row, 1.0f, 1.0f, n);
      }
    }
  });
}

void run_pool(Context &c, const Op &op) {
  const Tensor *x = op.operands[0], *members = op.operands[1], *y = op.operands[4];
  const float *bias = c.vector(op.operands[2]), *scale = c.vector(op.operands[3]);
  const int64_t n = columns_of(x), m = columns_of(members), rows = c.rows(x);
  c.parallel_ranges(c.rows(y), 4, [&](int64_t first, int64_t last, int) {
    for (int64_t r = first; r < last; r++) {
      float *out = c.f32(y) + r * n;
      memset(out, 0, static_cast<size_t>(n) * sizeof(float));
      for (int64_t j = 0; j < m; j++) {
        const int64_t row = ids(c, members)[r * m + j];
        if (row < rows) c.kernels.add_rows(out, out, 1.0f, c.f32(x) + row * n, 1.0f, 1.0f, n);
      }
      c.kernels.add_rows(out, out, op.floats[0], bias, -1.0f, 1.0f, n);
      if (scale) c.kernels.scale_row(out, out, 1.0f, scale, n);
    }
  });
}

void run_subsample(Context &c, const Op &op) {
  const Tensor *x = op.operands[0], *valid = op.operands[1], *y = op.operands[4];
  const Weight w = weight_of(c.plan, op.operands[2]);
  const int64_t bins = op.ints[0], frames = c.rows(x) * op.ints[1], channels = w.columns / 9, outputs = w.rows;
  const bool channels_last = op.flags & kChannelsLast;
  float *weight = c.shared.take<float>(static_cast<uint64_t>(w.rows * w.columns));
  for (int64_t i = 0; i < w.rows; i++) c.kernels.dequantize(w, i, 0, w.columns, weight + i * w.columns);
  const float *norm = c.vector(op.operands[3]);
  c.parallel_ranges(c.rows(y), 1, [&](int64_t first, int64_t last, int thread) {
    Scratch scratch = c.thread_scratch[static_cast<size_t>(thread)];
    // The nine neighbours of each output's place, in the order of the weight's columns.
    float *around = scratch.take<float>(static_cast<uint64_t>(bins / 2 * w.columns));
    for (int64_t t = first; t < last; t++) {
      memset(around, 0, floats(bins / 2 * w.columns));
      for (int64_t i = 0; i < 3; i++) {
        const int64_t frame = 2 * t - 1 + i;
        if (frame < 0 || frame >= frames || ids(c, valid)[frame] == 0) continue;
        for (int64_t f = 0; f < bins / 2; f++) {
          for (int64_t j = 0; j < 3; j++) {
            const int64_t bin = 2 * f - 1 + j;
            if (bin < 0 || bin >= bins) continue;
            const float *from = c.f32(x) + (frame * bins + bin) * channels;
            float *to = around + f * w.columns;
            if (channels_last) {
              memcpy(to + (i * 3 + j) * channels, from, floats(channels));
            } else {
              for (int64_t b = 0; b < channels; b++) to[b * 9 + i * 3 + j] = from[b];
            }
          }
        }
      }
      float *out = c.f32(y) + t * (bins / 2) * outputs;
      c.kernels.matmul(around, w.columns, bins / 2, weight, kF32, w.columns, outputs, w.columns, out, outputs);
      for (int64_t f = 0; f < bins / 2; f++) layer_norm(c.kernels, out + f * outputs, out + f * outputs, norm, nullptr, outputs, op.floats[0]);
      c.kernels.clamp(out, out, 0.0f, __builtin_inff(), bins / 2 * outputs);
    }
  });
}

void run_light_conv(Context &c, const Op &op) {
  const Tensor *x = op.operands[0], *y = op.operands[3];
  const Weight w = weight_of(c.plan, op.operands[1]);
  const int64_t n = w.rows, taps = w.columns;
  // The weight by tap, [taps, n].
  float *by_tap = c.shared.take<float>(static_cast<uint64_t>(n * taps));
  {
    Scratch scratch = c.thread_scratch[0];
    scratch.take<float>(static_cast<uint64_t>(n * taps));
    float *row = scratch.take<float>(static_cast<uint64_t>(taps));
    for (int64_t i = 0; i < n; i++) {
      c.kernels.dequantize(w, i, 0, taps, row);
      for (int64_t j = 0; j < taps; j++) by_tap[j * n + i] = row[j];
    }
  }
  const float *norm = c.vector(op.operands[2]);
  c.parallel_ranges(c.rows(y), 16, [&](int64_t first, int64_t last, int thread) {
    Scratch scratch = c.thread_scratch[static_cast<size_t>(thread)];
    float *gated = scratch.take<float>(static_cast<uint64_t>(n * taps));  // row t at t % taps
    for (int64_t t = std::max<int64_t>(0, first - taps + 1); t < last; t++) {
      const float *from = c.f32(x) + t * 2 * n;
      c.kernels.gate(gated + t % taps * n, from, from + n, n);
      if (t < first) continue;
      float *out = c.f32(y) + t * n;
      memset(out, 0, floats(n));
      for (int64_t j = std::max<int64_t>(0, taps - 1 - t); j < taps; j++) {
        c.kernels.multiply_add(out, gated + (t - (taps - 1) + j) % taps * n, by_tap + j * n, n);
      }
      const float mean = c.kernels.sum_of_squares(out, n) / static_cast<float>(n);
      c.kernels.scale_row(out, out, 1.0f / std::sqrt(mean + op.floats[0]), norm, n);
      c.kernels.silu(out, out, n);
    }
  });
}

void run_layer_norm(Context &c, const Op &op) {
  const Tensor *x = op.operands[0], *y = op.operands[3];
  const float *weight = c.vector(op.operands[1]), *bias = c.vector(op.operands[2]);
  const int64_t n = columns_of(x);
  c.parallel_ranges(c.rows(x), 8, [&](int64_t first, int64_t last, int) {
    for (int64_t r = first; r < last; r++) {
      layer_norm(c.kernels, c.f32(y) + r * n, c.f32(x) + r * n, weight, bias, n, op.floats[0]);
    }
  });
}

}  // namespace mb
