// lower_rows.cpp: embed, per_layer_inputs, draft_input and gather: one dispatch each.
#include "weight_layout.h"

namespace mb::gpu {
namespace {

#include "../../shaders/rows_params.h"

TableParams table_params(const Tensor &table) {
  TableParams p{};
  p.width = static_cast<uint32_t>(table.dims[1]);
  const WeightLayout layout = weight_layout(table);
  p.row_bytes = layout.row_bytes;
  p.scale_columns = layout.scale_columns;
  p.group_shift = layout.group_shift;
  return p;
}

// Table, scales, biases and the input block at slots 0 to 3.
void bind_table(Launch &launch, const Tensor &table) {
  launch.reads(0, table);
  for (const uint32_t slot : {1u, 2u}) {
    const Tensor *part = slot == 1 ? table.scales : table.biases;
    if (part != nullptr) launch.reads(slot, *part);
    else launch.absent(slot);
  }
  launch.reads_input(3);
}

}  // namespace

void lower_embed(Emitter &e, const Op &op) {
  const Tensor &table = *op.operands[0], &y = *op.operands[1];
  const Tensor *soft = op.operands[2];
  const uint32_t rows = e.rows_of(y).count;
  if (rows == 0) return;
  EmbedParams p{};
  p.has_soft = soft != nullptr;
  p.groups = e.plan.group_count;
  p.mask_words = divide_up(e.plan.vocabulary_size, 32);
  p.table = table_params(table);
  p.scale = op.floats[0];
  Launch launch("embed", "embed_" + weight_format_name(table));
  bind_table(launch, table);
  launch.writes_rows(4, y, 0, rows).params(5, p);
  if (soft != nullptr) launch.reads(6, *soft);
  else launch.absent(6);
  launch.groups(divide_up(p.table.width, 256), rows).threads(256);
  e.emit(launch);
}

void lower_per_layer_inputs(Emitter &e, const Op &op) {
  const Tensor &projected = *op.operands[0], &table = *op.operands[1], &norm = *op.operands[2], &y = *op.operands[3];
  const uint32_t rows = e.rows_of(y).count;
  if (rows == 0) return;
  PerLayerInputsParams p{};
  p.table = table_params(table);
  p.slice = op.ints[0];
  p.norm_format = scalar_format(norm);
  p.eps = op.floats[0], p.projection_scale = op.floats[1], p.table_scale = op.floats[2], p.out_scale = op.floats[3];
  Launch launch("embed", "per_layer_inputs_" + weight_format_name(table));
  bind_table(launch, table);
  launch.reads_rows(4, projected, 0, rows)
      .reads(5, norm)
      .writes_rows(6, y, 0, rows)
      .params(7, p)
      .groups(divide_up(p.table.width / p.slice, 8), rows)
      .threads(256);
  e.emit(launch);
}

void lower_draft_input(Emitter &e, const Op &op) {
  const Tensor &table = *op.operands[0], &state = *op.operands[1], &y = *op.operands[2];
  const uint32_t rows = e.rows_of(y).count;
  if (rows == 0) return;
  DraftInputParams p{};
  p.table = table_params(table);
  p.gathered = y.dims[0] == -1 - int64_t{kOutRows};
  p.scale = op.floats[0];
  Launch launch("embed", "draft_input_" + weight_format_name(table));
  bind_table(launch, table);
  launch.reads_rows(4, state, 0, rows)
      .writes_rows(5, y, 0, rows)
      .params(6, p)
      .groups(divide_up(2 * p.table.width, 256), rows)
      .threads(256);
  e.emit(launch);
}

void lower_gather(Emitter &e, const Op &op) {
  const Tensor &x = *op.operands[0], &y = *op.operands[1];
  const uint32_t rows = e.rows_of(y).count;
  if (rows == 0) return;
  const GatherParams p{static_cast<uint32_t>(y.dims[1])};
  Launch launch("pointwise", "gather");
  launch.reads_rows(0, x, 0, e.rows_of(x).count)
      .reads_input(1)
      .writes_rows(2, y, 0, rows)
      .params(3, p)
      .groups(divide_up(p.width, 256), rows)
      .threads(256);
  e.emit(launch);
}

}  // namespace mb::gpu
