#include <metal_stdlib>
using namespace metal;
struct P { float a; };
static P operator+(P x, P y) { P r; r.a = x.a + y.a; return r; }
kernel void k(device float* o [[buffer(0)]]) { P p; p.a = 1; P q = p + p; o[0] = q.a; }
