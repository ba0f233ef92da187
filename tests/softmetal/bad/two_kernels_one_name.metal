#include <metal_stdlib>
using namespace metal;
template <typename T> [[kernel]] void f(device T* o [[buffer(0)]]) { o[0] = T(1); }
template [[host_name("k")]] [[kernel]] decltype(f<float>) f<float>;
template [[host_name("k")]] [[kernel]] decltype(f<half>) f<half>;
