// Kernels of the probe: what the tests of the Metal executor need, and nothing that a model does.
#include "probe.h"

// y = a + b
[[kernel, max_total_threads_per_threadgroup(64)]] void probe_add(
    device const float* a   [[buffer(0)]],
    device const float* b   [[buffer(1)]],
    device float* y         [[buffer(2)]],
    constant ProbeParams& p [[buffer(3)]],
    uint i [[thread_position_in_grid]]) {
  if (i < p.count) {
    y[i] = a[i] + b[i];
  }
}

// y = x
kernel void probe_copy(
    device const float* x   [[buffer(0)]],
    device float* y         [[buffer(1)]],
    constant ProbeParams& p [[buffer(3)]],
    uint i [[thread_position_in_grid]]) {
  if (i < p.count) {
    y[i] = x[i];
  }
}

// y = the row's token, as a number
kernel void probe_token(
    device const uint* input [[buffer(0)]],
    device float* y          [[buffer(1)]],
    constant ProbeParams& p  [[buffer(3)]],
    uint i [[thread_position_in_grid]]) {
  if (i < p.count) {
    y[i] = float(input[16 + i / p.columns]);
  }
}

// y = table[token]
kernel void probe_embed(
    device const uint* input  [[buffer(0)]],
    device const float* table [[buffer(1)]],
    device float* y           [[buffer(2)]],
    constant ProbeParams& p   [[buffer(3)]],
    uint i [[thread_position_in_grid]]) {
  if (i < p.count) {
    y[i] = table[input[16 + i / p.columns] * p.columns + i % p.columns];
  }
}

// y = x / 0: Inf, or NaN where x is 0
kernel void probe_divide(
    device const float* x   [[buffer(0)]],
    device float* y         [[buffer(1)]],
    constant ProbeParams& p [[buffer(3)]],
    uint i [[thread_position_in_grid]]) {
  if (i < p.count) {
    y[i] = x[i] / float(p.zero);
  }
}

// Writes 64 KB past y.
kernel void probe_stray(
    device const float* x   [[buffer(0)]],
    device float* y         [[buffer(1)]],
    constant ProbeParams& p [[buffer(3)]],
    uint i [[thread_position_in_grid]]) {
  if (i < p.count) {
    y[i + (1u << 14)] = x[i];
  }
}

// y = x, by way of dynamic threadgroup memory
kernel void probe_stage(
    device const float* x      [[buffer(0)]],
    device float* y            [[buffer(1)]],
    constant ProbeParams& p    [[buffer(3)]],
    threadgroup float* staged  [[threadgroup(0)]],
    uint i [[thread_position_in_grid]],
    uint t [[thread_index_in_threadgroup]]) {
  staged[t] = i < p.count ? x[i] : 0.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (i < p.count) {
    y[i] = staged[t];
  }
}
