#include <metal_stdlib>
using namespace metal;
kernel void k(device float* o [[buffer(0)]]) { float x; o[0] = x; }
