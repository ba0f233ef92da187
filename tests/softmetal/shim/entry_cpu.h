// Entry points for the software GPU: binds arguments by the kernel's own parameter types. Layouts: runtime/exec.hpp.
#pragma once
struct SmContext { void* const* buffers; void* const* threadgroup; uint values[11][4]; };
struct SmParamInfo { int kind, index, flags, size, align, condition; const char* name; };
struct SmKernel { const char* name; void (*entry)(SmContext*); const SmParamInfo* params; int maxThreads; uint constantMask; };
struct SmConstant { const char* name; int index; void* value; int size; bool* defined; };
#define SM_EXPORT extern "C" __attribute__((visibility("default")))

template <class F, int I> struct SmParam;
template <class A, class... R> struct SmParam<void (*)(A, R...), 0> { typedef A type; };
template <class A, class... R, int I> struct SmParam<void (*)(A, R...), I> : SmParam<void (*)(R...), I - 1> {};

template <class T> struct SmPointee { static constexpr int size = 0, align = 0; };
template <class T> struct SmPointee<T*> { static constexpr int size = sizeof(T), align = alignof(T); };
template <class T> struct SmPointee<T&> { static constexpr int size = sizeof(T), align = alignof(T); };

template <class T> struct SmTake {
  static T pointer(void*);
  static T value(const uint* p) {
    if constexpr ((int)metal::sm_type<T>::n == 1) return (T)p[0];
    else { T r; for (int i = 0; i < (int)metal::sm_type<T>::n; i++) r[i] = (typename metal::sm_type<T>::e)p[i]; return r; }
  }
};
template <class T> struct SmTake<T*> { static T* pointer(void* p) { return (T*)p; } static T* value(const uint*); };
template <class T> struct SmTake<T&> { static T& pointer(void* p) { return *(T*)p; } static T& value(const uint*); };
template <class T> SM_INLINE T sm_argument(SmContext* c, int kind, int index) {
  if constexpr (SmPointee<T>::size != 0) return SmTake<T>::pointer(kind == 0 ? c->buffers[index] : c->threadgroup[index]);
  else return SmTake<T>::value(c->values[index]);
}
// Older support libraries lack this conversion, and bfloat arithmetic calls it. Round to nearest even.
extern "C" __attribute__((weak, visibility("hidden"))) __bf16 __truncsfbf2(float f) {
  uint u = __builtin_bit_cast(uint, f);
  ushort h = (u & 0x7fffffffu) > 0x7f800000u ? (ushort)(u >> 16 | 0x40) : (ushort)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
  return __builtin_bit_cast(__bf16, h);
}
