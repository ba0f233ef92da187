#include <metal_stdlib>
using namespace metal;
kernel void k(device float* o [[buffer(0)]], uint i [[thread_position_in_grid]]) { if (i < 4) { threadgroup float a[4]; a[i] = 1; o[i] = a[i]; } }
