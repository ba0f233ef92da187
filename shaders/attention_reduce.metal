// attention_reduce.metal: the second half of split decode attention.
#include "attention_head.h"

// y = the parts of a row's context, added in order. Grid: heads, rows. Shapes as above; y: f32 [rows, heads, d].
[[kernel]] [[max_total_threads_per_threadgroup(256)]] void attention_reduce(
    device const float* parts [[buffer(0)]],
    device const float* stats [[buffer(1)]],
    device const uint* input [[buffer(2)]],
    device float* y [[buffer(3)]],
    constant AttentionReduceParams& r [[buffer(4)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]])
{
  const uint i = group.y;
  const uint row = r.gathered ? input_out_row(input)[r.first_row + i] : r.first_row + i;
  const uint position = input_position(input)[row];
  const uint keys = part_keys(position);
  const uint begin = r.window == 0 || position < r.window ? 0 : (position - r.window + 1) / keys;
  const uint end = position / keys + 1;
  const uint at = i * r.heads + group.x;
  device const float* stat = stats + 2 * at * r.splits;
  float largest = kNoScore;
  for (uint s = begin; s < end; s++) {
    largest = max(largest, stat[2 * s]);
  }
  for (uint d = tid; d < r.head_dim; d += 256) {
    float value = 0.0f;
    float sum = 0.0f;
    for (uint s = begin; s < end; s++) {
      const float fade = weight_of(stat[2 * s], largest, r.score_scale);
      value = fma(parts[(at * r.splits + s) * r.head_dim + d], fade, value);
      sum = fma(stat[2 * s + 1], fade, sum);
    }
    y[at * r.head_dim + d] = value / sum;
  }
}
