// Rows of the embedding tables: the token embedding and the per-layer inputs.
#include <cmath>
#include <cstring>

#include "../context.h"

namespace mb {

ScratchNeed need_embed(const Op &) { return {}; }

void run_embed(Context &c, const Op &op) {
  const Tensor *y = op.operands[1], *soft = op.operands[2];
  const Weight table = weight_of(c.plan, op.operands[0]);
  const int64_t n = table.columns;
  const uint32_t *soft_row = soft ? c.input->soft_row : nullptr;
  c.parallel_ranges(c.rows(y), 8, [&](int64_t first, int64_t last, int) {
    for (int64_t r = first; r < last; r++) {
      float *out = c.f32(y) + r * n;
      const uint32_t row = c.input_row(y, r);
      if (soft_row && soft_row[row] != kNoPage) {
        memcpy(out, c.f32(soft) + static_cast<int64_t>(soft_row[row]) * n, static_cast<size_t>(n) * sizeof(float));
        continue;
      }
      c.kernels.dequantize(table, c.input->token[row], 0, n, out);
      c.kernels.scale_row(out, out, op.floats[0], nullptr, n);
    }
  });
}

ScratchNeed need_per_layer_inputs(const Op &op) {
  ScratchNeed need;
  need_vector(need, op.operands[2]);
  need.add_thread(static_cast<uint64_t>(columns_of(op.operands[3])) * 4);
  return need;
}

void run_per_layer_inputs(Context &c, const Op &op) {
  const Tensor *projected = op.operands[0], *y = op.operands[3];
  const Weight table = weight_of(c.plan, op.operands[1]);
  const float *norm = c.vector(op.operands[2]);
  const int64_t n = table.columns, slice = op.ints[0];
  const float eps = op.floats[0], projection_scale = op.floats[1], table_scale = op.floats[2], out_scale = op.floats[3];
  c.parallel_ranges(c.rows(y), 4, [&](int64_t first, int64_t last, int thread) {
    Scratch scratch = c.thread_scratch[static_cast<size_t>(thread)];
    float *token = scratch.take<float>(static_cast<uint64_t>(n));
    for (int64_t r = first; r < last; r++) {
      c.kernels.dequantize(table, c.input->token[c.input_row(y, r)], 0, n, token);
      for (int64_t i = 0; i < n; i += slice) {
        const float *x = c.f32(projected) + r * n + i;
        float *out = c.f32(y) + r * n + i;
        const float mean =
            c.kernels.sum_of_squares(x, slice) * projection_scale * projection_scale / static_cast<float>(slice);
        c.kernels.scale_row(out, x, projection_scale / std::sqrt(mean + eps), norm, slice);
        c.kernels.add_rows(out, out, 1.0f, token + i, table_scale, out_scale, slice);
      }
    }
  });
}

}  // namespace mb
