// embed.metal: table rows of tokens: embed, per_layer_inputs and draft_input. The tables are the largest tensors of a model, so only the
// rows that are asked for are read.
#include "input_block.h"
#include "rows_params.h"
#include "weights.h"

// Column `column` of a table row that begins at `row`; its scales begin at element `scale_row`. The code is cut from
// the two bytes that hold it.
template <uint32_t W, uint32_t S>
static inline float table_value(
    device const uchar* row, device const uchar* scales, device const uchar* biases, ulong scale_row,
    constant TableParams& t, uint column)
{
  if (!is_affine(W)) {
    return load_as<W>(row, column);
  }
  constexpr uint bits = bits_of(W);
  const uint bit = column * bits;
  const uint last = (bit + bits - 1) / 8;
  const uint two = uint(row[bit / 8]) | uint(row[last]) << 8 * (last - bit / 8);
  const uint code_bits = two >> bit % 8 & ((1u << (bits & 31)) - 1);
  const float code = has_book(W) ? book_value<W>(code_bits) : float(code_bits);
  const uint group = column >> t.group_shift;
  const uint scale = load_scale<S>(scales + scale_row * scale_bytes(S), group);
  const uint bias = load_bias<W, S>(biases + bias_offset<W, S>(scale_row), group);
  return fma(scale_of<W, S>(scale, bias), code, bias_of<W, S>(scale, bias));
}

#define TABLE \
    device const uchar* table [[buffer(0)]], device const uchar* scales [[buffer(1)]], \
    device const uchar* biases [[buffer(2)]], device const uint* input [[buffer(3)]]

// y[r] = scale · table[token[r]], or the soft token of the row. y [rows, width], soft f32 [·, width]; grid: 256 columns, rows.
template <uint32_t W, uint32_t S>
[[kernel, max_total_threads_per_threadgroup(256)]] void embed(
    TABLE,
    device float* y          [[buffer(4)]],
    constant EmbedParams& p  [[buffer(5)]],
    device const float* soft [[buffer(6)]],
    uint2 at                 [[thread_position_in_grid]])
{
  const uint column = at.x;
  if (column >= p.table.width) {
    return;
  }
  if (p.has_soft != 0 && input_has_soft(input)) {
    const uint row = input_soft_row(input, p.groups, p.mask_words)[at.y];
    if (row != kNoPage) {
      y[ulong(at.y) * p.table.width + column] = soft[ulong(row) * p.table.width + column];
      return;
    }
  }
  const ulong token = input_token(input)[at.y];
  y[ulong(at.y) * p.table.width + column] =
      p.scale * table_value<W, S>(table + token * p.table.row_bytes, scales, biases, token * p.table.scale_columns, p.table, column);
}

// y = (rms_norm_P(projected · projection_scale) · norm + table[token] · table_scale) · out_scale in slices of P.
// projected, y [rows, L·P]; norm [P]. A simdgroup makes one slice; grid: slices by 8, rows.
template <uint32_t W, uint32_t S>
[[kernel, max_total_threads_per_threadgroup(256)]] void per_layer_inputs(
    TABLE,
    device const float* projected     [[buffer(4)]],
    device const uchar* norm          [[buffer(5)]],
    device float* y                   [[buffer(6)]],
    constant PerLayerInputsParams& p  [[buffer(7)]],
    uint2 tg       [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane      [[thread_index_in_simdgroup]])
{
  const uint first = (tg.x * 8 + simdgroup) * p.slice;
  if (first >= p.table.width) {
    return;
  }
  const ulong token = input_token(input)[tg.y];
  const ulong start = ulong(tg.y) * p.table.width + first;
  float sum = 0.0f;
  for (uint i = lane; i < p.slice; i += 32) {
    const float v = projected[start + i] * p.projection_scale;
    sum = fma(v, v, sum);
  }
  const float factor = precise::rsqrt(simd_sum(sum) / float(p.slice) + p.eps) * p.projection_scale;
  for (uint i = lane; i < p.slice; i += 32) {
    const float context = projected[start + i] * factor * load_scalar(norm, p.norm_format, i);
    const float identity = table_value<W, S>(
        table + token * p.table.row_bytes, scales, biases, token * p.table.scale_columns, p.table, first + i);
    y[start + i] = fma(identity, p.table_scale, context) * p.out_scale;
  }
}

// y[i] = [scale · table[token[out_row[i]]] | state[i]]. state [rows, width], y [rows, 2 · width]; grid: 256 columns of y, rows.
template <uint32_t W, uint32_t S>
[[kernel, max_total_threads_per_threadgroup(256)]] void draft_input(
    TABLE,
    device const float* state    [[buffer(4)]],
    device float* y              [[buffer(5)]],
    constant DraftInputParams& p [[buffer(6)]],
    uint2 at                     [[thread_position_in_grid]])
{
  const uint width = p.table.width;
  const uint column = at.x;
  if (column >= 2 * width) {
    return;
  }
  float v = 0.0f;
  if (column < width) {
    const uint row = p.gathered != 0 ? input_out_row(input)[at.y] : at.y;
    const ulong token = input_token(input)[row];
    v = p.scale * table_value<W, S>(
        table + token * p.table.row_bytes, scales, biases, token * p.table.scale_columns, p.table, column);
  } else {
    v = state[ulong(at.y) * width + column - width];
  }
  y[ulong(at.y) * 2 * width + column] = v;
}

#define INSTANTIATE_TABLE(name, W, S) \
  INSTANTIATE(draft_input_##name, draft_input<W, S>) \
  INSTANTIATE(embed_##name, embed<W, S>) \
  INSTANTIATE(per_layer_inputs_##name, per_layer_inputs<W, S>)

#define INSTANTIATE_AFFINE_TABLE(bits) \
  INSTANTIATE_TABLE(affine##bits##_bf16, kAffine + bits, kBF16) \
  INSTANTIATE_TABLE(affine##bits##_f16, kAffine + bits, kF16) \
  INSTANTIATE_TABLE(affine##bits##_f32, kAffine + bits, kF32)

INSTANTIATE_TABLE(f32, kF32, kF32)
INSTANTIATE_TABLE(f16, kF16, kF16)
INSTANTIATE_TABLE(bf16, kBF16, kBF16)
INSTANTIATE_AFFINE_TABLE(2)
INSTANTIATE_AFFINE_TABLE(3)
INSTANTIATE_AFFINE_TABLE(4)
INSTANTIATE_AFFINE_TABLE(5)
INSTANTIATE_AFFINE_TABLE(6)
INSTANTIATE_AFFINE_TABLE(8)
INSTANTIATE_TABLE(q4_0, kAffine + 4, kSymmetric)
INSTANTIATE_TABLE(q5_0, kAffine + 5, kSymmetric)
INSTANTIATE_TABLE(q8_0, kAffine + 8, kSymmetric)
INSTANTIATE_TABLE(q2_k, kFine + kAffine + 2, kMinimums)
INSTANTIATE_TABLE(q3_k, kFine + kAffine + 3, kSigned)
INSTANTIATE_TABLE(q4_k, kAffine + 4, kMinimums)
INSTANTIATE_TABLE(q5_k, kAffine + 5, kMinimums)
INSTANTIATE_TABLE(q6_k, kFine + kAffine + 6, kSigned)
INSTANTIATE_TABLE(iq4_nl, kIq4, kSymmetric)
INSTANTIATE_TABLE(iq4_xs, kIq4, kSigned)
INSTANTIATE_TABLE(mxfp4, kE2m1, kPowers)
INSTANTIATE_TABLE(mxfp8, kE4m3, kPowers)
INSTANTIATE_TABLE(nvfp4, kFine + kE2m1, kBytes)
