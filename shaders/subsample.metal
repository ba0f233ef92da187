// subsample.metal: 3 × 3 convolution of stride 2 over time and frequency, layer norm over channels, ReLU.
#include "common.h"
#include "tower_params.h"

constant constexpr uint kSubsampleThreads = 256;

// x [frames, bins, channels], valid [frames], weight [outputs, 9 · channels], norm [outputs]; y [frames', bins / 2, outputs].
// One threadgroup for each place of y; threads share the outputs, and the columns of an output where there are few.
// Grid: places along frequency, frames of y.
[[kernel, max_total_threads_per_threadgroup(256)]] void subsample(
    device const float* x        [[buffer(0)]],
    device const uint* valid     [[buffer(1)]],
    device const uchar* weight   [[buffer(2)]],
    device const uchar* norm     [[buffer(3)]],
    device float* y              [[buffer(4)]],
    constant SubsampleParams& p  [[buffer(5)]],
    uint2 place    [[threadgroup_position_in_grid]],
    uint tid       [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane      [[thread_index_in_simdgroup]])
{
  threadgroup float sums[kSubsampleThreads];
  threadgroup float partial[8];
  threadgroup float squares[8];
  const uint columns = 9 * p.channels;
  const uint width = min(p.outputs, kSubsampleThreads);
  const uint parts = kSubsampleThreads / width;
  device float* out = y + (ulong(place.y) * (p.bins / 2) + place.x) * p.outputs;

  float sum = 0.0f;
  for (uint base = 0; base < p.outputs; base += width) {
    const uint output = base + tid % width;
    const uint part = tid / width;
    float v = 0.0f;
    if (part < parts && output < p.outputs) {
      for (uint k = part; k < columns; k += parts) {
        const uint tap = p.channels_last != 0 ? k / p.channels : k % 9;
        const uint channel = p.channels_last != 0 ? k % p.channels : k / 9;
        // One more than the frame and the bin, so that those before the first are 0.
        const uint frame = 2 * place.y + tap / 3;
        const uint bin = 2 * place.x + tap % 3;
        if (frame >= 1 && frame <= p.frames && bin >= 1 && bin <= p.bins && valid[frame - 1] != 0) {
          const float w = load_scalar(weight, p.weight_format, output * columns + k);
          v = fma(w, x[(ulong(frame - 1) * p.bins + bin - 1) * p.channels + channel], v);
        }
      }
    }
    sums[tid] = v;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid < width && output < p.outputs) {
      float total = 0.0f;
      for (uint i = 0; i < parts; i++) {
        total += sums[tid + i * width];
      }
      out[output] = total;
      sum += total;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  // From here a thread takes the outputs that it has written.
  const float mean = threadgroup_sum(sum, partial, 8, simdgroup, lane) / float(p.outputs);
  sum = 0.0f;
  if (tid < width) {
    for (uint i = tid; i < p.outputs; i += width) {
      const float v = out[i] - mean;
      sum = fma(v, v, sum);
    }
  }
  const float factor = precise::rsqrt(threadgroup_sum(sum, squares, 8, simdgroup, lane) / float(p.outputs) + p.eps);
  if (tid < width) {
    for (uint i = tid; i < p.outputs; i += width) {
      out[i] = max(0.0f, (out[i] - mean) * factor * load_scalar(norm, p.norm_format, i));
    }
  }
}
