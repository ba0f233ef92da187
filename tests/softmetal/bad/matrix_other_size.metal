#include <metal_stdlib>
using namespace metal;
kernel void k(device float* o [[buffer(0)]]) { simdgroup_matrix<float, 16, 8> m; simdgroup_store(m, o, 16); }
