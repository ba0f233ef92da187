#include <metal_stdlib>
using namespace metal;
kernel void k(constant float* c [[buffer(0)]], device float* o [[buffer(1)]]) { simdgroup_matrix<float, 8, 8> m; simdgroup_load(m, c, 8); simdgroup_store(m, o, 8); }
