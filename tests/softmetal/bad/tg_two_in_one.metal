#include <metal_stdlib>
using namespace metal;
kernel void k(device float* o [[buffer(0)]]) { threadgroup float a[4], b[4]; a[0] = 1; b[0] = 2; o[0] = a[0] + b[0]; }
