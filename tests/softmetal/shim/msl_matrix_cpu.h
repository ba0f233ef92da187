// simdgroup_matrix on the software GPU. Values are kept as float and rounded to T where Metal would.
//
// Fast mode: one lane of each simdgroup (sm_leader) holds the matrix and does the work; the others' objects stay empty.
// That is right for every program without races, and needs no fiber switch. Detect mode: each lane owns two elements and
// moves them itself, so that races, stray accesses and lanes that disagree about the arguments show.
#pragma once
namespace metal {
template <class T, int Cols, int Rows> struct simdgroup_matrix;
template <class T> struct simdgroup_matrix<T, 8, 8> {
#if defined(SM_DETECT)
  float sm_e[2];
#else
  float sm_e[64];
#endif
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diagonal);
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
#if __METAL_VERSION__ >= 310
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
#endif
template <class T> SM_INLINE float sm_round_to(float v) { return (float)(T)v; }

#if defined(SM_DETECT)
SM_INLINE uint sm_lane_now() {
  void* p; uint mask, lane, v = 0;
  int last = sm_simd_arrive(&v, sizeof v, &p, &mask, &lane);
  sm_simd_finish(last);
  if (mask != ~0u) sm_die("simdgroup_matrix operation in a simdgroup of fewer than 32 threads");
  return lane;
}
// This lane's index, after checking that all lanes pass the same arguments.
SM_INLINE uint sm_agree(const void* at, ulong row, ulong x, ulong y, bool transpose, const char* what) {
  struct A { const void* at; ulong row; uint x, y; } mine = {at, row, (uint)x * 2 + transpose, (uint)y};
  void* p; uint mask, lane;
  int last = sm_simd_arrive(&mine, sizeof mine, &p, &mask, &lane);
  sm_simd_finish(last);
  if (mask != ~0u) sm_die("simdgroup_matrix operation in a simdgroup of fewer than 32 threads");
  A first = sm_read<A>((sm_slot*)p);
  if (first.at != mine.at || first.row != mine.row || first.x != mine.x || first.y != mine.y) sm_die(what);
  return lane;
}
template <class T> simdgroup_matrix<T, 8, 8>::simdgroup_matrix(T d) {
  uint lane = sm_lane_now();
  for (uint j = 0; j < 2; j++) { uint i = 2 * lane + j; sm_e[j] = i / 8 == i % 8 ? (float)d : 0.0f; }
}
template <class T, int C, int R> SM_INLINE simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T v) {
  simdgroup_matrix<T, C, R> m; m.sm_e[0] = m.sm_e[1] = (float)v; return m;
}
#define SM_LOAD_BODY                                                                              \
  uint lane = sm_agree((const void*)(ulong)src, row, origin.x, origin.y, transpose, "simdgroup_load: lanes pass different arguments"); \
  for (uint j = 0; j < 2; j++) {                                                                   \
    ulong i = 2 * lane + j, r = i / 8, c = i % 8;                                                  \
    d.sm_e[j] = transpose ? (float)src[(c + origin.y) * row + r + origin.x] : (float)src[(r + origin.y) * row + c + origin.x]; \
  }
#define SM_STORE_BODY                                                                             \
  uint lane = sm_agree((const void*)(ulong)dst, row, origin.x, origin.y, transpose, "simdgroup_store: lanes pass different arguments"); \
  for (uint j = 0; j < 2; j++) {                                                                   \
    ulong i = 2 * lane + j, r = i / 8, c = i % 8;                                                  \
    dst[transpose ? (c + origin.y) * row + r + origin.x : (r + origin.y) * row + c + origin.x] = (T)a.sm_e[j]; \
  }
template <class D, class A, class B, class C>
SM_INLINE void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a,
                                             simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<C, 8, 8> c) {
  struct Piece { float a[2], b[2]; } mine = {{a.sm_e[0], a.sm_e[1]}, {b.sm_e[0], b.sm_e[1]}};
  void* p; uint mask, lane;
  int last = sm_simd_arrive(&mine, sizeof mine, &p, &mask, &lane);
  sm_simd_finish(last);
  if (mask != ~0u) sm_die("simdgroup_matrix operation in a simdgroup of fewer than 32 threads");
  for (uint j = 0; j < 2; j++) {
    uint r = (2 * lane + j) / 8, col = (2 * lane + j) % 8;
    float s = c.sm_e[j];
    for (uint k = 0; k < 8; k++) {
      uint ia = r * 8 + k, ib = k * 8 + col;
      float av = sm_read<Piece>((sm_slot*)p + ia / 2).a[ia % 2], bv = sm_read<Piece>((sm_slot*)p + ib / 2).b[ib % 2];
      s += av * bv;
    }
    d.sm_e[j] = sm_round_to<D>(s);
  }
}
#else
typedef float sm_row __attribute__((ext_vector_type(8), aligned(4)));
template <class T> simdgroup_matrix<T, 8, 8>::simdgroup_matrix(T d) {
  if (sm_leader()) for (int i = 0; i < 64; i++) sm_e[i] = i / 8 == i % 8 ? (float)d : 0.0f;
}
template <class T, int C, int R> SM_INLINE simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T v) {
  simdgroup_matrix<T, C, R> m;
  if (sm_leader()) for (int i = 0; i < 64; i++) m.sm_e[i] = (float)v;
  return m;
}
#define SM_LOAD_BODY                                                                              \
  if (!sm_leader()) return;                                                                        \
  for (ulong r = 0; r < 8; r++)                                                                    \
    for (ulong c = 0; c < 8; c++)                                                                  \
      d.sm_e[r * 8 + c] = transpose ? (float)src[(c + origin.y) * row + r + origin.x] : (float)src[(r + origin.y) * row + c + origin.x];
#define SM_STORE_BODY                                                                             \
  if (!sm_leader()) return;                                                                        \
  for (ulong r = 0; r < 8; r++)                                                                    \
    for (ulong c = 0; c < 8; c++)                                                                  \
      dst[transpose ? (c + origin.y) * row + r + origin.x : (r + origin.y) * row + c + origin.x] = (T)a.sm_e[r * 8 + c];
template <class D, class A, class B, class C>
SM_INLINE void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                             const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<C, 8, 8>& c) {
  if (!sm_leader()) return;
  sm_row rows[8], out[8];
  for (int k = 0; k < 8; k++) rows[k] = *(const sm_row*)(b.sm_e + 8 * k);
  for (int r = 0; r < 8; r++) {
    sm_row s = *(const sm_row*)(c.sm_e + 8 * r);
    for (int k = 0; k < 8; k++) s += a.sm_e[8 * r + k] * rows[k];
    out[r] = s;
  }
  for (int r = 0; r < 8; r++) *(sm_row*)(d.sm_e + 8 * r) = out[r];
  if (!sm_same<D, float>::v) for (int i = 0; i < 64; i++) d.sm_e[i] = sm_round_to<D>(d.sm_e[i]);
}
#endif

#define SM_MOVES(AS)                                                                                                 \
  template <class T> SM_INLINE void simdgroup_load(simdgroup_matrix<T, 8, 8>& d, const AS T* src, ulong row = 8,     \
                                                   ulong2 origin = (ulong2)0, bool transpose = false) { SM_LOAD_BODY } \
  template <class T> SM_INLINE void simdgroup_store(simdgroup_matrix<T, 8, 8> a, AS T* dst, ulong row = 8,           \
                                                    ulong2 origin = (ulong2)0, bool transpose = false) { SM_STORE_BODY }
SM_MOVES(SM_DEVICE)
#if !defined(SM_CPU)
SM_MOVES(SM_THREADGROUP)
#endif
#undef SM_MOVES
#undef SM_LOAD_BODY
#undef SM_STORE_BODY
}  // namespace metal
