#include <metal_stdlib>
using namespace metal;
kernel void k(device float* o [[buffer(0)]]) { goto end; end: o[0] = 1; }
