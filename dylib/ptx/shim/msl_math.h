// Metal's mathematical, integer and geometric functions. Floating-point ones are computed in float, component by component.
#pragma once
namespace metal {
#if defined(SM_PTX)
// No device library is linked: the few primitives are written out, to about 2 ulp.
SM_INLINE float sm_exp2(float x) { return __nvvm_ex2_approx_f(x); }
SM_INLINE float sm_exp(float x) {
  // To a whole number: 1.5 · 2^23 leaves no room for others.
  float n = __builtin_fmaf(x, 1.44269504f, 12582912.0f) - 12582912.0f;
  n = __nvvm_fmin_f(__nvvm_fmax_f(n, -126.0f), 127.0f);                 // 2^n is a normal number; r takes what is beyond
  float r = __builtin_fmaf(n, -0.693359375f, x);
  r = __builtin_fmaf(n, 2.12194440e-4f, r);
  return __nvvm_ex2_approx_ftz_f(r * 1.44269504f) * __nvvm_ex2_approx_ftz_f(n);
}
SM_INLINE float sm_log(float x) {
  if (!(x > 0.0f)) return x == 0.0f ? -__builtin_inff() : __builtin_nanf("");
  if (x == __builtin_inff()) return x;
  float e = 0.0f;
  if (x < 1.17549435e-38f) { x *= 8388608.0f; e = -23.0f; }
  uint u = __builtin_bit_cast(uint, x);
  int k = (int)((u - 0x3f3504f3u) >> 23);
  k = (k << 23) >> 23;                                             // sign-extend the 9-bit difference
  float m = __builtin_bit_cast(float, u - ((uint)k << 23));        // in [sqrt(1/2), sqrt 2)
  e += (float)k;
  float t = (m - 1.0f) / (m + 1.0f), z = t * t;
  float p = 0.22222222f;
  p = __builtin_fmaf(p, z, 0.28571429f);
  p = __builtin_fmaf(p, z, 0.4f);
  p = __builtin_fmaf(p, z, 0.66666667f);
  float r = __builtin_fmaf(t * z, p, 2.0f * t);
  return __builtin_fmaf(e, 0.693359375f, __builtin_fmaf(e, -2.12194440e-4f, r));
}
SM_INLINE float sm_log2(float x) { return sm_log(x) * 1.44269504f; }
SM_INLINE float sm_sqrt(float x) { return __nvvm_sqrt_rn_f(x); }
SM_INLINE float sm_rsqrt(float x) { return __nvvm_rsqrt_approx_f(x); }
// Range reduction in double keeps rope angles of any position exact.
SM_INLINE float sm_sincos(float x, int quadrant) {
  double n = __nvvm_floor_d((double)x * 0.63661977236758134308 + 0.5);
  float r = (float)__builtin_fma(n, -1.57079632679489661923, (double)x), z = r * r;
  int q = ((int)(long)n + quadrant) & 3;
  float s = __builtin_fmaf(__builtin_fmaf(__builtin_fmaf(-1.9515296e-4f, z, 8.3321609e-3f), z, -1.6666655e-1f) * z, r, r);
  float c = __builtin_fmaf(__builtin_fmaf(__builtin_fmaf(2.4433157e-5f, z, -1.3887316e-3f), z, 4.1666646e-2f), z * z,
                           __builtin_fmaf(-0.5f, z, 1.0f));
  float v = q & 1 ? c : s;
  return q & 2 ? -v : v;
}
SM_INLINE float sm_sin(float x) { return sm_sincos(x, 0); }
SM_INLINE float sm_cos(float x) { return sm_sincos(x, 1); }
// Both ways without a branch: lanes would mostly take both anyway.
SM_INLINE float sm_tanh(float x) {
  float a = __builtin_fabsf(x), z = x * x;
  float p = -5.70498872745e-3f;
  p = __builtin_fmaf(p, z, 2.06390887954e-2f);
  p = __builtin_fmaf(p, z, -5.37397155531e-2f);
  p = __builtin_fmaf(p, z, 1.33314422036e-1f);
  p = __builtin_fmaf(p, z, -3.33332819422e-1f);
  float t = 1.0f - 2.0f * __nvvm_rcp_approx_ftz_f(sm_exp(2.0f * a) + 1.0f);
  return a < 0.625f ? __builtin_fmaf(p * z, x, x) : __builtin_copysignf(t, x);
}
SM_INLINE float sm_pow(float x, float y) { return y == 0.0f ? 1.0f : sm_exp(y * sm_log(x)); }
SM_INLINE float sm_floor(float x) { return __nvvm_floor_f(x); }
SM_INLINE float sm_ceil(float x) { return __nvvm_ceil_f(x); }
SM_INLINE float sm_trunc(float x) { return __nvvm_trunc_f(x); }
SM_INLINE float sm_rint(float x) { return __nvvm_round_f(x); }     // to nearest even
SM_INLINE float sm_round(float x) { return __builtin_copysignf(__nvvm_floor_f(__builtin_fabsf(x) + 0.5f), x); }
// One instruction each; a comparison and a choice, with NaN in mind, are four.
SM_INLINE float sm_fmin(float x, float y) { return __nvvm_fmin_f(x, y); }
SM_INLINE float sm_fmax(float x, float y) { return __nvvm_fmax_f(x, y); }
#else
SM_INLINE float sm_exp2(float x) { return __builtin_exp2f(x); }
SM_INLINE float sm_exp(float x) { return __builtin_expf(x); }
SM_INLINE float sm_log(float x) { return __builtin_logf(x); }
SM_INLINE float sm_log2(float x) { return __builtin_log2f(x); }
SM_INLINE float sm_sqrt(float x) { return __builtin_sqrtf(x); }
SM_INLINE float sm_rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
SM_INLINE float sm_sin(float x) { return __builtin_sinf(x); }
SM_INLINE float sm_cos(float x) { return __builtin_cosf(x); }
SM_INLINE float sm_tanh(float x) { return __builtin_tanhf(x); }
SM_INLINE float sm_pow(float x, float y) { return __builtin_powf(x, y); }
SM_INLINE float sm_floor(float x) { return __builtin_floorf(x); }
SM_INLINE float sm_ceil(float x) { return __builtin_ceilf(x); }
SM_INLINE float sm_trunc(float x) { return __builtin_truncf(x); }
SM_INLINE float sm_rint(float x) { return __builtin_rintf(x); }
SM_INLINE float sm_round(float x) { return __builtin_roundf(x); }
SM_INLINE float sm_fmin(float x, float y) { return y < x || x != x ? y : x; }
SM_INLINE float sm_fmax(float x, float y) { return y > x || x != x ? y : x; }
#endif

template <class V, class F> SM_INLINE V sm_map(V x, F f) {
  typedef typename sm_type<V>::e E;
  if constexpr ((int)sm_type<V>::n == 1) return (V)f((float)x);
  else { V r = x; for (int i = 0; i < (int)sm_type<V>::n; i++) r[i] = (E)f((float)x[i]); return r; }
}
template <class V, class F> SM_INLINE V sm_map2(V x, V y, F f) {
  typedef typename sm_type<V>::e E;
  if constexpr ((int)sm_type<V>::n == 1) return (V)f((float)x, (float)y);
  else { V r = x; for (int i = 0; i < (int)sm_type<V>::n; i++) r[i] = (E)f((float)x[i], (float)y[i]); return r; }
}
// Integers keep their own type; bfloat has no elementwise builtins.
template <class V, class F> SM_INLINE V sm_each2(V x, V y, F f) {
  if constexpr ((int)sm_type<V>::n == 1) return f(x, y);
  else { V r = x; for (int i = 0; i < (int)sm_type<V>::n; i++) r[i] = f(x[i], y[i]); return r; }
}
template <class T> struct sm_is_float { enum { v = 0 }; };
template <> struct sm_is_float<float> { enum { v = 1 }; };
template <> struct sm_is_float<half> { enum { v = 1 }; };
template <> struct sm_is_float<sm_bfloat> { enum { v = 1 }; };
#define SM_FLOAT_ONLY(V, n) static_assert(sm_is_float<typename sm_type<V>::e>::v, n " takes floating-point arguments")

#define SM_UNARY(n) \
  template <class V> SM_INLINE V n(V x) { SM_FLOAT_ONLY(V, #n); return sm_map(x, [](float v) { return sm_##n(v); }); }
#define SM_UNARIES \
  SM_UNARY(exp) SM_UNARY(exp2) SM_UNARY(log) SM_UNARY(log2) SM_UNARY(sqrt) SM_UNARY(rsqrt) \
  SM_UNARY(sin) SM_UNARY(cos) SM_UNARY(tanh)
SM_UNARIES SM_UNARY(floor) SM_UNARY(ceil) SM_UNARY(trunc) SM_UNARY(rint) SM_UNARY(round)
namespace precise { SM_UNARIES }
namespace fast { SM_UNARIES }
#undef SM_UNARIES
#undef SM_UNARY
template <class V> SM_INLINE V pow(V x, V y) {
  SM_FLOAT_ONLY(V, "pow");
  return sm_map2(x, y, [](float a, float b) { return sm_pow(a, b); });
}
template <class V> SM_INLINE V powr(V x, V y) { return pow(x, y); }
template <class V> SM_INLINE V fract(V x) {
  SM_FLOAT_ONLY(V, "fract");
  return sm_map(x, [](float v) { return v - sm_floor(v); });
}
template <class V> SM_INLINE V sign(V x) {
  SM_FLOAT_ONLY(V, "sign");
  return sm_map(x, [](float v) { return v > 0.0f ? 1.0f : v < 0.0f ? -1.0f : 0.0f; });
}
template <class V> SM_INLINE V fabs(V x) {
  SM_FLOAT_ONLY(V, "fabs");
  return sm_map(x, [](float v) { return __builtin_fabsf(v); });
}
template <class V> SM_INLINE V fmin(V x, V y) {
  SM_FLOAT_ONLY(V, "fmin");
  return sm_map2(x, y, [](float a, float b) { return sm_fmin(a, b); });
}
template <class V> SM_INLINE V fmax(V x, V y) {
  SM_FLOAT_ONLY(V, "fmax");
  return sm_map2(x, y, [](float a, float b) { return sm_fmax(a, b); });
}
template <class V> SM_INLINE V copysign(V x, V y) {
  SM_FLOAT_ONLY(V, "copysign");
  return sm_map2(x, y, [](float a, float b) { return __builtin_copysignf(a, b); });
}
template <class V> SM_INLINE V fma(V a, V b, V c) {
  SM_FLOAT_ONLY(V, "fma");
  typedef typename sm_type<V>::e E;
  if constexpr ((int)sm_type<V>::n == 1) return (V)__builtin_fmaf((float)a, (float)b, (float)c);
  else {
    V r = a;
    for (int i = 0; i < (int)sm_type<V>::n; i++) r[i] = (E)__builtin_fmaf((float)a[i], (float)b[i], (float)c[i]);
    return r;
  }
}
template <class V> SM_INLINE V max(V x, V y) {
  if constexpr (sm_is_float<typename sm_type<V>::e>::v) return fmax(x, y);
  else return sm_each2(x, y, [](auto a, auto b) { return a < b ? b : a; });
}
template <class V> SM_INLINE V min(V x, V y) {
  if constexpr (sm_is_float<typename sm_type<V>::e>::v) return fmin(x, y);
  else return sm_each2(x, y, [](auto a, auto b) { return b < a ? b : a; });
}
template <class V> SM_INLINE V max3(V x, V y, V z) { return max(max(x, y), z); }
template <class V> SM_INLINE V min3(V x, V y, V z) { return min(min(x, y), z); }
template <class V> SM_INLINE V clamp(V x, V lo, V hi) { return min(max(x, lo), hi); }
template <class V> SM_INLINE V saturate(V x) {
  SM_FLOAT_ONLY(V, "saturate");
  return clamp(x, (V)(typename sm_type<V>::e)0, (V)(typename sm_type<V>::e)1);
}
template <class V> SM_INLINE V mix(V x, V y, V a) { SM_FLOAT_ONLY(V, "mix"); return x + (y - x) * a; }
template <class V> SM_INLINE V abs(V x) {
  if constexpr (sm_is_float<typename sm_type<V>::e>::v) return fabs(x);
  else return sm_each2(x, x, [](auto a, auto) { return a < 0 ? -a : a; });
}
template <class V, class C> SM_INLINE V select(V a, V b, C c) {
  if constexpr ((int)sm_type<C>::n == 1) return c ? b : a;
  else { V r = a; for (int i = 0; i < (int)sm_type<V>::n; i++) r[i] = c[i] ? b[i] : a[i]; return r; }
}
template <class T> SM_INLINE bool isnan(T x) { SM_FLOAT_ONLY(T, "isnan"); return __builtin_isnan((float)x); }
template <class T> SM_INLINE bool isinf(T x) { SM_FLOAT_ONLY(T, "isinf"); return __builtin_isinf((float)x); }
template <class T> SM_INLINE bool isfinite(T x) { SM_FLOAT_ONLY(T, "isfinite"); return __builtin_isfinite((float)x); }
template <class V> SM_INLINE bool any(V v) {
  bool r = false;
  for (int i = 0; i < (int)sm_type<V>::n; i++) r = r || v[i];
  return r;
}
template <class V> SM_INLINE bool all(V v) {
  bool r = true;
  for (int i = 0; i < (int)sm_type<V>::n; i++) r = r && v[i];
  return r;
}
template <class V> SM_INLINE typename sm_type<V>::e dot(V a, V b) {
  typename sm_type<V>::e s = a[0] * b[0];
  for (int i = 1; i < (int)sm_type<V>::n; i++) s += a[i] * b[i];
  return s;
}
template <class V> SM_INLINE typename sm_type<V>::e length_squared(V a) { return dot(a, a); }
template <class V> SM_INLINE typename sm_type<V>::e length(V a) { return sqrt(dot(a, a)); }

// ---- integers
template <class T> SM_INLINE T popcount(T x) { return (T)__builtin_popcountll((ulong)x & (~0ul >> (64 - 8 * sizeof(T)))); }
template <class T> SM_INLINE T clz(T x) {
  const int bits = 8 * (int)sizeof(T);
  return x == 0 ? (T)bits : (T)(__builtin_clzll((ulong)x & (~0ul >> (64 - bits))) - (64 - bits));
}
template <class T> SM_INLINE T ctz(T x) { return x == 0 ? (T)(8 * sizeof(T)) : (T)__builtin_ctzll((ulong)x); }
template <class T> SM_INLINE T extract_bits(T x, uint offset, uint bits) {
  return bits == 0 ? (T)0 : (T)(((T)(x << (8 * sizeof(T) - bits - offset))) >> (8 * sizeof(T) - bits));
}
template <class T> SM_INLINE T rotate(T x, T n) { T m = 8 * sizeof(T) - 1; return (T)((x << (n & m)) | (x >> (-n & m))); }
SM_INLINE uint mulhi(uint a, uint b) { return (uint)(((ulong)a * b) >> 32); }
SM_INLINE int mulhi(int a, int b) { return (int)(((long)a * b) >> 32); }
template <class T> SM_INLINE T absdiff(T a, T b) { return a < b ? (T)(b - a) : (T)(a - b); }
}  // namespace metal
