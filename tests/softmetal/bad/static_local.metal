#include <metal_stdlib>
using namespace metal;
kernel void k(device float* o [[buffer(0)]]) { static float x; x = 1; o[0] = x; }
