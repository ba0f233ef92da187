#include <metal_stdlib>
using namespace metal;
kernel void k(device float* o [[buffer(0)]]) { simdgroup_matrix<float, 8, 8> m; simdgroup_load(m, o, 8); o[0] = m.thread_elements()[0]; }
