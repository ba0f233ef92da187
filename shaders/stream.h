// stream.h: the prologue of a linear op over one row, by a whole threadgroup of kStreamThreads threads. The matvec that
// fuses it and the kernel that does it apart call the same functions, so a row's bits are the same either way.
//   h = (residual + rms_norm(x, post_norm)) · scalar      u = rms_norm(h, pre_norm)
#ifndef MARKBASE_STREAM_H
#define MARKBASE_STREAM_H
#include "common.h"
#include "linear_params.h"

// The first six arguments of a kernel that begins a linear op: x, residual, h_out [rows, k]; norms [k]; scalar [1].
#define STREAM_OPERANDS \
    device const float* x [[buffer(0)]], device const float* residual [[buffer(1)]], \
    device const uchar* post_norm [[buffer(2)]], device const uchar* scalar [[buffer(3)]], \
    device float* h_out [[buffer(4)]], device const uchar* pre_norm [[buffer(5)]]

// And the last of one with a threadgroup a row.
#define STREAM_INDICES \
    uint row [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]], \
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]

constant constexpr uint kStreamThreads = 256;
constant constexpr uint kStreamSimdgroups = kStreamThreads / 32;
// Of a threadgroup for longer rows, on CUDA alone: of its kernels a core holds one instead of two, so that what all threadgroups read is
// read half as often. A pipeline of Metal may take fewer threads than its device.
constant constexpr uint kWideThreads = 512;

// Columns [4 i, 4 i + 4) of a row of k; those from k on are 0.
static inline float4 load_row4(device const float* row, uint i, uint k) {
  if (k % 4 == 0) {
    return 4 * i < k ? ((device const float4*)row)[i] : float4(0.0f);
  }
  float4 v = float4(0.0f);
  for (uint j = 0; j < 4; j++) {
    if (4 * i + j < k) {
      v[j] = row[4 * i + j];
    }
  }
  return v;
}

// The same of a weight vector [k].
static inline float4 load_vector4(device const uchar* data, uint32_t format, uint i, uint k) {
  if (4 * i + 4 <= k) {
    if (format == kF32) {
      return ((device const float4*)data)[i];
    }
    if (format == kF16) {
      return float4(((device const half4*)data)[i]);
    }
    const ushort4 v = ((device const ushort4*)data)[i];
    return float4(from_bf16(v.x), from_bf16(v.y), from_bf16(v.z), from_bf16(v.w));
  }
  float4 v = float4(0.0f);
  for (uint j = 0; j < 4; j++) {
    if (4 * i + j < k) {
      v[j] = load_scalar(data, format, 4 * i + j);
    }
  }
  return v;
}

static inline float sum_of_squares(float4 v, float sum) {
  return fma(v.w, v.w, fma(v.z, v.z, fma(v.y, v.y, fma(v.x, v.x, sum))));
}

// Four columns of h; `post` is the factor of the post-norm.
static inline float4 stream_h(
    device const float* x, device const float* residual, device const uchar* post_norm,
    constant StreamParams& s, float post, float scalar, uint i)
{
  // Products and sums are fused explicitly, so that no compiler fuses them in one kernel and not in another.
  float4 h = load_row4(x, i, s.k);
  const float4 base = s.has_residual != 0 ? load_row4(residual, i, s.k) : float4(0.0f);
  if (s.has_post != 0) {
    h = fma(h * post, load_vector4(post_norm, s.post_format, i, s.k), base);
  } else if (s.has_residual != 0) {
    h = base + h;
  }
  return h * scalar;
}

// What the columns of h are multiplied by besides the weights: the factors of the two norms, and the scalar.
struct StreamFactors {
  float post;
  float scalar;
  float pre;
};

// `partial` holds 2 · T / 32 floats. All T threads of the threadgroup call this.
template <uint T>
static inline StreamFactors stream_factors(
    device const float* x, device const float* residual, device const uchar* post_norm, device const uchar* scalar,
    constant StreamParams& s, threadgroup float* partial, uint tid, uint simdgroup, uint lane)
{
  StreamFactors f;
  f.post = 1.0f;
  f.pre = 1.0f;
  f.scalar = s.has_scalar != 0 ? load_scalar(scalar, s.scalar_format, 0) : 1.0f;
  const uint quads = (s.k + 3) / 4;
  if (s.has_post != 0) {
    float sum = 0.0f;
    for (uint i = tid; i < quads; i += T) {
      sum = sum_of_squares(load_row4(x, i, s.k), sum);
    }
    sum = threadgroup_sum(sum, partial, T / 32, simdgroup, lane);
    f.post = precise::rsqrt(sum / float(s.k) + s.eps);
  }
  if (s.has_pre != 0) {
    float sum = 0.0f;
    for (uint i = tid; i < quads; i += T) {
      sum = sum_of_squares(stream_h(x, residual, post_norm, s, f.post, f.scalar, i), sum);
    }
    sum = threadgroup_sum(sum, partial + T / 32, T / 32, simdgroup, lane);
    f.pre = precise::rsqrt(sum / float(s.k) + s.eps);
  }
  return f;
}

// Four columns of u; stores h where asked.
static inline float4 stream_u(
    device const float* x, device const float* residual, device const uchar* post_norm, device float* h_out,
    device const uchar* pre_norm, constant StreamParams& s, thread const StreamFactors& f, bool stores_h, uint i)
{
  float4 h = stream_h(x, residual, post_norm, s, f.post, f.scalar, i);
  if (stores_h) {
    if (s.k % 4 == 0) {
      if (4 * i < s.k) {
        ((device float4*)h_out)[i] = h;
      }
    } else {
      for (uint j = 0; j < 4; j++) {
        if (4 * i + j < s.k) {
          h_out[4 * i + j] = h[j];
        }
      }
    }
  }
  return s.has_pre != 0 ? h * f.pre * load_vector4(pre_norm, s.pre_format, i, s.k) : h;
}

// The same u without waiting for memory more than once: what a thread needs of a row of up to kHeldColumns columns is read at
// once and held in registers, kHeldQuads of a thread. Every value is computed as above and in that order, so its bits are the same.
template <uint T>
static inline bool stream_held(constant StreamParams& s) {
  return s.k <= 4 * kHeldQuads * T && s.k % 4 == 0 && (s.has_post == 0 || s.post_format != kF32) &&
         (s.has_pre == 0 || s.pre_format != kF32);
}

// Quads tid, tid + T, … of all that makes u. Norm weights, of 16 bits, and the scalar stay as they are stored: a
// conversion here would wait.
struct HeldQuads {
  float4 x[kHeldQuads];
  float4 residual[kHeldQuads];
  uint2 post[kHeldQuads];
  uint2 pre[kHeldQuads];
  uint scalar;
};

static inline float stored_half(uint bits, uint32_t format) {
  return format == kF16 ? float(as_type<half>(ushort(bits))) : as_type<float>(bits << 16);
}

static inline float4 stored4(uint2 v, uint32_t format) {
  return float4(
      stored_half(v.x & 0xffffu, format), stored_half(v.x >> 16, format),
      stored_half(v.y & 0xffffu, format), stored_half(v.y >> 16, format));
}

template <uint T>
static inline void hold_quads(
    device const float* x, device const float* residual, device const uchar* post_norm, device const uchar* scalar,
    device const uchar* pre_norm, constant StreamParams& s, uint tid, thread HeldQuads& held)
{
  uint at[kHeldQuads];
  #pragma clang loop unroll(full)
  for (uint j = 0; j < kHeldQuads; j++) {
    at[j] = min(tid + j * T, s.k / 4 - 1);
    held.x[j] = ((device const float4*)x)[at[j]];
    held.residual[j] = float4(0.0f);
    held.post[j] = uint2(0u, 0u);
    held.pre[j] = uint2(0u, 0u);
  }
  if (s.has_residual != 0) {
    #pragma clang loop unroll(full)
    for (uint j = 0; j < kHeldQuads; j++) {
      held.residual[j] = ((device const float4*)residual)[at[j]];
    }
  }
  if (s.has_post != 0) {
    #pragma clang loop unroll(full)
    for (uint j = 0; j < kHeldQuads; j++) {
      held.post[j] = ((device const uint2*)post_norm)[at[j]];
    }
  }
  if (s.has_pre != 0) {
    #pragma clang loop unroll(full)
    for (uint j = 0; j < kHeldQuads; j++) {
      held.pre[j] = ((device const uint2*)pre_norm)[at[j]];
    }
  }
  held.scalar = 0x3f800000u;
  if (s.has_scalar != 0) {
    if (s.scalar_format == kF32) {
      held.scalar = *(device const uint*)scalar;
    } else {
      held.scalar = *(device const ushort*)scalar;
    }
  }
}

// u of the held quads, into held.x; those from k on are 0. Stores h where asked. All threads of the threadgroup call this.
template <uint T>
static inline void held_u(
    device float* h_out, constant StreamParams& s, bool stores_h, threadgroup float* partial,
    uint tid, uint simdgroup, uint lane, thread HeldQuads& held)
{
  const uint quads = s.k / 4;
  const float scalar = s.has_scalar == 0 || s.scalar_format == kF32 ? as_type<float>(held.scalar)
                                                                    : stored_half(held.scalar, s.scalar_format);
  float post = 1.0f;
  if (s.has_post != 0) {
    float sum = 0.0f;
    #pragma clang loop unroll(full)
    for (uint j = 0; j < kHeldQuads; j++) {
      sum = tid + j * T < quads ? sum_of_squares(held.x[j], sum) : sum;
    }
    sum = threadgroup_sum(sum, partial, T / 32, simdgroup, lane);
    post = precise::rsqrt(sum / float(s.k) + s.eps);
  }
  #pragma clang loop unroll(full)
  for (uint j = 0; j < kHeldQuads; j++) {
    float4 h = held.x[j];
    if (s.has_post != 0) {
      h = fma(h * post, stored4(held.post[j], s.post_format), held.residual[j]);
    } else if (s.has_residual != 0) {
      h = held.residual[j] + h;
    }
    held.x[j] = tid + j * T < quads ? h * scalar : float4(0.0f);
  }
  if (stores_h) {
    #pragma clang loop unroll(full)
    for (uint j = 0; j < kHeldQuads; j++) {
      if (tid + j * T < quads) {
        ((device float4*)h_out)[tid + j * T] = held.x[j];
      }
    }
  }
  if (s.has_pre != 0) {
    float sum = 0.0f;
    #pragma clang loop unroll(full)
    for (uint j = 0; j < kHeldQuads; j++) {
      sum = tid + j * T < quads ? sum_of_squares(held.x[j], sum) : sum;
    }
    sum = threadgroup_sum(sum, partial + T / 32, T / 32, simdgroup, lane);
    const float pre = precise::rsqrt(sum / float(s.k) + s.eps);
    #pragma clang loop unroll(full)
    for (uint j = 0; j < kHeldQuads; j++) {
      held.x[j] = held.x[j] * pre * stored4(held.pre[j], s.pre_format);
    }
  }
}

// The same for longer rows, whose quads wait in threadgroup memory between the sums: quad tid + j · T at to[j · turn].
constant constexpr uint kKeptQuads = 6;  // of each operand on their way at once

static inline bool stream_kept(constant StreamParams& s) {
  return s.k % 4 == 0 && (s.has_post == 0 || s.post_format != kF32) && (s.has_pre == 0 || s.pre_format != kF32);
}

// h of the row to where its quads wait, and out where asked; returns the factor of the norm behind it. All threads of the threadgroup
// call this.
template <uint T>
static inline float keep_h(
    device const float* x, device const float* residual, device const uchar* post_norm, device const uchar* scalar,
    device float* h_out, constant StreamParams& s, bool stores_h, threadgroup float* partial, uint tid, uint simdgroup, uint lane,
    threadgroup float4* to, uint turn)
{
  const uint quads = s.k / 4;
  float post = 1.0f;
  float sum = 0.0f;
  for (uint j = 0; tid + j * T < quads; j += kKeptQuads) {
    float4 v[kKeptQuads];
    #pragma clang loop unroll(full)
    for (uint n = 0; n < kKeptQuads; n++) {
      v[n] = ((device const float4*)x)[min(tid + (j + n) * T, quads - 1)];
    }
    #pragma clang loop unroll(full)
    for (uint n = 0; n < kKeptQuads; n++) {
      if (tid + (j + n) * T < quads) {
        to[(j + n) * turn] = v[n];
        sum = sum_of_squares(v[n], sum);
      }
    }
  }
  if (s.has_post != 0) {
    sum = threadgroup_sum(sum, partial, T / 32, simdgroup, lane);
    post = precise::rsqrt(sum / float(s.k) + s.eps);
  }
  const float by = s.has_scalar != 0 ? load_scalar(scalar, s.scalar_format, 0) : 1.0f;
  sum = 0.0f;
  for (uint j = 0; tid + j * T < quads; j += kKeptQuads) {
    float4 base[kKeptQuads];
    uint2 norm[kKeptQuads];
    #pragma clang loop unroll(full)
    for (uint n = 0; n < kKeptQuads; n++) {
      const uint i = min(tid + (j + n) * T, quads - 1);
      base[n] = s.has_residual != 0 ? ((device const float4*)residual)[i] : float4(0.0f);
      norm[n] = s.has_post != 0 ? ((device const uint2*)post_norm)[i] : uint2(0u, 0u);
    }
    #pragma clang loop unroll(full)
    for (uint n = 0; n < kKeptQuads; n++) {
      const uint i = tid + (j + n) * T;
      if (i < quads) {
        float4 h = to[(j + n) * turn];
        if (s.has_post != 0) {
          h = fma(h * post, stored4(norm[n], s.post_format), base[n]);
        } else if (s.has_residual != 0) {
          h = base[n] + h;
        }
        h = h * by;
        to[(j + n) * turn] = h;
        sum = sum_of_squares(h, sum);
        if (stores_h) {
          ((device float4*)h_out)[i] = h;
        }
      }
    }
  }
  if (s.has_pre == 0) {
    return 1.0f;
  }
  sum = threadgroup_sum(sum, partial + T / 32, T / 32, simdgroup, lane);
  return precise::rsqrt(sum / float(s.k) + s.eps);
}

// Whether u is x as it is.
static inline bool stream_plain(constant StreamParams& s) {
  return s.has_residual == 0 && s.has_post == 0 && s.has_scalar == 0 && s.has_pre == 0 && s.stores_h == 0 && s.k % 4 == 0;
}

// Where the four columns i of u lie among the float4s of a row that lanes read by chunks of 1 << chunk_shift columns: the
// n-th quads of a block's 16 chunks are neighbours, so that lanes read neighbouring memory. `stride`: from the n-th quads of a
// block to the next, 16 or more.
static inline uint chunked_quad(uint i, uint chunk_shift, uint stride) {
  const uint quads = 1u << (chunk_shift - 2);
  const uint chunk = i / quads;
  return (chunk / 16 * quads + i % quads) * stride + chunk % 16;
}

// Sum of the columns of this lane's chunk, of which the lane brings four. All lanes of a simdgroup call this with quads
// that follow one another.
static inline float chunk_sum(float4 u, uint chunk_shift) {
  float sum = u.x + u.y + u.z + u.w;
  for (uint m = 1; m < 1u << (chunk_shift - 2); m *= 2) {
    sum += simd_shuffle_xor(sum, ushort(m));
  }
  return sum;
}

#endif
