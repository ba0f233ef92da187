// Small kernels that use, between them, everything of the shim that a shader may name.
#include <metal_stdlib>
using namespace metal;
#include "tile_mma.h"

constant uint FACTOR [[function_constant(0)]];
constant constexpr float TABLE[4] = {1.0f, 2.0f, 4.0f, 8.0f};

struct MatmulParams {
  uint m;
  uint n;
  uint k;
};

// out[m,n] = a[m,k] · b[k,n]; a simdgroup makes 16×8, through threadgroup memory.
template <typename T>
[[kernel]] void matmul(
    device const T* a           [[buffer(0)]],
    device const T* b           [[buffer(1)]],
    device float* out           [[buffer(2)]],
    constant MatmulParams& p    [[buffer(3)]],
    uint2 tg   [[threadgroup_position_in_grid]],
    uint lane  [[thread_index_in_simdgroup]])
{
  threadgroup T tile[8 * 8];
  simdgroup_matrix<float, 8, 8> acc[2];
  acc[0] = simdgroup_matrix<float, 8, 8>(0.0f);
  acc[1] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  for (uint k = 0; k < p.k; k += 8) {
    for (uint i = lane; i < 64; i += 32) {
      tile[i] = b[(k + i / 8) * p.n + tg.x * 8 + i % 8];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_matrix<T, 8, 8> left[2];
    simdgroup_matrix<T, 8, 8> right;
    simdgroup_load(left[0], a + tg.y * 16 * p.k + k, p.k);
    simdgroup_load(left[1], a + (tg.y * 16 + 8) * p.k + k, p.k);
    simdgroup_load(right, tile, 8);
    tile_mma(acc, left, right);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  simdgroup_store(acc[0], out + tg.y * 16 * p.n + tg.x * 8, p.n);
  simdgroup_store(acc[1], out + (tg.y * 16 + 8) * p.n + tg.x * 8, p.n);
}
template [[host_name("matmul_f32")]] [[kernel]] decltype(matmul<float>) matmul<float>;
template [[host_name("matmul_f16")]] [[kernel]] decltype(matmul<half>) matmul<half>;
template [[host_name("matmul_bf16")]] [[kernel]] decltype(matmul<bfloat>) matmul<bfloat>;

// out = transpose of an 8×8 tile
kernel void transpose_tile(
    device const float* a [[buffer(0)]],
    device float* out     [[buffer(1)]])
{
  simdgroup_matrix<float, 8, 8> m;
  simdgroup_load(m, a, 8, ulong2(0, 0), true);
  simdgroup_store(m, out, 8);
}

// Every simdgroup function, one row of 32 results each.
kernel void simd_functions(
    device const float* x [[buffer(0)]],
    device float* out     [[buffer(1)]],
    uint lane [[thread_index_in_simdgroup]])
{
  const float v = x[lane];
  const uint u = uint(v);
  out[0 * 32 + lane] = simd_sum(v);
  out[1 * 32 + lane] = simd_max(v);
  out[2 * 32 + lane] = simd_min(v);
  out[3 * 32 + lane] = simd_product(v > 5.0f ? 1.0f : v + 1.0f);
  out[4 * 32 + lane] = simd_shuffle(v, ushort(31 - lane));
  out[5 * 32 + lane] = simd_shuffle_xor(v, ushort(5));
  out[6 * 32 + lane] = lane < 28 ? 0.0f : 1.0f;
  const float down = simd_shuffle_down(v, ushort(4));
  const float up = simd_shuffle_up(v, ushort(4));
  out[6 * 32 + lane] = lane < 28 ? down : 0.0f;
  out[7 * 32 + lane] = lane >= 4 ? up : 0.0f;
  out[8 * 32 + lane] = simd_broadcast(v, ushort(7));
  out[9 * 32 + lane] = simd_broadcast_first(v);
  out[10 * 32 + lane] = simd_prefix_inclusive_sum(v);
  out[11 * 32 + lane] = simd_prefix_exclusive_sum(v);
  out[12 * 32 + lane] = float(simd_or(u));
  out[13 * 32 + lane] = float(simd_and(u | 64u));
  out[14 * 32 + lane] = float(simd_xor(u));
  out[15 * 32 + lane] = (simd_any(lane == 3) ? 1.0f : 0.0f) + (simd_all(lane < 32) ? 2.0f : 0.0f);
  out[16 * 32 + lane] = simd_shuffle_rotate_down(v, ushort(3));
  out[17 * 32 + lane] = simd_shuffle_rotate_up(v, ushort(3));
  const float4 w = simd_sum(float4(v, 1.0f, 2.0f, -v));
  out[18 * 32 + lane] = w.x + w.y + w.z + w.w;
}

// A histogram through threadgroup atomics, merged with device atomics; sums[0] collects with a float atomic.
kernel void histogram(
    device const uint* x          [[buffer(0)]],
    device atomic_uint* bins      [[buffer(1)]],
    device atomic_float* sum      [[buffer(2)]],
    device atomic_int* extremes   [[buffer(3)]],
    constant uint& n              [[buffer(4)]],
    uint gid [[thread_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]])
{
  threadgroup atomic_uint local[16];
  if (tid < 16) {
    atomic_store_explicit(&local[tid], 0u, memory_order_relaxed);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (gid < n) {
    atomic_fetch_add_explicit(&local[x[gid] & 15u], 1u, memory_order_relaxed);
    atomic_fetch_add_explicit(sum, float(x[gid]), memory_order_relaxed);
    atomic_fetch_max_explicit(&extremes[0], int(x[gid]), memory_order_relaxed);
    atomic_fetch_min_explicit(&extremes[1], int(x[gid]), memory_order_relaxed);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid < 16) {
    atomic_fetch_add_explicit(&bins[tid], atomic_load_explicit(&local[tid], memory_order_relaxed), memory_order_relaxed);
  }
}

// Mathematical functions, one row of n results each.
kernel void math_functions(
    device const float* x [[buffer(0)]],
    device float* out     [[buffer(1)]],
    constant uint& n      [[buffer(2)]],
    uint i [[thread_position_in_grid]])
{
  if (i >= n) {
    return;
  }
  const float v = x[i];
  const float p = fabs(v) + 0.125f;
  out[0 * n + i] = exp(v);
  out[1 * n + i] = log(p);
  out[2 * n + i] = sin(v);
  out[3 * n + i] = cos(v);
  out[4 * n + i] = tanh(v);
  out[5 * n + i] = sqrt(p);
  out[6 * n + i] = rsqrt(p);
  out[7 * n + i] = precise::exp(clamp(v, -1.0f, 1.0f));
  out[8 * n + i] = floor(v) + ceil(v) + rint(v) + trunc(v) + fract(v);
  out[9 * n + i] = pow(p, 1.5f);
  out[10 * n + i] = select(v, p, v < 0.0f) + sign(v) + max3(v, p, 0.0f) + mix(v, p, 0.5f);
  out[11 * n + i] = float(popcount(uint(i)) + clz(uint(i)) + extract_bits(uint(i) * 77u, 2, 5)) + float(mulhi(uint(i) << 28, 16u));
  out[12 * n + i] = float(bfloat(v)) + float(half(v)) + float(0.5h);
  out[13 * n + i] = as_type<float>(as_type<uint>(v) ^ 0x80000000u) + TABLE[i & 3u] * float(FACTOR);
  out[14 * n + i] = dot(float4(half4(float4(v, p, 1.0f, 2.0f))), float4(1.0f)) + vec<float, 4>(int4(int(i))).y;
}
