// simdgroup_matrix on NVPTX. A lane holds row lane/4, columns 2·(lane%4) and the next: the accumulator layout of mma.m16n8k8,
// which is the layout of its A operand too; B is the transpose of that layout: of a matrix that was loaded
// transposed the lane has it already, of others movmatrix makes it.
#pragma once
namespace metal {
template <class T, int Cols, int Rows> struct simdgroup_matrix;
template <class T> struct simdgroup_matrix<T, 8, 8> {
  T sm_e[2];
  bool sm_transpose = false;   // sm_e is of the transpose: how a 16-bit matrix that was loaded transposed is kept
  simdgroup_matrix() = default;
  explicit __attribute__((always_inline)) simdgroup_matrix(T d) {
    int r = sm_lane() / 4, c = sm_lane() % 4 * 2;
    sm_e[0] = r == c ? d : (T)0.0f;
    sm_e[1] = r == c + 1 ? d : (T)0.0f;
  }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
#if __METAL_VERSION__ >= 310
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
#endif
template <class T, int C, int R> SM_INLINE simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T v) {
  simdgroup_matrix<T, C, R> m;
  m.sm_e[0] = m.sm_e[1] = v;
  return m;
}
SM_INLINE uint sm_transposed(uint pair) {
  uint r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(pair));
  return r;
}
// A lane's pair of a 16-bit matrix, or of its transpose.
template <class T> SM_INLINE uint sm_pair(const simdgroup_matrix<T, 8, 8>& m, bool transpose) {
  uint pair = __builtin_bit_cast(uint, m.sm_e);
  return m.sm_transpose == transpose ? pair : sm_transposed(pair);
}
// 16-bit elements move in pairs, so that rows must begin at 4 bytes.
#define SM_MOVES(AS)                                                                                              \
  template <class T> SM_INLINE void simdgroup_load(simdgroup_matrix<T, 8, 8>& d, const AS T* src, ulong row = 8,  \
                                                   ulong2 origin = (ulong2)0, bool transpose = false) {           \
    typedef T sm_two __attribute__((ext_vector_type(2)));                                                           \
    uint r = sm_lane() / 4, c = sm_lane() % 4 * 2;                                                                \
    src += origin.y * row + origin.x;                                                                             \
    if constexpr (sizeof(T) == 2) {                                                                               \
      sm_two pair = *(const AS sm_two*)(src + r * row + c);                                                           \
      d.sm_e[0] = pair.x;                                                                                         \
      d.sm_e[1] = pair.y;                                                                                         \
      d.sm_transpose = transpose;                                                                                 \
    } else {                                                                                                      \
      d.sm_e[0] = transpose ? src[c * row + r] : src[r * row + c];                                                \
      d.sm_e[1] = transpose ? src[(c + 1) * row + r] : src[r * row + c + 1];                                      \
    }                                                                                                             \
  }                                                                                                               \
  template <class T> SM_INLINE void simdgroup_store(simdgroup_matrix<T, 8, 8> a, AS T* dst, ulong row = 8,        \
                                                    ulong2 origin = (ulong2)0, bool transpose = false) {          \
    typedef T sm_two __attribute__((ext_vector_type(2)));                                                           \
    uint r = sm_lane() / 4, c = sm_lane() % 4 * 2;                                                                \
    dst += origin.y * row + origin.x;                                                                             \
    if constexpr (sizeof(T) == 2) {                                                                               \
      *(AS sm_two*)(dst + r * row + c) = __builtin_bit_cast(sm_two, sm_pair(a, transpose));                           \
    } else {                                                                                                      \
      dst[transpose ? c * row + r : r * row + c] = a.sm_e[0];                                                     \
      dst[transpose ? (c + 1) * row + r : r * row + c + 1] = a.sm_e[1];                                           \
    }                                                                                                             \
  }
SM_MOVES(SM_DEVICE)
SM_MOVES(SM_THREADGROUP)
#undef SM_MOVES

// Four matrices of a tile (shaders/common.h), of 16 bits in one instruction; rows begin at 16 bytes.
template <class T> SM_INLINE void tile_load_four(simdgroup_matrix<T, 8, 8>* to, const SM_THREADGROUP T* at, uint first,
                                                 uint second, uint stride, bool transposed) {
  if constexpr (sizeof(T) == 2) {
    uint lane = sm_lane(), r[4];
    const SM_THREADGROUP T* row = at + (lane >> 3 & 1) * first + (lane >> 4) * second + (lane & 7) * stride;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((uint)(unsigned long)row) : "memory");
    for (int i = 0; i < 4; i++) {
      __builtin_memcpy(to[i].sm_e, &r[i], 4);
      to[i].sm_transpose = transposed;
    }
  } else {
    for (uint i = 0; i < 4; i++) simdgroup_load(to[i], at + i % 2 * first + i / 2 * second, stride, (ulong2)0, transposed);
  }
}

SM_INLINE void sm_mma(float* d, uint a0, uint a1, uint b, half) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(b));
}
SM_INLINE void sm_mma(float* d, uint a0, uint a1, uint b, sm_bfloat) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(b));
}
// acc[i] += a[i] · b for a column of two 8×8 tiles: one m16n8k8. Exact f32 operands take fused multiply-adds instead.
template <class T> SM_INLINE void tile_mma(simdgroup_matrix<float, 8, 8>* acc, const simdgroup_matrix<T, 8, 8>* a,
                                           const simdgroup_matrix<T, 8, 8>& b) {
  if constexpr (sizeof(T) == 2) {
    float d[4] = {acc[0].sm_e[0], acc[0].sm_e[1], acc[1].sm_e[0], acc[1].sm_e[1]};
    sm_mma(d, sm_pair(a[0], false), sm_pair(a[1], false), sm_pair(b, true), T());
    acc[0].sm_e[0] = d[0]; acc[0].sm_e[1] = d[1]; acc[1].sm_e[0] = d[2]; acc[1].sm_e[1] = d[3];
  } else {
    ushort row = (ushort)(sm_lane() & ~3), column = (ushort)(sm_lane() & 3);
    for (int k = 0; k < 8; k++) {
      ushort from = (ushort)(row + k / 2);
      T a0 = simd_shuffle(a[0].sm_e[k & 1], from), a1 = simd_shuffle(a[1].sm_e[k & 1], from);
      for (int j = 0; j < 2; j++) {
        T v = simd_shuffle(b.sm_e[j], (ushort)(k * 4 + column));
        acc[0].sm_e[j] = __builtin_fmaf(a0, v, acc[0].sm_e[j]);
        acc[1].sm_e[j] = __builtin_fmaf(a1, v, acc[1].sm_e[j]);
      }
    }
  }
}
// acc[i] += a[i] · b[0] + a[2 + i] · b[1]: one m16n8k16.
template <class T> SM_INLINE void tile_mma_pair(simdgroup_matrix<float, 8, 8>* acc, const simdgroup_matrix<T, 8, 8>* a,
                                                const simdgroup_matrix<T, 8, 8>* b) {
  if constexpr (sizeof(T) == 2) {
    float d[4] = {acc[0].sm_e[0], acc[0].sm_e[1], acc[1].sm_e[0], acc[1].sm_e[1]};
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(sm_pair(a[0], false)), "r"(sm_pair(a[1], false)), "r"(sm_pair(a[2], false)), "r"(sm_pair(a[3], false)),
          "r"(sm_pair(b[0], true)), "r"(sm_pair(b[1], true)));
    acc[0].sm_e[0] = d[0]; acc[0].sm_e[1] = d[1]; acc[1].sm_e[0] = d[2]; acc[1].sm_e[1] = d[3];
  } else {
    tile_mma(acc, a, b[0]);
    tile_mma(acc, a + 2, b[1]);
  }
}
// What a lane brings to matrices and takes of them (shaders/common.h) is what it holds.
constexpr uint kTileScratch = 0;
template <uint N> SM_INLINE void tiles_of_lanes(const uint* v, bool transposed, SM_THREADGROUP float*, uint,
                                                simdgroup_matrix<half, 8, 8>* to) {
  for (uint i = 0; i < N; i++) {
    __builtin_memcpy(to[i].sm_e, &v[i], 4);
    to[i].sm_transpose = transposed;
  }
}
template <uint N> SM_INLINE void lanes_of_tiles(const simdgroup_matrix<float, 8, 8>* from, SM_THREADGROUP float*, uint,
                                                float2* v) {
  for (uint i = 0; i < N; i++) {
    v[i].x = from[i].sm_e[0];
    v[i].y = from[i].sm_e[1];
  }
}
}  // namespace metal
