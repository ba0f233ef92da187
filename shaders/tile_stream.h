// tile_stream.h: the prologue of a linear op (stream.h) for decode rows whose products tile_mma makes, by a whole threadgroup. It makes
// V rows at once, with kTileThreads / V threads each: one row as fast as can be, or several in about the time of one. A sum over
// a row is that of kTileThreads threads' in either case, of which a thread then stands for V; so what a row becomes is the same.
//
// A column u becomes a half: f16(u · s), where s is a power of two that brings the largest column of the row's span to 2^14 … 2^15.
//
// Rows are staged together, R ≤ 8 of them or 8 and 8 more: for each span two pairs of a quarter after two, of each two the rows one
// after another, of a row its four lanes' pairs: one of row r and one of row r + 8, then the next of both, zero where there is no
// such row. That is how tile_mma_pair takes them. Beside them for each span and row a float2: 1 / s, with the unit of the codes in
// it, and the sum of the span's columns, which the affine biases multiply.
#ifndef MARKBASE_TILE_STREAM_H
#define MARKBASE_TILE_STREAM_H
#include "stream.h"
#include "tile_codes.h"

constant constexpr uint kTileThreads = 512;
constant constexpr uint kTileSimdgroups = kTileThreads / 32;
// Quads of a row that a thread holds, of one row or of one of V.
static constexpr uint held_quads(uint V) {
  return (V == 1 ? kTileHeldColumns : kTileOwnColumns) * V / (4 * kTileThreads);
}

// Sum over a row: values[v] is what thread v · kTileThreads / V + tid of kTileThreads would bring. `partial` holds kTileSimdgroups
// floats for each of V rows, which nobody may use again before the next barrier.
template <uint V>
static inline float tile_sum(const thread float* values, threadgroup float* partial, uint simdgroup, uint lane) {
  constexpr uint simdgroups = kTileSimdgroups / V;  // of a row
  threadgroup float* of_row = partial + simdgroup / simdgroups * kTileSimdgroups;
  #pragma clang loop unroll(full)
  for (uint v = 0; v < V; v++) {
    const float sum = simd_sum(values[v]);
    if (lane == 0) {
      of_row[v * simdgroups + simdgroup % simdgroups] = sum;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = of_row[lane % kTileSimdgroups];
  #pragma clang loop unroll(full)
  for (uint m = kTileSimdgroups / 2; m > 0; m /= 2) {
    total += simd_shuffle_xor(total, ushort(m));
  }
  return total;
}

static inline uint pair_of(half low, half high) {
  return uint(as_type<ushort>(low)) | uint(as_type<ushort>(high)) << 16;
}

// Two pairs of a thread that has columns v of its lane's quarter; where the second column of a pair is 4 or 8 further, the threads
// of both give each other the half of their columns that they need not.
static inline uint2 pairs_of(half4 v, uint stride, uint q) {
  if (stride == 1) {
    return uint2(pair_of(v.x, v.y), pair_of(v.z, v.w));
  }
  if (stride == 2) {
    return uint2(pair_of(v.x, v.z), pair_of(v.y, v.w));
  }
  const uint front = pair_of(v.x, v.y);
  const uint back = pair_of(v.z, v.w);
  const bool second = (q & stride / 4) != 0;
  const uint got = simd_shuffle_xor(second ? front : back, ushort(stride / 4));
  const uint low = second ? got : front;
  const uint high = second ? back : got;
  return uint2((low & 0xffffu) | high << 16, low >> 16 | (high & 0xffff0000u));
}

// The exponent of a span's scale, of the largest of its columns; the scale, and what of it a sum is multiplied by.
static inline uint span_exponent(float most) { return clamp(as_type<uint>(most) >> 23, 40u, 220u); }
static inline float span_scale(uint exponent) { return as_type<float>((268 - exponent) << 23); }
static inline float span_factor(uint exponent) { return as_type<float>((exponent - 14 + kPairUnit) << 23); }

// Columns 4 i … 4 i + 3 of the row in slot `slot` of `slots` to their place; R: the slots, or 8 of 16. `partner`: the slot 8 before
// or behind has a row. All lanes of a simdgroup call this with quads that follow one another, and with 0 where `stores` is false.
template <uint R, typename Words, typename Factors>
static inline void stage_tile_quad(
    float4 u, uint i, uint slot, uint slots, bool partner, uint bits, uint span, bool stores, Words words, Factors factors)
{
  const uint quads = span / 4;  // of a span
  const uint each = span / 16;  // of a lane's quarter
  float sum = u.x + u.y + u.z + u.w;
  const float4 size = fabs(u);
  float most = max(max(size.x, size.y), max(size.z, size.w));
  #pragma clang loop unroll(full)
  for (uint m = 1; m < 16; m *= 2) {
    if (m < quads) {
      sum += simd_shuffle_xor(sum, ushort(m));
      most = max(most, simd_shuffle_xor(most, ushort(m)));
    }
  }
  const uint exponent = span_exponent(most);
  const float4 v = u * (pair_factors(bits, i % each) * span_scale(exponent));
  const uint stride = pair_stride(bits);
  const uint2 pairs = pairs_of(half4(v), stride, i);
  if (!stores) {
    return;
  }
  const uint q = i % each;
  const uint place = stride == 8 ? (q & 1) * 2 + q / 2 : q;  // which two of the lane's pairs
  Words to = words + (((i / quads * each + place) * R + slot % R) * 4 + i % quads / each) * 4 + slot / 8;
  to[0] = pairs.x;
  to[2] = pairs.y;
  if (!partner) {
    to[1] = 0u;
    to[3] = 0u;
  }
  if (i % quads == 0) {
    factors[i / quads * slots + slot] = float2(span_factor(exponent), sum);
  }
}

// u of row `row` of `rows`, staged as one of `slots`, by the threads that name the row; one beyond the last is made of the last and
// goes nowhere. Stores h where asked. `partial` holds 2 · V · kTileSimdgroups floats. All threads of the threadgroup call this.
// Of a row that threads hold: whole quads, held_quads(V) of a thread at most, and norms of 16 bits.
template <uint V, uint R, typename Words, typename Factors>
static inline void stage_held_row(
    device const float* all_x, device const float* all_residual, device const uchar* post_norm, device const uchar* scalar,
    device float* all_h, device const uchar* pre_norm, constant StreamParams& s, uint row, uint rows, uint slots, uint bits,
    uint span, bool stores_h, Words words, Factors factors, threadgroup float* partial, uint threadgroup_tid, uint simdgroup,
    uint lane)
{
  constexpr uint n = held_quads(V);
  constexpr uint threads = kTileThreads / V;
  const uint tid = threadgroup_tid % threads;
  const uint quads = s.k / 4;
  const ulong at = ulong(min(row, rows - 1)) * s.k;
  device const float* x = all_x + at;
  device const float* residual = all_residual + at;
  device float* h_out = all_h + at;
  const bool stores = row < rows;
  const uint slot = row % slots;
  const bool partner = slot >= 8 || (slots > 8 && row + 8 < rows);
  float sums[V];

  // All that a thread needs is read at once and held in registers.
  float4 held[n];
  float4 base[n];
  uint2 post[n];
  uint2 pre[n];
  uint index[n];
  #pragma clang loop unroll(full)
  for (uint j = 0; j < n; j++) {
    index[j] = min(tid + j * threads, quads - 1);
    held[j] = ((device const float4*)x)[index[j]];
    base[j] = float4(0.0f);
    post[j] = uint2(0u, 0u);
    pre[j] = uint2(0u, 0u);
  }
  if (s.has_residual != 0) {
    #pragma clang loop unroll(full)
    for (uint j = 0; j < n; j++) {
      base[j] = ((device const float4*)residual)[index[j]];
    }
  }
  if (s.has_post != 0) {
    #pragma clang loop unroll(full)
    for (uint j = 0; j < n; j++) {
      post[j] = ((device const uint2*)post_norm)[index[j]];
    }
  }
  if (s.has_pre != 0) {
    #pragma clang loop unroll(full)
    for (uint j = 0; j < n; j++) {
      pre[j] = ((device const uint2*)pre_norm)[index[j]];
    }
  }
  const float factor = s.has_scalar != 0 ? load_scalar(scalar, s.scalar_format, 0) : 1.0f;
  float scale = 1.0f;
  if (s.has_post != 0) {
    #pragma clang loop unroll(full)
    for (uint j = 0; j < n; j++) {
      const float sum = j < V ? 0.0f : sums[j % V];
      sums[j % V] = tid + j * threads < quads ? sum_of_squares(held[j], sum) : sum;
    }
    scale = precise::rsqrt(tile_sum<V>(sums, partial, simdgroup, lane) / float(s.k) + s.eps);
  }
  #pragma clang loop unroll(full)
  for (uint j = 0; j < n; j++) {
    float4 h = held[j];
    if (s.has_post != 0) {
      h = fma(h * scale, stored4(post[j], s.post_format), base[j]);
    } else if (s.has_residual != 0) {
      h = base[j] + h;
    }
    h = tid + j * threads < quads ? h * factor : float4(0.0f);
    held[j] = h;
    sums[j % V] = sum_of_squares(h, j < V ? 0.0f : sums[j % V]);
    if (stores_h && tid + j * threads < quads && stores) {
      ((device float4*)h_out)[tid + j * threads] = h;
    }
  }
  scale = 1.0f;
  if (s.has_pre != 0) {
    scale = precise::rsqrt(tile_sum<V>(sums, partial + V * kTileSimdgroups, simdgroup, lane) / float(s.k) + s.eps);
  }
  #pragma clang loop unroll(full)
  for (uint j = 0; j < n; j++) {
    const uint i = tid + j * threads;
    float4 u = held[j];
    if (s.has_pre != 0) {
      u = u * scale * stored4(pre[j], s.pre_format);
    }
    if (i - lane < quads) {
      stage_tile_quad<R>(u, i, slot, slots, partner, bits, span, i < quads && stores, words, factors);
    }
  }
}

// Of any other.
template <uint V, uint R, typename Words, typename Factors>
static inline void stage_long_row(
    device const float* all_x, device const float* all_residual, device const uchar* post_norm, device const uchar* scalar,
    device float* all_h, device const uchar* pre_norm, constant StreamParams& s, uint row, uint rows, uint slots, uint bits,
    uint span, bool stores_h, Words words, Factors factors, threadgroup float* partial, uint threadgroup_tid, uint simdgroup,
    uint lane)
{
  constexpr uint n = held_quads(V);
  constexpr uint threads = kTileThreads / V;
  const uint tid = threadgroup_tid % threads;
  const uint quads = s.k / 4;
  const ulong at = ulong(min(row, rows - 1)) * s.k;
  device const float* x = all_x + at;
  device const float* residual = all_residual + at;
  device float* h_out = all_h + at;
  const bool stores = row < rows;
  const uint slot = row % slots;
  const bool partner = slot >= 8 || (slots > 8 && row + 8 < rows);
  float sums[V];
  StreamFactors f;
  f.post = 1.0f;
  f.pre = 1.0f;
  f.scalar = s.has_scalar != 0 ? load_scalar(scalar, s.scalar_format, 0) : 1.0f;
  if (s.has_post != 0) {
    #pragma clang loop unroll(full)
    for (uint v = 0; v < V; v++) {
      sums[v] = 0.0f;
      for (uint i = tid + v * threads; i < quads; i += kTileThreads) {
        sums[v] = sum_of_squares(load_row4(x, i, s.k), sums[v]);
      }
    }
    f.post = precise::rsqrt(tile_sum<V>(sums, partial, simdgroup, lane) / float(s.k) + s.eps);
  }
  if (s.has_pre != 0) {
    #pragma clang loop unroll(full)
    for (uint v = 0; v < V; v++) {
      sums[v] = 0.0f;
      #pragma clang loop unroll(disable)
      for (uint i = tid + v * threads; i < quads; i += kTileThreads) {
        sums[v] = sum_of_squares(stream_h(x, residual, post_norm, s, f.post, f.scalar, i), sums[v]);
      }
    }
    f.pre = precise::rsqrt(
        tile_sum<V>(sums, partial + V * kTileSimdgroups, simdgroup, lane) / float(s.k) + s.eps);
  }
  const bool plain = stream_plain(s);
  #pragma clang loop unroll(disable)
  for (uint start = tid - lane; !plain && start < quads; start += threads) {
    const uint i = start + lane;
    float4 u = float4(0.0f);
    if (stores && i < quads) {
      u = stream_u(x, residual, post_norm, h_out, pre_norm, s, f, stores_h, i);
    }
    stage_tile_quad<R>(u, i, slot, slots, partner, bits, span, stores && i < quads, words, factors);
  }
  for (uint start = tid - lane; plain && start < quads; start += n * threads) {
    float4 u[n];
    #pragma clang loop unroll(full)
    for (uint j = 0; j < n; j++) {
      const uint i = start + lane + j * threads;
      u[j] = i < quads ? ((device const float4*)x)[i] : float4(0.0f);
    }
    #pragma clang loop unroll(full)
    for (uint j = 0; j < n; j++) {
      const uint i = start + lane + j * threads;
      if (i - lane < quads) {
        stage_tile_quad<R>(u[j], i, slot, slots, partner, bits, span, stores && i < quads, words, factors);
      }
    }
  }
}

#endif
