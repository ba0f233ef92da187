#include <metal_stdlib>
using namespace metal;

constant bool HAS_WEIGHT [[function_constant(0)]];

constant constexpr uint GROUP = 64;
constant constexpr uint SIMD = 32;

struct QmvParams {
  uint rows;
  uint cols;
};

struct AttnParams {
  uint n_heads;
  uint n_kv_heads;
  uint seq_len;
  float scale;
};

// ---------------------------------------------------------------- rms_norm
// One threadgroup per row. n is a multiple of 4.
kernel void rms_norm(
    device const half* x          [[buffer(0)]],
    device const half* w          [[buffer(1), function_constant(HAS_WEIGHT)]],
    device half* y                [[buffer(2)]],
    constant uint& n              [[buffer(3)]],
    constant float& eps           [[buffer(4)]],
    uint row    [[threadgroup_position_in_grid]],
    uint tid    [[thread_position_in_threadgroup]],
    uint tgsize [[threads_per_threadgroup]],
    uint lane   [[thread_index_in_simdgroup]],
    uint sg     [[simdgroup_index_in_threadgroup]],
    uint nsg    [[simdgroups_per_threadgroup]])
{
  threadgroup float partial[32];
  device const half4* xr = (device const half4*)(x + row * n);
  device half4* yr = (device half4*)(y + row * n);
  float acc = 0.0f;
  for (uint i = tid; i < n / 4; i += tgsize) {
    float4 v = float4(xr[i]);
    acc += dot(v, v);
  }
  acc = simd_sum(acc);
  if (lane == 0) {
    partial[sg] = acc;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = simd_sum(lane < nsg ? partial[lane] : 0.0f);
  float inv = rsqrt(total / float(n) + eps);
  for (uint i = tid; i < n / 4; i += tgsize) {
    float4 v = float4(xr[i]) * inv;
    if (HAS_WEIGHT) {
      v *= float4(((device const half4*)w)[i]);
    }
    yr[i] = half4(v);
  }
}

// ---------------------------------------------------------------- qmv4
// y[r] = sum_g scale[r,g] * sum(q*x) + bias[r,g] * sum(x);  8 nibbles per uint, low nibble first.
// Each simdgroup makes ROWS rows; each lane takes 16 columns of every 512-column block.
template <typename T, uint ROWS>
[[kernel]] void qmv4(
    device const uint* w        [[buffer(0)]],
    device const T* scales      [[buffer(1)]],
    device const T* biases      [[buffer(2)]],
    device const T* x           [[buffer(3)]],
    device T* y                 [[buffer(4)]],
    constant QmvParams& p       [[buffer(5)]],
    uint tg   [[threadgroup_position_in_grid]],
    uint sg   [[simdgroup_index_in_threadgroup]],
    uint nsg  [[simdgroups_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
  const uint row0 = (tg * nsg + sg) * ROWS;
  if (row0 >= p.rows) {
    return;
  }
  const uint words = p.cols / 8;
  const uint groups = p.cols / GROUP;
  float acc[ROWS] = {0.0f};

  for (uint c = lane * 16; c < p.cols; c += SIMD * 16) {
    float xs[16];
    float xsum = 0.0f;
    device const vec<T, 4>* xp = (device const vec<T, 4>*)(x + c);
    #pragma clang loop unroll(full)
    for (uint i = 0; i < 4; i++) {
      float4 v = float4(xp[i]);
      xs[4 * i] = v.x;
      xs[4 * i + 1] = v.y;
      xs[4 * i + 2] = v.z;
      xs[4 * i + 3] = v.w;
      xsum += v.x + v.y + v.z + v.w;
    }
    #pragma clang loop unroll(full)
    for (uint r = 0; r < ROWS; r++) {
      const uint row = row0 + r;
      uint2 q = *(device const uint2*)(w + row * words + c / 8);
      float d = 0.0f;
      #pragma clang loop unroll(full)
      for (uint i = 0; i < 8; i++) {
        d += float((q.x >> (4 * i)) & 0xf) * xs[i];
        d += float((q.y >> (4 * i)) & 0xf) * xs[8 + i];
      }
      const uint g = row * groups + c / GROUP;
      acc[r] += float(scales[g]) * d + float(biases[g]) * xsum;
    }
  }
  for (uint r = 0; r < ROWS; r++) {
    float s = simd_sum(acc[r]);
    if (lane == 0) {
      y[row0 + r] = T(s);
    }
  }
}

#define instantiate_qmv4(name, T, R) \
  template [[host_name(name)]] [[kernel]] decltype(qmv4<T, R>) qmv4<T, R>;

instantiate_qmv4("qmv4_f16_r4", half, 4)
instantiate_qmv4("qmv4_f32_r4", float, 4)

// ---------------------------------------------------------------- flash_decode
// One threadgroup per query head, D = 128: a lane holds 4 elements. Simdgroups take every nsg-th token
// with an online softmax, then merge through threadgroup memory: nsg * (128 + 2) floats at threadgroup(0).
kernel void flash_decode(
    device const half* q        [[buffer(0)]],
    device const half* k        [[buffer(1)]],
    device const half* v        [[buffer(2)]],
    device half* out            [[buffer(3)]],
    constant AttnParams& p      [[buffer(4)]],
    threadgroup float* shared   [[threadgroup(0)]],
    uint3 tgp  [[threadgroup_position_in_grid]],
    uint tid   [[thread_index_in_threadgroup]],
    ushort lane [[thread_index_in_simdgroup]],
    ushort sg   [[simdgroup_index_in_threadgroup]],
    ushort nsg  [[simdgroups_per_threadgroup]])
{
  const uint D = 128;
  const uint head = tgp.x;
  const uint kvh = head / (p.n_heads / p.n_kv_heads);
  device const half4* q4 = (device const half4*)(q + head * D);
  device const half4* k4 = (device const half4*)(k + kvh * p.seq_len * D);
  device const half4* v4 = (device const half4*)(v + kvh * p.seq_len * D);

  const float4 qv = float4(q4[lane]) * p.scale;
  float m = -3.0e38f;
  float l = 0.0f;
  float4 o = float4(0.0f, 0.0f, 0.0f, 0.0f);
  for (uint t = sg; t < p.seq_len; t += nsg) {
    const float s = simd_sum(dot(qv, float4(k4[t * (D / 4) + lane])));
    const float m2 = max(m, s);
    const float a = exp(m - m2);
    const float e = exp(s - m2);
    l = l * a + e;
    o = o * a + e * float4(v4[t * (D / 4) + lane]);
    m = m2;
  }
  threadgroup float* mo = shared;
  threadgroup float* mm = shared + nsg * D;
  threadgroup float* ml = mm + nsg;
  ((threadgroup float4*)mo)[sg * (D / 4) + lane] = o;
  if (lane == 0) {
    mm[sg] = m;
    ml[sg] = l;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid < D) {
    float gm = -3.0e38f;
    for (uint i = 0; i < nsg; i++) {
      gm = max(gm, mm[i]);
    }
    float gl = 0.0f;
    float acc = 0.0f;
    for (uint i = 0; i < nsg; i++) {
      const float f = exp(mm[i] - gm);
      gl += ml[i] * f;
      acc += mo[i * D + tid] * f;
    }
    out[head * D + tid] = half(acc / gl);
  }
}

// ---------------------------------------------------------------- template + host_name, half literal
template <typename T>
[[kernel]] void scale_add(
    device const T* a [[buffer(0)]],
    device const T* b [[buffer(1)]],
    device T* c       [[buffer(2)]],
    constant uint& n  [[buffer(3)]],
    uint gid          [[thread_position_in_grid]])
{
  if (gid < n) {
    c[gid] = a[gid] * T(0.5) + b[gid];
  }
}
template [[host_name("scale_add_f32")]] [[kernel]] decltype(scale_add<float>) scale_add<float>;
template [[host_name("scale_add_f16")]] [[kernel]] decltype(scale_add<half>) scale_add<half>;
