// linear_prologue.metal: u of linear ops for kernels that take it ready-made. One threadgroup of 256 threads a row.
#include "stream.h"
#include "tile_stream.h"
#include "weights.h"

// For decode rows: u [rows, row_floats] in chunked order, then the sums of its chunks where row_floats has room for them.
// Both are scaled for codes that are multiplied as they lie where code_bits tells of them (weights.h).
template <uint T>
static inline void prologue_chunked(
    device const float* x, device const float* residual, device const uchar* post_norm, device const uchar* scalar,
    device float* h_out, device const uchar* pre_norm, device float4* u, constant PrologueParams& p, threadgroup float* partial,
    uint row, uint tid, uint simdgroup, uint lane)
{
  const ulong at = ulong(row) * p.stream.k;
  device float4* quads = u + ulong(row) * (p.row_floats / 4);
  device float* sums = (device float*)quads + p.columns;
  const uint chunk_quads = 1u << (p.chunk_shift - 2);
  // Chunks divide T.
  const float4 factor = code_factors(p.code_bits, tid % chunk_quads);
  const bool held_row = stream_held<T>(p.stream);
  HeldQuads held;
  StreamFactors f;
  if (held_row) {
    hold_quads<T>(x + at, residual + at, post_norm, scalar, pre_norm, p.stream, tid, held);
    held_u<T>(h_out + at, p.stream, p.stream.stores_h != 0, partial, tid, simdgroup, lane, held);
  } else {
    f = stream_factors<T>(x + at, residual + at, post_norm, scalar, p.stream, partial, tid, simdgroup, lane);
  }
  for (uint i = tid; i < p.columns / 4; i += T) {
    float4 v = held.x[0];
    if (held_row) {
      held.x[0] = held.x[1];
      held.x[1] = held.x[2];
    } else {
      v = stream_u(x + at, residual + at, post_norm, h_out + at, pre_norm, p.stream, f, p.stream.stores_h != 0, i);
    }
    quads[chunked_quad(i, p.chunk_shift, 16)] = v * factor;
    if (p.row_floats > p.columns) {
      const float sum = chunk_sum(v, p.chunk_shift);
      if (i % chunk_quads == 0) {
        sums[i / chunk_quads] = p.code_bits != 0 ? sum * as_type<float>(kCodeScaleBits) : sum;
      }
    }
  }
}

#define CHUNKED_PROLOGUE(name, threads) \
[[kernel, max_total_threads_per_threadgroup(threads)]] void name( \
    STREAM_OPERANDS, \
    device float4* u             [[buffer(6)]], \
    constant PrologueParams& p   [[buffer(7)]], \
    STREAM_INDICES) \
{ \
  threadgroup float partial[2 * threads / 32]; \
  prologue_chunked<threads>( \
      x, residual, post_norm, scalar, h_out, pre_norm, u, p, partial, row, tid, simdgroup, lane); \
}

CHUNKED_PROLOGUE(linear_prologue_chunked, 256)
#ifdef MSL_TARGET_PTX
CHUNKED_PROLOGUE(linear_prologue_chunked_wide, 512)
#endif

// For prefill rows in exact mode: u f32 [rows, columns], zero beyond k.
[[kernel, max_total_threads_per_threadgroup(256)]] void linear_prologue_f32(
    STREAM_OPERANDS,
    device float4* u             [[buffer(6)]],
    constant PrologueParams& p   [[buffer(7)]],
    device float* row_scale      [[buffer(8)]],
    STREAM_INDICES)
{
  threadgroup float partial[2 * kStreamSimdgroups];
  const ulong at = ulong(row) * p.stream.k;
  const StreamFactors f = stream_factors<kStreamThreads>(x + at, residual + at, post_norm, scalar, p.stream, partial, tid, simdgroup, lane);
  for (uint i = tid; i < p.columns / 4; i += kStreamThreads) {
    u[ulong(row) * (p.columns / 4) + i] = stream_u(
        x + at, residual + at, post_norm, h_out + at, pre_norm, p.stream, f, p.stream.stores_h != 0, i);
  }
  if (tid == 0) {
    row_scale[row] = 1.0f;
  }
}

// For prefill rows in fast mode: u f16 [rows, columns] divided by row_scale, a power of two that brings the row's largest
// element to 2^14 … 2^15. As in matvec.h, each way in which u comes to be has a kernel of its own.
#define PREFILL_OPERANDS \
    STREAM_OPERANDS, device half4* u [[buffer(6)]], constant PrologueParams& p [[buffer(7)]], \
    device float* row_scale [[buffer(8)]], STREAM_INDICES

static inline float largest_of(float4 u, float most) {
  const float4 v = fabs(u);
  return max(most, max(max(v.x, v.y), max(v.z, v.w)));
}

// What u is multiplied by, of the largest that each thread found. Stores the row's scale. All threads of the threadgroup call this.
static inline float halves_factor(
    float most, threadgroup float* largest, device float* row_scale, uint row, uint tid, uint simdgroup, uint lane)
{
  most = simd_max(most);
  if (lane == 0) {
    largest[simdgroup] = most;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  most = simd_max(largest[lane % kStreamSimdgroups]);
  const uint exponent = clamp(as_type<uint>(most) >> 23, 15u, 254u);
  if (tid == 0) {
    row_scale[row] = as_type<float>((exponent - 14) << 23);
  }
  return as_type<float>((268 - exponent) << 23);
}

[[kernel, max_total_threads_per_threadgroup(256)]] void linear_prologue_f16_held(PREFILL_OPERANDS) {
  threadgroup float partial[2 * kStreamSimdgroups];
  threadgroup float largest[kStreamSimdgroups];
  const ulong at = ulong(row) * p.stream.k;
  HeldQuads held;
  hold_quads<kStreamThreads>(x + at, residual + at, post_norm, scalar, pre_norm, p.stream, tid, held);
  held_u<kStreamThreads>(h_out + at, p.stream, p.stream.stores_h != 0, partial, tid, simdgroup, lane, held);
  float most = 0.0f;
  #pragma clang loop unroll(full)
  for (uint j = 0; j < kHeldQuads; j++) {
    most = largest_of(held.x[j], most);
  }
  const float factor = halves_factor(most, largest, row_scale, row, tid, simdgroup, lane);
  #pragma clang loop unroll(full)
  for (uint j = 0; j < kHeldQuads; j++) {
    const uint i = tid + j * kStreamThreads;
    if (i < p.columns / 4) {
      u[ulong(row) * (p.columns / 4) + i] = half4(held.x[j] * factor);
    }
  }
}

// x of up to 4 N kStreamThreads columns, in quads, as it is.
template <uint N>
[[kernel, max_total_threads_per_threadgroup(256)]] void linear_prologue_f16_plain(PREFILL_OPERANDS) {
  threadgroup float largest[kStreamSimdgroups];
  device const float4* quads = (device const float4*)(x + ulong(row) * p.stream.k);
  float4 v[N];
  #pragma clang loop unroll(full)
  for (uint j = 0; j < N; j++) {
    const uint i = tid + j * kStreamThreads;
    v[j] = 4 * i < p.stream.k ? quads[i] : float4(0.0f);
  }
  float most = 0.0f;
  #pragma clang loop unroll(full)
  for (uint j = 0; j < N; j++) {
    most = largest_of(v[j], most);
  }
  const float factor = halves_factor(most, largest, row_scale, row, tid, simdgroup, lane);
  #pragma clang loop unroll(full)
  for (uint j = 0; j < N; j++) {
    const uint i = tid + j * kStreamThreads;
    if (i < p.columns / 4) {
      u[ulong(row) * (p.columns / 4) + i] = half4(v[j] * factor);
    }
  }
}
INSTANTIATE(linear_prologue_f16_plain4, linear_prologue_f16_plain<kShortPlainColumns / (4 * kStreamThreads)>)
INSTANTIATE(linear_prologue_f16_plain12, linear_prologue_f16_plain<kLongPlainColumns / (4 * kStreamThreads)>)

[[kernel, max_total_threads_per_threadgroup(256)]] void linear_prologue_f16_long(PREFILL_OPERANDS) {
  threadgroup float partial[2 * kStreamSimdgroups];
  threadgroup float largest[kStreamSimdgroups];
  const ulong at = ulong(row) * p.stream.k;
  const StreamFactors f = stream_factors<kStreamThreads>(x + at, residual + at, post_norm, scalar, p.stream, partial, tid, simdgroup, lane);
  float most = 0.0f;
  for (uint i = tid; i < p.columns / 4; i += kStreamThreads) {
    most = largest_of(
        stream_u(x + at, residual + at, post_norm, h_out + at, pre_norm, p.stream, f, p.stream.stores_h != 0, i), most);
  }
  const float factor = halves_factor(most, largest, row_scale, row, tid, simdgroup, lane);
  for (uint i = tid; i < p.columns / 4; i += kStreamThreads) {
    const float4 v = stream_u(x + at, residual + at, post_norm, h_out + at, pre_norm, p.stream, f, false, i);
    u[ulong(row) * (p.columns / 4) + i] = half4(v * factor);
  }
}

// For decode rows on matrix units: u and its factors staged by 8 or 16 rows as tile_stream.h says; of rows that stage_held_row takes,
// and of any others.
#define TILE_PROLOGUE(name, stage) \
[[kernel, max_total_threads_per_threadgroup(512)]] void name( \
    STREAM_OPERANDS, \
    device uint* u                   [[buffer(6)]], \
    constant TilePrologueParams& p   [[buffer(7)]], \
    device float2* factors           [[buffer(8)]], \
    STREAM_INDICES) \
{ \
  threadgroup float partial[2 * kTileSimdgroups]; \
  const uint block = row / p.slots; \
  stage<1, 8>( \
      x, residual, post_norm, scalar, h_out, pre_norm, p.stream, row, p.rows, p.slots, p.bits, p.span, p.stream.stores_h != 0, \
      u + ulong(block) * p.stream.k * 8, factors + block * (p.stream.k / p.span) * p.slots, partial, tid, simdgroup, lane); \
}

TILE_PROLOGUE(linear_prologue_tile_held, stage_held_row)
TILE_PROLOGUE(linear_prologue_tile_long, stage_long_row)
