#include <metal_stdlib>
using namespace metal;
kernel void k(device float4* o [[buffer(0)]], device int4* i [[buffer(1)]]) { o[0] = (float4)i[0]; }
