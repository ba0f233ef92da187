// Kernels that keep the language's rules and are wrong when they run: one planted bug each.
#include <metal_stdlib>
using namespace metal;

kernel void read_past_end(device const float* x [[buffer(0)]], device float* o [[buffer(1)]], uint i [[thread_position_in_grid]]) { o[i] = x[i + 4]; }
kernel void write_past_end(device float* o [[buffer(0)]], uint i [[thread_position_in_grid]]) { o[i + 4] = 1; }
kernel void write_just_past_end(device float* o [[buffer(0)]], uint i [[thread_position_in_grid]]) { if (i < 3) { o[i] = 1; } if (i == 0) { o[3] = 1; } }
kernel void missing_barrier(device float* o [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  threadgroup float s[64];
  s[i] = float(i);
  o[i] = s[63 - i];
}
kernel void wrong_barrier_flags(device float* o [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  threadgroup float s[64];
  s[i] = float(i);
  threadgroup_barrier(mem_flags::mem_device);
  o[i] = s[63 - i];
}
kernel void missing_device_barrier(device float* o [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  o[i] = float(i);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  o[64 + i] = o[63 - i];
}
kernel void simdgroup_barrier_too_weak(device float* o [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  threadgroup float s[64];
  s[i] = float(i);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  o[i] = s[63 - i];
}
kernel void write_after_read(device float* o [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  threadgroup float s[64];
  s[i] = float(i);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const float v = i < 32 ? s[63 - i] : 1.0f;
  if (i >= 32) { s[i] = v + 1.0f; }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  o[i] = s[i];
}
kernel void divergent_barrier(device float* o [[buffer(0)]], uint i [[thread_position_in_grid]]) { if (i < 32) { threadgroup_barrier(mem_flags::mem_device); } o[i] = 1; }
kernel void barrier_after_return(device float* o [[buffer(0)]], uint i [[thread_position_in_grid]]) { if (i >= 40) { return; } threadgroup_barrier(mem_flags::mem_device); o[i] = 1; }
kernel void two_barriers(device float* o [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  if (i < 32) { threadgroup_barrier(mem_flags::mem_device); o[i] = 1; } else { threadgroup_barrier(mem_flags::mem_threadgroup); o[i] = 2; }
}
kernel void divergent_simd(device float* o [[buffer(0)]], uint i [[thread_position_in_grid]]) { float r = 0; if ((i & 1) != 0) { r = simd_sum(1.0f); } else { r = simd_max(2.0f); } o[i] = r; }
kernel void one_sided_simd(device float* o [[buffer(0)]], uint i [[thread_position_in_grid]]) { float r = 0; if ((i & 1) != 0) { r = simd_sum(1.0f); } o[i] = r; }
kernel void simd_after_return(device float* o [[buffer(0)]], uint i [[thread_position_in_grid]]) { if (i > 40) { return; } o[i] = simd_sum(1.0f); }
kernel void uninitialised_threadgroup(device float* o [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  threadgroup float s[64];
  if (i == 0) { s[0] = 1; }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  o[i] = s[i];
}
kernel void uninitialised_local(device float* o [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  float a[4];
  for (uint k = i / 63; k < 4; k++) { a[k] = 1; }
  o[i] = a[0];
}
kernel void threadgroup_past_end(device float* o [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  threadgroup float s[32];
  threadgroup float* p = s;
  p[i] = 1;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  o[i] = p[i % 32];
}
kernel void threadgroup_40k(device float* o [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  threadgroup float s[10240];
  s[i] = 1;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  o[i] = s[i];
}
kernel void dynamic_threadgroup(device float* o [[buffer(0)]], threadgroup float* s [[threadgroup(0)]], uint i [[thread_position_in_grid]]) { s[i] = 1; o[i] = s[i]; }
kernel void race_between_groups(device float* o [[buffer(0)]], uint i [[thread_position_in_threadgroup]]) { o[i] = o[i] + 1; }
kernel void race_of_bytes(device uchar* o [[buffer(0)]], uint i [[thread_position_in_grid]]) { o[i / 2] = uchar(i); }
kernel void neighbouring_bytes(device uchar* o [[buffer(0)]], uint i [[thread_position_in_grid]]) { o[i] = uchar(i); }
kernel void atomic_and_plain(device atomic_uint* o [[buffer(0)]], uint i [[thread_position_in_grid]]) { if (i < 63) { atomic_fetch_add_explicit(o, 1u, memory_order_relaxed); } else { *(device uint*)o = 7; } }
kernel void misaligned_vector(device float* o [[buffer(0)]], uint i [[thread_position_in_grid]]) { if (i < 4) { device float4* p = (device float4*)(o + i); *p = float4(1.0f); } }
kernel void local_array_past_end(device float* o [[buffer(0)]], uint i [[thread_position_in_grid]]) { float a[4] = {0}; a[i & 7] = 1; o[i] = a[0]; }
kernel void shift_by_32(device float* o [[buffer(0)]], uint i [[thread_position_in_grid]]) { o[i] = float(1u << i); }
kernel void divide_by_zero(device uint* o [[buffer(0)]], uint i [[thread_position_in_grid]]) { o[i] = 64u / i; }
kernel void matrix_past_end(device float* o [[buffer(0)]]) {
  simdgroup_matrix<float, 8, 8> m;
  simdgroup_load(m, o + 32, 8);
  simdgroup_store(m, o, 8);
}
kernel void matrix_missing_barrier(device float* o [[buffer(0)]], uint i [[thread_index_in_simdgroup]]) {
  threadgroup float s[64];
  s[i] = 1;
  s[32 + i] = 2;
  simdgroup_matrix<float, 8, 8> m;
  simdgroup_load(m, s, 8);
  simdgroup_store(m, o, 8);
}
kernel void matrix_arguments_differ(device float* o [[buffer(0)]], uint i [[thread_index_in_simdgroup]]) {
  simdgroup_matrix<float, 8, 8> m;
  simdgroup_load(m, o, 8 + (i & 1));
  simdgroup_store(m, o + 64, 8);
}
kernel void matrix_divergent(device float* o [[buffer(0)]], uint i [[thread_index_in_simdgroup]]) {
  simdgroup_matrix<float, 8, 8> m = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);
  if (i < 16) { simdgroup_store(m, o, 8); }
}
[[kernel, max_total_threads_per_threadgroup(128)]] void at_most_128(device float* o [[buffer(0)]], uint i [[thread_position_in_grid]]) { o[i] = 1; }
kernel void add(device const float* a [[buffer(0)]], device const float* b [[buffer(1)]], device float* c [[buffer(2)]], constant uint& n [[buffer(3)]], uint i [[thread_position_in_grid]]) { if (i < n) { c[i] = a[i] + b[i]; } }
kernel void null_write(device float* o [[buffer(0)]], constant ulong& address [[buffer(1)]], uint i [[thread_position_in_grid]]) { if (i == 5) { *(device float*)address = 1; } o[i] = 1; }
