// Metal's atomics: 32 bits, relaxed; float addition in device memory only.
#pragma once
namespace metal {
enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((uint)a | (uint)b); }
enum memory_order { memory_order_relaxed };

template <class T> struct atomic { T sm_value; };
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;

#define SM_VALUE(T) typename sm_identity<T>::t
// One set a writable address space. Orders that have no instruction of their own are compare-exchange loops.
#define SM_ATOMICS(AS, FLOATS)                                                                                        \
  template <class T> SM_INLINE T atomic_load_explicit(const AS atomic<T>* p, memory_order) {                          \
    uint u = __atomic_load_n((const AS uint*)&p->sm_value, 0);                                                        \
    return __builtin_bit_cast(T, u);                                                                                  \
  }                                                                                                                   \
  template <class T> SM_INLINE void atomic_store_explicit(AS atomic<T>* p, SM_VALUE(T) x, memory_order) {             \
    __atomic_store_n((AS uint*)&p->sm_value, __builtin_bit_cast(uint, x), 0);                                         \
  }                                                                                                                   \
  template <class T> SM_INLINE T atomic_exchange_explicit(AS atomic<T>* p, SM_VALUE(T) x, memory_order) {             \
    uint u = __atomic_exchange_n((AS uint*)&p->sm_value, __builtin_bit_cast(uint, x), 0);                             \
    return __builtin_bit_cast(T, u);                                                                                  \
  }                                                                                                                   \
  template <class T> SM_INLINE bool atomic_compare_exchange_weak_explicit(AS atomic<T>* p, T* e, SM_VALUE(T) x,       \
                                                                          memory_order, memory_order) {              \
    uint was = __builtin_bit_cast(uint, *e);                                                                          \
    bool ok = __atomic_compare_exchange_n((AS uint*)&p->sm_value, &was, __builtin_bit_cast(uint, x), false, 0, 0);    \
    *e = __builtin_bit_cast(T, was);                                                                                  \
    return ok;                                                                                                        \
  }                                                                                                                   \
  template <class T, class F> SM_INLINE T sm_update(AS atomic<T>* p, F f) {                                           \
    uint was = __atomic_load_n((AS uint*)&p->sm_value, 0);                                                            \
    while (!__atomic_compare_exchange_n((AS uint*)&p->sm_value, &was,                                                 \
                                        __builtin_bit_cast(uint, f(__builtin_bit_cast(T, was))), false, 0, 0)) {      \
    }                                                                                                                 \
    return __builtin_bit_cast(T, was);                                                                                \
  }                                                                                                                   \
  template <class T> SM_INLINE T atomic_fetch_add_explicit(AS atomic<T>* p, SM_VALUE(T) x, memory_order) {            \
    if constexpr (sm_same<T, float>::v) {                                                                             \
      static_assert(FLOATS || !sm_same<T, float>::v, "atomic float addition exists in device memory only");           \
      return sm_update(p, [x](T a) { return a + x; });                                                                \
    } else return __atomic_fetch_add(&p->sm_value, x, 0);                                                             \
  }                                                                                                                   \
  template <class T> SM_INLINE T atomic_fetch_sub_explicit(AS atomic<T>* p, SM_VALUE(T) x, memory_order o) {          \
    return atomic_fetch_add_explicit(p, (T)-x, o);                                                                    \
  }                                                                                                                   \
  template <class T> SM_INLINE T atomic_fetch_and_explicit(AS atomic<T>* p, SM_VALUE(T) x, memory_order) {            \
    return __atomic_fetch_and(&p->sm_value, x, 0);                                                                    \
  }                                                                                                                   \
  template <class T> SM_INLINE T atomic_fetch_or_explicit(AS atomic<T>* p, SM_VALUE(T) x, memory_order) {             \
    return __atomic_fetch_or(&p->sm_value, x, 0);                                                                     \
  }                                                                                                                   \
  template <class T> SM_INLINE T atomic_fetch_xor_explicit(AS atomic<T>* p, SM_VALUE(T) x, memory_order) {            \
    return __atomic_fetch_xor(&p->sm_value, x, 0);                                                                    \
  }                                                                                                                   \
  template <class T> SM_INLINE T atomic_fetch_max_explicit(AS atomic<T>* p, SM_VALUE(T) x, memory_order) {            \
    return sm_update(p, [x](T a) { return a < x ? x : a; });                                                          \
  }                                                                                                                   \
  template <class T> SM_INLINE T atomic_fetch_min_explicit(AS atomic<T>* p, SM_VALUE(T) x, memory_order) {            \
    return sm_update(p, [x](T a) { return x < a ? x : a; });                                                          \
  }
SM_ATOMICS(SM_DEVICE, true)
#if !defined(SM_CPU)
SM_ATOMICS(SM_THREADGROUP, false)
#endif
#undef SM_ATOMICS
#undef SM_VALUE
}  // namespace metal
