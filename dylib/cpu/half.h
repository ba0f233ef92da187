// half.h: 16-bit floats as types of their own, and their conversion without special instructions.
// Everything is static: units compiled for different instruction sets must not share one copy.
#pragma once
#include <cstdint>
#include <cstring>

namespace mb {

struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};

static inline float float_from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

static inline uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}

static inline float to_float(float value) { return value; }

static inline float to_float(BF16 value) { return float_from_bits(static_cast<uint32_t>(value.bits) << 16); }

static inline float to_float(F16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000) << 16;
  const uint32_t magnitude = value.bits & 0x7fff;
  if (magnitude >= 0x7c00) return float_from_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  // The exponent is moved by a product, which is exact and makes subnormals right too.
  return float_from_bits(sign | bits_of(float_from_bits(magnitude << 13) * 0x1p112f));
}

// Round to nearest even; what lies beyond the largest f16 becomes that (a stored key or value must stay finite).
static inline F16 to_f16(float value) {
  const uint32_t bits = bits_of(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  float magnitude = float_from_bits(bits & 0x7fffffff);
  if (magnitude != magnitude) return F16{static_cast<uint16_t>(sign | 0x7e00)};
  if (magnitude > 65504.0f) magnitude = 65504.0f;
  if (magnitude < 0x1p-14f) {  // subnormal: the sum rounds at the last place that f16 has
    return F16{static_cast<uint16_t>(sign | (bits_of(magnitude + 0.5f) - bits_of(0.5f)))};
  }
  const uint32_t m = bits_of(magnitude);
  return F16{static_cast<uint16_t>(sign | ((m - 0x38000000 + 0xfff + (m >> 13 & 1)) >> 13))};
}

}  // namespace mb
