// common.h: what every kernel may use: scalars of any stored format, activation functions, reductions, tile_mma.
// Kernels are C++14 that clang also compiles; the rules are in dylib/gpu/README.md.
#ifndef MARKBASE_COMMON_H
#define MARKBASE_COMMON_H
#include <metal_stdlib>
using namespace metal;

// Scalar formats, numbered as in dylib/plan.h.
enum ScalarFormat : uint32_t { kF32 = 0, kF16 = 1, kBF16 = 2 };

// bf16 without the bfloat type, which needs MSL 3.1.
static inline float from_bf16(ushort bits) {
  return as_type<float>(uint(bits) << 16);
}

template <uint32_t F>
static inline float load_as(device const uchar* data, uint i) {
  if (F == kF32) {
    return ((device const float*)data)[i];
  }
  if (F == kF16) {
    return float(((device const half*)data)[i]);
  }
  return from_bf16(((device const ushort*)data)[i]);
}

// Element i of a norm weight, bias or scalar whose format only the host knows.
static inline float load_scalar(device const uchar* data, uint32_t format, uint i) {
  if (format == kF32) {
    return load_as<kF32>(data, i);
  }
  if (format == kF16) {
    return load_as<kF16>(data, i);
  }
  return load_as<kBF16>(data, i);
}

// tanh is 1 to the last bit from 9 on; the clamp keeps the exponential inside it finite.
static inline float safe_tanh(float x) {
  return precise::tanh(clamp(x, -10.0f, 10.0f));
}

// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
static inline float gelu_tanh(float x) {
  const float a = clamp(x, -20.0f, 20.0f);
  return 0.5f * x * (1.0f + safe_tanh(0.7978845608028654f * fma(0.044715f * a * a, a, a)));
}

static inline float soft_cap(float x, float cap) {
  return cap * safe_tanh(x / cap);
}

// Sum over a threadgroup of `simdgroups` simdgroups, each of whose lanes brings one value. Every lane gets the sum, and the
// order is fixed. `partial` holds a float for each simdgroup; a barrier must stand between two uses of it.
static inline float threadgroup_sum(float value, threadgroup float* partial, uint simdgroups, uint simdgroup, uint lane) {
  const float sum = simd_sum(value);
  if (lane == 0) {
    partial[simdgroup] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0.0f;
  for (uint i = 0; i < simdgroups; i++) {
    total += partial[i];
  }
  return total;
}

// acc[i] += a[i] · b: a 16×8 product in two 8×8 operations. The PTX shim brings its own, one m16n8k8.
#ifndef MSL_TARGET_PTX
template <typename T>
static inline void tile_mma(
    thread simdgroup_matrix<float, 8, 8>* acc,
    const thread simdgroup_matrix<T, 8, 8>* a,
    const thread simdgroup_matrix<T, 8, 8>& b)
{
  simdgroup_multiply_accumulate(acc[0], a[0], b, acc[0]);
  simdgroup_multiply_accumulate(acc[1], a[1], b, acc[1]);
}

// Four matrices of a tile: to[i] begins (i % 2) · first + (i / 2) · second elements behind `at`, its rows `stride` apart.
template <typename T>
static inline void tile_load_four(
    thread simdgroup_matrix<T, 8, 8>* to, threadgroup const T* at, uint first, uint second, uint stride, bool transposed)
{
  #pragma clang loop unroll(full)
  for (uint i = 0; i < 4; i++) {
    simdgroup_load(to[i], at + i % 2 * first + i / 2 * second, stride, ulong2(0, 0), transposed);
  }
}

// acc[i] += a[i] · b[0] + a[2 + i] · b[1]: one m16n8k16.
template <typename T>
static inline void tile_mma_pair(
    thread simdgroup_matrix<float, 8, 8>* acc,
    const thread simdgroup_matrix<T, 8, 8>* a,
    const thread simdgroup_matrix<T, 8, 8>* b)
{
  tile_mma(acc, a, b[0]);
  tile_mma(acc, a + 2, b[1]);
}

// Matrices whose row lane / 4, columns 2 (lane % 4) and the next, each lane brings: v[i] is its pair of halves of matrix i, or of its
// transpose. Which elements a lane holds is not told, so they go through memory: `scratch` has kTileScratch floats, the
// simdgroup's own, for N ≤ 4. All lanes call this.
constant constexpr uint kTileScratch = 128;
template <uint N>
static inline void tiles_of_lanes(
    const thread uint* v, bool transposed, threadgroup float* scratch, uint lane, thread simdgroup_matrix<half, 8, 8>* to)
{
  for (uint i = 0; i < N; i++) {
    ((threadgroup uint*)scratch)[32 * i + lane] = v[i];
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = 0; i < N; i++) {
    simdgroup_load(to[i], (threadgroup half*)scratch + 64 * i, 8, ulong2(0), transposed);
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
}

// The other way, of N ≤ 2 matrices: v[i] has row lane / 4, columns 2 (lane % 4) and the next of matrix i.
template <uint N>
static inline void lanes_of_tiles(
    const thread simdgroup_matrix<float, 8, 8>* from, threadgroup float* scratch, uint lane, thread float2* v)
{
  for (uint i = 0; i < N; i++) {
    simdgroup_store(from[i], scratch + 64 * i, 8);
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = 0; i < N; i++) {
    v[i] = ((threadgroup float2*)scratch)[32 * i + lane];
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
}
#endif

// A kernel calls this before it reads what other dispatches write, where it asks for weights before; all others need not. On an Apple
// GPU barriers between dispatches keep their order and this is nothing; the PTX shim brings its own, since there a kernel may
// start while the one before it ends.
#ifndef MSL_TARGET_PTX
static inline void wait_for_earlier_dispatches() {}
#endif

// A kernel that calls this after it has waited lets the one that follows it start only then, which can so read what was written before
// this kernel without waiting. All others let it start as they do themselves.
#ifndef MSL_TARGET_PTX
static inline void let_next_dispatch_start() {}
#endif

// Copies from device to threadgroup memory that go on while the thread does: what a simdgroup's threads asked for before
// end_async_copies() is there for all of them when wait_for_async_copies() returns. BYTES: 8 or 16, aligned. An Apple GPU copies
// through registers, at once. The PTX shim brings its own.
#ifndef MSL_TARGET_PTX
template <uint BYTES>
static inline void async_copy(threadgroup uchar* to, device const uchar* from) {
  if (BYTES == 16) {
    *(threadgroup uint4*)to = *(device const uint4*)from;
  } else {
    *(threadgroup uint2*)to = *(device const uint2*)from;
  }
}
static inline void end_async_copies() {}
static inline void wait_for_async_copies() { simdgroup_barrier(mem_flags::mem_threadgroup); }
#endif

// INSTANTIATE(scale_f32, scale<float>): the instance of a kernel template, and the host's name of it.
#define INSTANTIATE(name, ...) \
  template [[host_name(#name)]] [[kernel]] decltype(__VA_ARGS__) __VA_ARGS__;

#endif
