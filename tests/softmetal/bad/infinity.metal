#include <metal_stdlib>
using namespace metal;
kernel void k(device float* o [[buffer(0)]]) { o[0] = -INFINITY; }
