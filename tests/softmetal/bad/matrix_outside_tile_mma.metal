#include <metal_stdlib>
using namespace metal;
kernel void k(device float* o [[buffer(0)]]) { simdgroup_matrix<float, 8, 8> m; simdgroup_load(m, o, 8); simdgroup_multiply_accumulate(m, m, m, m); simdgroup_store(m, o, 8); }
