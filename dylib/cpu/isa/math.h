// math.h: exponential, tanh and GELU on vectors, to about one unit in the last place.
#pragma once

namespace mb {
namespace MB_ISA {

// e^x; x is clamped to [-87.3, 88.3], where results are normal numbers.
static inline vf exponential(vf x) {
  x = max(set1(-87.3f), min(set1(88.3f), x));
  const vf n = round(mul(x, set1(1.44269504f)));
  // x - n ln 2 in two steps: the first product is exact.
  vf r = fma(n, set1(-0.693359375f), x);
  r = fma(n, set1(2.12194440e-4f), r);
  vf p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = add(fma(p, mul(r, r), r), set1(1.0f));
  return mul(p, power_of_two(n));
}

// NaN stays NaN: min and max return their second operand then.
static inline vf hyperbolic_tangent(vf x) {
  const vf a = absolute(x);
  const vf z = mul(x, x);
  vf p = set1(-5.70498872745e-3f);
  p = fma(p, z, set1(2.06390887954e-2f));
  p = fma(p, z, set1(-5.37397155531e-2f));
  p = fma(p, z, set1(1.33314422036e-1f));
  p = fma(p, z, set1(-3.33332819422e-1f));
  const vf small = fma(mul(p, z), x, x);
  const vf e = exponential(mul(min(set1(20.0f), a), set1(2.0f)));
  const vf t = sub(set1(1.0f), div(set1(2.0f), add(e, set1(1.0f))));
  const vf large = select_less(x, zero(), sub(zero(), t), t);
  return select_less(a, set1(0.625f), small, large);
}

// x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), which is x / (1 + e^-2z). x is clamped before the cube, which
// would overflow; beyond +-20 the quotient is x or 0 to the last bit anyway.
static inline vf gelu_tanh(vf x) {
  const vf c = max(set1(-20.0f), min(set1(20.0f), x));
  const vf z = mul(c, fma(mul(c, c), set1(0.044715f * 0.7978845608f), set1(0.7978845608f)));
  return div(x, add(set1(1.0f), exponential(mul(z, set1(-2.0f)))));
}

}  // namespace MB_ISA
}  // namespace mb
