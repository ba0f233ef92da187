// Barriers and simdgroup functions on the software GPU: each lane is a fiber, and a collective operation waits for all.
#pragma once
extern "C" {
SM_CONVERGENT void sm_tg_barrier(uint flags);
SM_CONVERGENT void sm_sg_barrier(uint flags);
// Publishes this lane's value. Returns 1 in the lane that completes the group (it may fill the result slot).
// *slots: 33 slots of 32 bytes (the last is the result), *mask: lanes that take part, *lane: this one.
SM_CONVERGENT int sm_simd_arrive(const void* value, uint size, void** slots, uint* mask, uint* lane);
SM_CONVERGENT void sm_simd_finish(int last);
void sm_tg_register(const void* p, ulong size, const char* name);
// The one lane of each simdgroup that does the work of a matrix operation; the same for a whole kernel run.
__attribute__((const)) int sm_leader(void);
__attribute__((noreturn)) void sm_die(const char* what);
}
namespace metal {
SM_INLINE void threadgroup_barrier(mem_flags f) { sm_tg_barrier((uint)f); }
SM_INLINE void simdgroup_barrier(mem_flags f) { sm_sg_barrier((uint)f); }

struct sm_slot { alignas(16) uchar b[32]; };
template <class T> SM_INLINE T sm_read(const sm_slot* s) { T t; __builtin_memcpy(&t, s->b, sizeof t); return t; }

template <class T, class F> SM_INLINE T sm_reduce(T v, F f) {
  void* p; uint mask, lane;
  int last = sm_simd_arrive(&v, sizeof v, &p, &mask, &lane);
  sm_slot* s = (sm_slot*)p;
  if (last) {                                   // in tree order, as a butterfly would
    T a[32]; bool on[32];
    for (int i = 0; i < 32; i++) { on[i] = mask >> i & 1; a[i] = on[i] ? sm_read<T>(s + i) : v; }
    for (int d = 16; d > 0; d >>= 1)
      for (int i = 0; i < d; i++) {
        if (on[i] && on[i + d]) a[i] = f(a[i], a[i + d]);
        else if (on[i + d]) { a[i] = a[i + d]; on[i] = true; }
      }
    __builtin_memcpy(s[32].b, &a[0], sizeof(T));
  }
  sm_simd_finish(last);
  return sm_read<T>(s + 32);
}
template <class T> SM_INLINE T simd_sum(T v) { return sm_reduce(v, [](T a, T b) { return (T)(a + b); }); }
template <class T> SM_INLINE T simd_product(T v) { return sm_reduce(v, [](T a, T b) { return (T)(a * b); }); }
template <class T> SM_INLINE T simd_max(T v) { return sm_reduce(v, [](T a, T b) { return max(a, b); }); }
template <class T> SM_INLINE T simd_min(T v) { return sm_reduce(v, [](T a, T b) { return min(a, b); }); }
template <class T> SM_INLINE T simd_and(T v) { return sm_reduce(v, [](T a, T b) { return (T)(a & b); }); }
template <class T> SM_INLINE T simd_or(T v) { return sm_reduce(v, [](T a, T b) { return (T)(a | b); }); }
template <class T> SM_INLINE T simd_xor(T v) { return sm_reduce(v, [](T a, T b) { return (T)(a ^ b); }); }
SM_INLINE bool simd_any(bool v) { return simd_or((uint)v) != 0; }
SM_INLINE bool simd_all(bool v) { return simd_and((uint)v) != 0; }

// The value of another lane; its own where that lane does not exist (Metal leaves that open).
template <class T, class F> SM_INLINE T sm_exchange(T v, F from) {
  void* p; uint mask, lane;
  int last = sm_simd_arrive(&v, sizeof v, &p, &mask, &lane);
  sm_simd_finish(last);
  uint l = from(lane);
  return l < 32 && (mask >> l & 1) ? sm_read<T>((sm_slot*)p + l) : v;
}
template <class T> SM_INLINE T simd_shuffle(T v, ushort l) { return sm_exchange(v, [l](uint) { return (uint)l; }); }
template <class T> SM_INLINE T simd_broadcast(T v, ushort l) { return sm_exchange(v, [l](uint) { return (uint)l; }); }
template <class T> SM_INLINE T simd_broadcast_first(T v) { return sm_exchange(v, [](uint) { return 0u; }); }
template <class T> SM_INLINE T simd_shuffle_down(T v, ushort d) { return sm_exchange(v, [d](uint i) { return i + d; }); }
template <class T> SM_INLINE T simd_shuffle_up(T v, ushort d) { return sm_exchange(v, [d](uint i) { return i - d; }); }
template <class T> SM_INLINE T simd_shuffle_xor(T v, ushort m) { return sm_exchange(v, [m](uint i) { return i ^ m; }); }
template <class T> SM_INLINE T simd_shuffle_rotate_down(T v, ushort d) { return sm_exchange(v, [d](uint i) { return (i + d) & 31; }); }
template <class T> SM_INLINE T simd_shuffle_rotate_up(T v, ushort d) { return sm_exchange(v, [d](uint i) { return (i - d) & 31; }); }

template <class T> SM_INLINE T sm_scan(T v, bool inclusive) {
  void* p; uint mask, lane;
  int last = sm_simd_arrive(&v, sizeof v, &p, &mask, &lane);
  sm_simd_finish(last);
  T s = (T)0;
  for (uint i = 0; i < lane + (inclusive ? 1 : 0); i++) if (mask >> i & 1) s = (T)(s + sm_read<T>((sm_slot*)p + i));
  return s;
}
template <class T> SM_INLINE T simd_prefix_inclusive_sum(T v) { return sm_scan(v, true); }
template <class T> SM_INLINE T simd_prefix_exclusive_sum(T v) { return sm_scan(v, false); }
}  // namespace metal
