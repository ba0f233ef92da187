// kv_write.metal: writes the rows' k and v to their page slots, after head norms and rotation where the op has them.
#include "attention_head.h"

// A simdgroup for each (row, KV head, k or v).
// k, v: f32 [rows, stride], the same buffer where both are columns of qkv; pages: T [pages, planes, kv_heads, HEAD_ELEMENTS]
template <typename T, int D>
[[kernel]] [[max_total_threads_per_threadgroup(256)]] void kv_write(
    device const float* k [[buffer(0)]],
    device const float* v [[buffer(1)]],
    device const uchar* k_norm [[buffer(2)]],
    device T* pages [[buffer(3)]],
    device const uint* input [[buffer(4)]],
    constant AttentionParams& p [[buffer(5)]],
    uint group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
  const uint task = 8 * group + simdgroup;
  if (task >= 2 * p.kv_heads * p.rows) {
    return;
  }
  const uint plane = task % 2;
  const uint kv_head = task / 2 % p.kv_heads;
  const uint i = task / 2 / p.kv_heads;
  const uint row = input_row(input, p, i);
  const uint position = input_position(input)[row];
  const uint page = input_page(input, p.groups, p.group, input_sequence(input)[row], position);
  float low[PAIRS(D)];
  float high[PAIRS(D)];
  const float scale = plane == 0
      ? head_k<T, D>(k + i * p.stride, k_norm, p, kv_head, position, lane, low, high)
      : head_v<T, D>(v + i * p.stride, p, kv_head, lane, low, high);
  device T* head = pages + page_offset<T, D>(p, page, p.plane + plane, kv_head);
  head_store<T, D>(head, position % kTokensPerPage, lane, low, high, scale);
}

#define KV_WRITE(F, T, D) \
  template [[host_name(TEXT(kv_write_##F##_d##D))]] [[kernel]] decltype(kv_write<T, D>) kv_write<T, D>;
#define KV_WRITE_SIZES(F, T) KV_WRITE(F, T, 32) KV_WRITE(F, T, 64) KV_WRITE(F, T, 128) KV_WRITE(F, T, 256) KV_WRITE(F, T, 512)
KV_WRITE_SIZES(f32, float)
KV_WRITE_SIZES(f16, half)
KV_WRITE_SIZES(q8, char)
