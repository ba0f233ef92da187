#include <metal_stdlib>
using namespace metal;
kernel void k(device float2* o [[buffer(0)]]) { float4 v = float4(1.0f); o[0] = v.xy; }
