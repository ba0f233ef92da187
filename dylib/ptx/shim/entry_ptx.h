// Entry points for NVPTX. Each buffer is a pointer parameter, `constant T&` is the value itself, and a threadgroup argument
// is a byte offset into dynamic shared memory, in the order in which the kernel declares them.
#pragma once
extern __attribute__((address_space(3))) uint4 sm_dynamic[];

SM_INLINE uint sm_ntid(int d) {
  return d == 0 ? __nvvm_read_ptx_sreg_ntid_x() : d == 1 ? __nvvm_read_ptx_sreg_ntid_y() : __nvvm_read_ptx_sreg_ntid_z();
}
SM_INLINE uint sm_tid(int d) {
  return d == 0 ? __nvvm_read_ptx_sreg_tid_x() : d == 1 ? __nvvm_read_ptx_sreg_tid_y() : __nvvm_read_ptx_sreg_tid_z();
}
SM_INLINE uint sm_cta(int d) {
  return d == 0 ? __nvvm_read_ptx_sreg_ctaid_x() : d == 1 ? __nvvm_read_ptx_sreg_ctaid_y() : __nvvm_read_ptx_sreg_ctaid_z();
}
SM_INLINE uint sm_ncta(int d) {
  return d == 0 ? __nvvm_read_ptx_sreg_nctaid_x() : d == 1 ? __nvvm_read_ptx_sreg_nctaid_y() : __nvvm_read_ptx_sreg_nctaid_z();
}
SM_INLINE uint sm_linear() { return sm_tid(0) + sm_ntid(0) * (sm_tid(1) + sm_ntid(1) * sm_tid(2)); }
SM_INLINE uint sm_builtin(int b, int d) {
  switch (b) {
    case 0: return sm_cta(d) * sm_ntid(d) + sm_tid(d);
    case 1: return sm_tid(d);
    case 2: return sm_linear();
    case 3: return sm_cta(d);
    case 4: return sm_ntid(d);
    case 5: return sm_ncta(d) * sm_ntid(d);
    case 6: return sm_ncta(d);
    case 7: return sm_linear() & 31;
    case 8: return sm_linear() >> 5;
    case 9: return (sm_ntid(0) * sm_ntid(1) * sm_ntid(2) + 31) >> 5;
    default: return 32;
  }
}
template <class T> SM_INLINE T sm_builtin_value(int b) {
  if constexpr ((int)metal::sm_type<T>::n == 1) return (T)sm_builtin(b, 0);
  else {
    T r;
    for (int i = 0; i < (int)metal::sm_type<T>::n; i++) r[i] = (typename metal::sm_type<T>::e)sm_builtin(b, i);
    return r;
  }
}

template <class F, int I> struct SmParam;
template <class A, class... R> struct SmParam<void (*)(A, R...), 0> { typedef A type; };
template <class A, class... R, int I> struct SmParam<void (*)(A, R...), I> : SmParam<void (*)(R...), I - 1> {};

// The pointee of any address space, as global memory.
template <class T> struct SmGlobal { typedef SM_DEVICE T t; };
template <class T> struct SmGlobal<SM_DEVICE T> { typedef SM_DEVICE T t; };
template <class T> struct SmByPointer;
template <class T> struct SmByPointer<T*> {
  typedef typename SmGlobal<T>::t* type;
  static inline __attribute__((always_inline)) T* get(type p) { return (T*)p; }
};
template <class T> struct SmByPointer<T&> {
  typedef typename SmGlobal<T>::t* type;
  SM_INLINE T& get(type p) { return *(T*)p; }
};
template <class T> struct SmByValue;
template <class T> struct SmByValue<const T&> {
  typedef T type;
  SM_INLINE const T& get(const T& v) { return v; }
};
template <class T> struct SmOffset;
template <class T> struct SmOffset<T*> {
  typedef uint type;
  static inline __attribute__((always_inline)) T* get(uint offset) { return (T*)((SM_THREADGROUP uchar*)sm_dynamic + offset); }
};
