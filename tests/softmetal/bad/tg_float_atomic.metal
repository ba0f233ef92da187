#include <metal_stdlib>
using namespace metal;
kernel void k(device float* o [[buffer(0)]]) { threadgroup atomic_float a; atomic_fetch_add_explicit(&a, 1.0f, memory_order_relaxed); o[0] = 1; }
