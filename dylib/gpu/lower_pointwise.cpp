// lower_pointwise.cpp: rms_norm, add, gelu_mul, softcap and rope: one dispatch each.
#include "lower.h"
#include "turns.h"

namespace mb::gpu {
namespace {

#include "../../shaders/pointwise_params.h"

constexpr uint32_t kThreads = 256;

uint32_t width_of(const Tensor &t) { return static_cast<uint32_t>(t.dims[1]); }

// Elements of all rows; kernels count them in 32 bits.
uint32_t count_of(uint32_t rows, const Tensor &t) {
  const uint64_t count = uint64_t{rows} * width_of(t);
  if (count >= 1ull << 32) {
    fail(MB_UNSUPPORTED, "%u rows of %u elements are more than a GPU kernel counts; use shorter chunks.", rows, width_of(t));
  }
  return static_cast<uint32_t>(count);
}

}  // namespace

void lower_rms_norm(Emitter &e, const Op &op) {
  const Tensor &x = *op.operands[0], *weight = op.operands[1], &y = *op.operands[2];
  const uint32_t rows = e.rows_of(y).count;
  if (rows == 0) return;
  RmsNormParams p{};
  p.group = op.ints[0];
  p.groups = count_of(rows, x) / p.group;
  p.has_weight = weight != nullptr;
  if (weight != nullptr) p.weight_format = scalar_format(*weight);
  p.eps = op.floats[0], p.in_scale = op.floats[1];
  Launch launch("pointwise", "rms_norm");
  launch.reads_rows(0, x, 0, rows);
  if (weight != nullptr) launch.reads(1, *weight);
  else launch.absent(1);
  launch.writes_rows(2, y, 0, rows).params(3, p).groups(p.groups).threads(kThreads);
  e.emit(launch);
}

void lower_add(Emitter &e, const Op &op) {
  const Tensor &a = *op.operands[0], *b = op.operands[1], *scalar = op.operands[2], &y = *op.operands[3];
  const uint32_t rows = e.rows_of(y).count;
  if (rows == 0) return;
  AddParams p{};
  p.count = count_of(rows, y);
  p.has_b = b != nullptr;
  p.has_scalar = scalar != nullptr;
  if (scalar != nullptr) p.scalar_format = scalar_format(*scalar);
  p.a_scale = op.floats[0], p.b_scale = op.floats[1];
  Launch launch("pointwise", "add");
  launch.reads_rows(0, a, 0, rows);
  if (b != nullptr) launch.reads_rows(1, *b, 0, rows);
  else launch.absent(1);
  if (scalar != nullptr) launch.reads(2, *scalar);
  else launch.absent(2);
  launch.writes_rows(3, y, 0, rows).params(4, p).groups(divide_up(p.count, kThreads)).threads(kThreads);
  e.emit(launch);
}

void lower_gelu_mul(Emitter &e, const Op &op) {
  const Tensor &a = *op.operands[0], &b = *op.operands[1], &y = *op.operands[2];
  const uint32_t rows = e.rows_of(y).count;
  if (rows == 0) return;
  const GeluMulParams p{width_of(y), width_of(b), op.ints[0]};
  Launch launch("pointwise", "gelu_mul");
  launch.reads_rows(0, a, 0, rows)
      .reads_rows(1, b, 0, rows)
      .writes_rows(2, y, 0, rows)
      .params(3, p)
      .groups(divide_up(p.width, kThreads), rows)
      .threads(kThreads);
  e.emit(launch);
}

void lower_softcap(Emitter &e, const Op &op) {
  const Tensor &x = *op.operands[0], &y = *op.operands[1];
  const uint32_t rows = e.rows_of(y).count;
  if (rows == 0) return;
  const SoftcapParams p{count_of(rows, y), op.floats[0]};
  Launch launch("pointwise", "softcap");
  launch.reads_rows(0, x, 0, rows)
      .writes_rows(1, y, 0, rows)
      .params(2, p)
      .groups(divide_up(p.count, kThreads))
      .threads(kThreads);
  e.emit(launch);
}

void lower_rope(Emitter &e, const Op &op) {
  const Tensor &x = *op.operands[0], &y = *op.operands[1];
  const uint32_t rows = e.rows_of(y).count;
  if (rows == 0) return;
  RopeParams p{};
  p.heads = op.ints[0], p.head_dim = op.ints[1], p.rotated_pairs = op.ints[2];
  p.gathered = y.dims[0] == -1 - int64_t{kOutRows};
  p.position_offset = whole_position_offset(op.floats[2]);
  if (p.rotated_pairs > sizeof(p.turns_high) / sizeof(p.turns_high[0])) {
    fail(MB_UNSUPPORTED, "rope turns at most 256 pairs of a head on a GPU, not %u.", p.rotated_pairs);
  }
  set_turns(p.turns_high, p.turns_low, p.rotated_pairs, p.head_dim, op.floats[0], op.floats[1]);
  Launch launch("pointwise", "rope");
  launch.reads_rows(0, x, 0, rows)
      .reads_input(1)
      .writes_rows(2, y, 0, rows)
      .params(3, p)
      .groups(divide_up(p.heads * (p.head_dim / 2), kThreads), rows)
      .threads(kThreads);
  e.emit(launch);
}

}  // namespace mb::gpu
