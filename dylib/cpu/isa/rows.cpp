// Kernels on rows of f32: norms, activations, rotation, softmax, the scans of the candidates.
// isa: scalar avx2 avx512 neon neon_dotprod
#include "../softmax.h"
#include "functions.h"

namespace mb {
namespace MB_ISA {

namespace {

// y[i] = f(a[i]) for i < n, vector by vector.
template <class F>
inline void map(float *y, int64_t n, const F &f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, f([i](const float *p) { return load(p + i); }));
  if (i < n) store_n(y + i, f([i, n](const float *p) { return load_n(p + i, n - i); }), n - i);
}

}  // namespace

float sum_of_squares(const float *x, int64_t n) {
  vf s[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int j = 0; j < 4; j++) {
      const vf v = load(x + i + j * kLanes);
      s[j] = fma(v, v, s[j]);
    }
  }
  for (; i < n; i += kLanes) {
    const vf v = load_n(x + i, n - i < kLanes ? n - i : kLanes);
    s[0] = fma(v, v, s[0]);
  }
  return reduce_add(add(add(s[0], s[1]), add(s[2], s[3])));
}

void scale_row(float *y, const float *x, float scale, const float *weight, int64_t n) {
  const vf s = set1(scale);
  if (weight) map(y, n, [&](auto at) { return mul(mul(at(x), s), at(weight)); });
  else map(y, n, [&](auto at) { return mul(at(x), s); });
}

void add_rows(float *y, const float *a, float a_scale, const float *b, float b_scale, float scalar, int64_t n) {
  const vf sa = set1(a_scale), sb = set1(b_scale), s = set1(scalar);
  if (b) map(y, n, [&](auto at) { return mul(fma(at(b), sb, mul(at(a), sa)), s); });
  else map(y, n, [&](auto at) { return mul(mul(at(a), sa), s); });
}

void gelu_mul(float *y, const float *a, const float *b, int64_t n) {
  map(y, n, [&](auto at) { return mul(gelu_tanh(at(a)), at(b)); });
}

void softcap(float *y, const float *x, float cap, int64_t n) {
  const vf c = set1(cap);
  map(y, n, [&](auto at) { return mul(c, hyperbolic_tangent(div(at(x), c))); });
}

// The clamp keeps the exponential finite; beyond it the quotient is x or 0 to the last bit.
static inline vf sigmoid_times(vf a, vf b) {
  return div(a, add(set1(1.0f), exponential(sub(zero(), max(set1(-80.0f), min(set1(80.0f), b))))));
}

void silu(float *y, const float *x, int64_t n) {
  map(y, n, [&](auto at) { return sigmoid_times(at(x), at(x)); });
}

void gate(float *y, const float *a, const float *b, int64_t n) {
  map(y, n, [&](auto at) { return sigmoid_times(at(a), at(b)); });
}

// NaN stays NaN: min and max return their second operand then.
void clamp_row(float *y, const float *x, float least, float largest, int64_t n) {
  const vf low = set1(least), high = set1(largest);
  map(y, n, [&](auto at) { return max(low, min(high, at(x))); });
}

float sum_row(const float *x, int64_t n) {
  vf s = zero();
  for (int64_t i = 0; i < n; i += kLanes) s = add(s, load_n(x + i, n - i < kLanes ? n - i : kLanes));
  return reduce_add(s);
}

void multiply_add(float *y, const float *x, const float *w, int64_t n) {
  map(y, n, [&](auto at) { return fma(at(x), at(w), at(y)); });
}

void rotate(float *y, const float *x, const float *cosines, const float *sines, int64_t d, int64_t pairs) {
  const int64_t half = d / 2;
  int64_t i = 0;
  for (; i < pairs; i += kLanes) {
    const int64_t n = pairs - i < kLanes ? pairs - i : kLanes;
    const vf c = load_n(cosines + i, n), s = load_n(sines + i, n);
    const vf a = load_n(x + i, n), b = load_n(x + half + i, n);
    store_n(y + i, sub(mul(a, c), mul(b, s)), n);
    store_n(y + half + i, add(mul(b, c), mul(a, s)), n);
  }
  if (y == x) return;
  for (i = pairs; i < half; i++) {
    y[i] = x[i];
    y[half + i] = x[half + i];
  }
  if (d % 2) y[d - 1] = x[d - 1];
}

void to_half(uint16_t *y, const float *x, int64_t n) {
  F16 *out = reinterpret_cast<F16 *>(y);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, load(x + i));
  if (i < n) store_n(out + i, load_n(x + i, n - i), n - i);
}

bool all_finite(const float *x, int64_t n) {
  uint32_t bad = 0;
  for (int64_t i = 0; i < n; i++) bad |= (bits_of(x[i]) & 0x7f800000) == 0x7f800000;
  return !bad;
}

// e^x for x of at most 0, as softmax_weight has it.
static inline vf weights(vf x) { return select_less(x, set1(kNegligible), zero(), exponential(x)); }

float softmax_block(float *p, float scale, int64_t n, float *largest) {
  const vf s = set1(scale);
  vf m = set1(-__builtin_inff());
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const vf v = mul(load(p + i), s);
    store(p + i, v);
    m = max(v, m);
  }
  float top = reduce_max(m);
  for (; i < n; i++) {
    p[i] *= scale;
    top = p[i] > top ? p[i] : top;
  }
  *largest = top;
  const vf t = set1(top);
  vf sum = zero();
  for (i = 0; i + kLanes <= n; i += kLanes) {
    const vf e = weights(sub(load(p + i), t));
    store(p + i, e);
    sum = add(sum, e);
  }
  if (i < n) {
    store_n(p + i, weights(sub(load_n(p + i, n - i), t)), n - i);
    sum = add(sum, load_n(p + i, n - i));
  }
  return reduce_add(sum);
}

void blend(float *y, float a, const float *x, float b, int64_t n) {
  const vf va = set1(a), vb = set1(b);
  map(y, n, [&](auto at) { return fma(at(x), vb, mul(at(y), va)); });
}

float block_maxima(const float *x, int64_t n, float *maxima) {
  const float lowest = -__builtin_inff();
  float top = lowest;
  for (int64_t first = 0; first < n; first += 64) {
    const int64_t last = first + 64 < n ? first + 64 : n;
    vf m = set1(lowest);
    int64_t i = first;
    for (; i + kLanes <= last; i += kLanes) m = max(load(x + i), m);
    float largest = reduce_max(m);
    for (; i < last; i++) largest = x[i] > largest ? x[i] : largest;
    maxima[first / 64] = largest;
    top = largest > top ? largest : top;
  }
  return top;
}

double sum_exp(const float *x, int64_t n, float largest, float scale) {
  const vf m = set1(largest), s = set1(scale);
  double total = 0;
  for (int64_t first = 0; first < n; first += 1024) {  // short f32 sums, added up in f64
    const int64_t last = first + 1024 < n ? first + 1024 : n;
    vf sum = zero();
    int64_t i = first;
    for (; i + kLanes <= last; i += kLanes) sum = add(sum, exponential(mul(sub(load(x + i), m), s)));
    total += reduce_add(sum);
    if (i < last) {
      float rest[kLanes];
      store(rest, exponential(mul(sub(load_n(x + i, last - i), m), s)));
      for (int64_t j = 0; j < last - i; j++) total += rest[j];
    }
  }
  return total;
}

}  // namespace MB_ISA
}  // namespace mb
