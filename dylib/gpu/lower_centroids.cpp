// lower_centroids.cpp: centroid_head: linear_prologue, best, then the three kernels of shaders/centroids.metal.
#include "weight_layout.h"

namespace mb::gpu {
namespace {

#include "../../shaders/centroids_params.h"
#include "../../shaders/experts_params.h"

constexpr uint32_t kThreads = 256, kSimdgroups = 8;
constexpr uint32_t kFillTokens = 4096;  // of a threadgroup of centroid_fill

}  // namespace

void lower_centroid_head(Emitter &e, const Op &op) {
  const Tensor &x = *op.operands[0], &scores = *op.operands[2], &ordering = *op.operands[3], &table = *op.operands[4];
  const Tensor &y = *op.operands[5], *norm = op.operands[1];
  const uint32_t rows = e.rows_of(y).count;
  if (rows == 0) return;
  const WeightLayout layout = weight_layout(table);

  PrologueParams prologue{};
  prologue.stream.k = layout.k;
  prologue.stream.has_pre = norm != nullptr;
  if (norm != nullptr) prologue.stream.pre_format = scalar_format(*norm);
  prologue.stream.eps = op.floats[0];
  prologue.columns = layout.columns();
  prologue.row_floats = row_params(layout).row_floats;
  prologue.chunk_shift = log2_of(layout.chunk);
  prologue.code_bits = layout.code_bits;
  const uint64_t u_bytes = uint64_t{rows} * prologue.row_floats * 4, u = e.scratch(u_bytes);
  Launch stream("linear_prologue", "linear_prologue_chunked");
  stream.reads_rows(0, x, 0, rows);
  for (const uint32_t slot : {1u, 2u, 3u, 4u}) stream.absent(slot);
  if (norm != nullptr) stream.reads(5, *norm);
  else stream.absent(5);
  stream.writes_scratch(6, u, u_bytes).params(7, prologue).groups(rows).threads(kThreads);
  e.emit(stream);

  BestParams best{};
  best.rows = rows;
  best.count = static_cast<uint32_t>(scores.dims[1]);
  best.slots = op.ints[0];
  best.factor = 1.0f;
  const uint64_t chosen_bytes = uint64_t{rows} * best.slots * 4, chosen = e.scratch(chosen_bytes);
  Launch choose("best", "best");
  choose.reads_rows(0, scores, 0, rows)
      .absent(1)
      .writes_scratch(2, chosen, chosen_bytes)
      .absent(3)
      .params(4, best)
      .groups(divide_up(rows, kSimdgroups))
      .threads(kThreads);
  e.emit(choose);

  CentroidsParams p{};
  p.row = row_params(layout);
  p.tokens = static_cast<uint32_t>(table.dims[0]);
  p.chosen = best.slots;
  p.each = static_cast<uint32_t>(ordering.dims[1]);
  const uint32_t candidates = p.chosen * p.each;
  const uint64_t logit_bytes = uint64_t{rows} * candidates * 4, logits = e.scratch(logit_bytes);
  Launch product("centroids", "centroid_logits_" + weight_format_name(table));
  product.reads_scratch(0, u, u_bytes).reads_scratch(1, chosen, chosen_bytes).reads(2, ordering);
  bind_weight(product, 3, &table);
  product.writes_scratch(6, logits, logit_bytes)
      .params(7, p)
      .groups(divide_up(candidates, 2 * kSimdgroups), rows)
      .threads(kThreads);
  e.emit(product);

  Launch fill("centroids", "centroid_fill");
  fill.reads_scratch(0, logits, logit_bytes)
      .writes_rows(1, y, 0, rows)
      .params(2, p)
      .groups(divide_up(p.tokens, kFillTokens), rows)
      .threads(kThreads);
  e.emit(fill);

  Launch scatter("centroids", "centroid_scatter");
  scatter.reads_scratch(0, logits, logit_bytes)
      .reads_scratch(1, chosen, chosen_bytes)
      .reads(2, ordering)
      .writes_rows(3, y, 0, rows)
      .params(4, p)
      .groups(divide_up(candidates, kThreads), rows)
      .threads(kThreads);
  e.emit(scatter);
}

}  // namespace mb::gpu
