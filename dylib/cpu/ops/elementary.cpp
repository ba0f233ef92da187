// The elementary ops, of which the schedule without fusion is made; and gather.
#include <cmath>
#include <cstring>

#include "../context.h"

namespace mb {

namespace {
constexpr int64_t kGrain = 8;  // rows that are worth another thread
}

ScratchNeed need_elementary(const Op &op) {
  ScratchNeed need;
  if (op.kind == kRmsNorm) need_vector(need, op.operands[1]);
  if (op.kind == kAdd) need_vector(need, op.operands[2]);
  if (op.kind == kTopK) need_vector(need, op.operands[1]);
  if (op.kind == kAddNorms) {
    need_vector(need, op.operands[1]);
    need_vector(need, op.operands[3]);
    need.add_thread(static_cast<uint64_t>(columns_of(op.operands[4])) * 4);
  }
  return need;
}

void run_rms_norm(Context &c, const Op &op) {
  const Tensor *x = op.operands[0], *y = op.operands[2];
  const float *weight = c.vector(op.operands[1]);
  const int64_t n = columns_of(x), group = op.ints[0];
  const float eps = op.floats[0], in_scale = op.floats[1];
  c.parallel_ranges(c.rows(x), kGrain, [&](int64_t first, int64_t last, int) {
    for (int64_t r = first; r < last; r++) {
      for (int64_t i = 0; i < n; i += group) {
        const float *from = c.f32(x) + r * n + i;
        const float mean = c.kernels.sum_of_squares(from, group) * in_scale * in_scale / static_cast<float>(group);
        c.kernels.scale_row(c.f32(y) + r * n + i, from, in_scale / std::sqrt(mean + eps), weight, group);
      }
    }
  });
}

void run_add(Context &c, const Op &op) {
  const Tensor *a = op.operands[0], *b = op.operands[1], *y = op.operands[3];
  const float *scalar = c.vector(op.operands[2]);
  const int64_t n = columns_of(a);
  c.parallel_ranges(c.rows(a), kGrain, [&](int64_t first, int64_t last, int) {
    for (int64_t r = first; r < last; r++) {
      c.kernels.add_rows(c.f32(y) + r * n, c.f32(a) + r * n, op.floats[0], b ? c.f32(b) + r * n : nullptr, op.floats[1],
                         scalar ? *scalar : 1.0f, n);
    }
  });
}

void run_add_norms(Context &c, const Op &op) {
  const Tensor *a = op.operands[0], *b = op.operands[2], *y = op.operands[4];
  const float *a_norm = c.vector(op.operands[1]), *b_norm = c.vector(op.operands[3]);
  const int64_t n = columns_of(a);
  const float eps = op.floats[0];
  const auto norm = [&](float *to, const float *from, const float *weight) {
    c.kernels.scale_row(to, from, 1.0f / std::sqrt(c.kernels.sum_of_squares(from, n) / static_cast<float>(n) + eps), weight, n);
  };
  c.parallel_ranges(c.rows(a), kGrain, [&](int64_t first, int64_t last, int thread) {
    Scratch scratch = c.thread_scratch[static_cast<size_t>(thread)];
    float *other = scratch.take<float>(static_cast<uint64_t>(n));
    for (int64_t r = first; r < last; r++) {
      float *to = c.f32(y) + r * n;
      norm(to, c.f32(a) + r * n, a_norm);
      norm(other, c.f32(b) + r * n, b_norm);
      c.kernels.add_rows(to, to, 1.0f, other, 1.0f, 1.0f, n);
    }
  });
}

void run_expert_sum(Context &c, const Op &op) {
  const Tensor *x = op.operands[0], *shares = op.operands[1], *y = op.operands[2];
  const int64_t n = columns_of(y), slots = columns_of(shares);
  c.parallel_ranges(c.rows(x), kGrain, [&](int64_t first, int64_t last, int) {
    for (int64_t r = first; r < last; r++) {
      const float *from = c.f32(x) + r * slots * n, *share = c.f32(shares) + r * slots;
      float *to = c.f32(y) + r * n;
      c.kernels.add_rows(to, from, share[0], nullptr, 0.0f, 1.0f, n);
      for (int64_t s = 1; s < slots; s++) c.kernels.blend(to, 1.0f, from + s * n, share[s], n);
    }
  });
}

void run_gelu_mul(Context &c, const Op &op) {
  const Tensor *a = op.operands[0], *b = op.operands[1], *y = op.operands[2];
  const int64_t n = columns_of(a), m = columns_of(b), column = op.ints[0];
  c.parallel_ranges(c.rows(a), kGrain, [&](int64_t first, int64_t last, int) {
    for (int64_t r = first; r < last; r++) {
      c.kernels.gelu_mul(c.f32(y) + r * n, c.f32(a) + r * n, c.f32(b) + r * m + column, n);
    }
  });
}

void run_softcap(Context &c, const Op &op) {
  const Tensor *x = op.operands[0], *y = op.operands[1];
  const int64_t n = columns_of(x);
  c.parallel_ranges(c.rows(x), 1, [&](int64_t first, int64_t last, int) {
    for (int64_t r = first; r < last; r++) c.kernels.softcap(c.f32(y) + r * n, c.f32(x) + r * n, op.floats[0], n);
  });
}

void run_rope(Context &c, const Op &op) {
  const Tensor *x = op.operands[0], *y = op.operands[1];
  const int64_t heads = op.ints[0], d = op.ints[1], pairs = op.ints[2], n = heads * d;
  const RopeTable &table = c.rope_table(op.floats[0], op.floats[1], op.floats[2], op.ints[1], op.ints[2]);
  c.parallel_ranges(c.rows(x), kGrain, [&](int64_t first, int64_t last, int) {
    for (int64_t r = first; r < last; r++) {
      const int64_t at = c.input_row(x, r) * pairs;
      for (int64_t i = 0; i < n; i += d) {
        c.kernels.rotate(c.f32(y) + r * n + i, c.f32(x) + r * n + i, table.cosines.data() + at, table.sines.data() + at, d,
                         pairs);
      }
    }
  });
}

void run_gather(Context &c, const Op &op) {
  const Tensor *x = op.operands[0], *y = op.operands[1];
  const int64_t n = columns_of(x), rows = c.rows(y);
  for (int64_t r = 0; r < rows; r++) {
    memcpy(c.f32(y) + r * n, c.f32(x) + c.input->out_row[r] * n, static_cast<size_t>(n) * sizeof(float));
  }
}

}  // namespace mb
