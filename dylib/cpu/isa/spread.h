// spread.h: codes of B bits, a little-endian bit stream, to one byte each.
#pragma once

namespace mb {
namespace MB_ISA {

// Eight codes fill B bytes, which a 64-bit lane holds; they are spread over its eight bytes by halving: four and four, two and
// two, one and one. Reads kLoadSlack bytes more than the codes have.
template <int B>
static inline vb spread_codes(const uint8_t *packed) {
  constexpr uint64_t one = (1ull << B) - 1, two = (1ull << 2 * B) - 1, four = (1ull << 4 * B) - 1;
  vb x = load_strided<B>(packed);
  const vb fours = set1_64(four);
  x = either(both(x, fours), shift_left64<32>(both(shift_right64<4 * B>(x), fours)));
  const vb twos = set1_64(two | two << 32);
  x = either(both(x, twos), shift_left64<16>(both(shift_right64<2 * B>(x), twos)));
  const vb ones = set1_64(one | one << 16 | one << 32 | one << 48);
  return either(both(x, ones), shift_left64<8>(both(shift_right64<B>(x), ones)));
}

}  // namespace MB_ISA
}  // namespace mb
