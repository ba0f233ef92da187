// light_conv.metal: gate, causal depthwise convolution over rows, norm, SiLU.
#include "common.h"
#include "tower_params.h"

static inline float sigmoid(float x) {
  return 1.0f / (1.0f + precise::exp(-clamp(x, -80.0f, 80.0f)));
}

// x [rows, 2 · width], weight [width, taps], norm [width]; y [rows, width]. One threadgroup a row.
[[kernel, max_total_threads_per_threadgroup(256)]] void light_conv(
    device const float* x        [[buffer(0)]],
    device const uchar* weight   [[buffer(1)]],
    device const uchar* norm     [[buffer(2)]],
    device float* y              [[buffer(3)]],
    constant LightConvParams& p  [[buffer(4)]],
    uint row       [[threadgroup_position_in_grid]],
    uint tid       [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane      [[thread_index_in_simdgroup]])
{
  threadgroup float partial[8];
  device float* out = y + ulong(row) * p.width;
  float sum = 0.0f;
  for (uint i = tid; i < p.width; i += 256) {
    float v = 0.0f;
    for (uint j = p.taps - min(p.taps, row + 1); j < p.taps; j++) {
      device const float* from = x + ulong(row + 1 + j - p.taps) * 2 * p.width;
      v = fma(from[i] * sigmoid(from[p.width + i]), load_scalar(weight, p.weight_format, i * p.taps + j), v);
    }
    out[i] = v;
    sum = fma(v, v, sum);
  }
  const float factor = precise::rsqrt(threadgroup_sum(sum, partial, 8, simdgroup, lane) / float(p.width) + p.eps);
  for (uint i = tid; i < p.width; i += 256) {
    const float v = out[i] * factor * load_scalar(norm, p.norm_format, i);
    out[i] = v * sigmoid(v);
  }
}
