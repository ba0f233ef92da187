// turns.h: rotation angles for kernels.
#pragma once
#include <cmath>
#include <cstdint>

#include "lower.h"

namespace mb::gpu {

// Turns per position of each pair, position_scale · theta^(-2i / head_dim) / 2π, as fractions of 2^64: pair i turns by
// position · (high[i] · 2^32 + low[i]) / 2^64, whole turns dropped, which is exact at any position.
inline void set_turns(uint32_t *high, uint32_t *low, uint32_t pairs, uint32_t head_dim, double theta,
                      double position_scale) {
  const double ratio = std::pow(theta, -2.0 / head_dim);
  double turns = position_scale / (2 * 3.14159265358979323846);
  for (uint32_t i = 0; i < pairs; i++, turns *= ratio) {
    const double scaled = std::ldexp(turns - std::floor(turns), 32);
    const double whole = std::floor(scaled);
    high[i] = static_cast<uint32_t>(whole);
    low[i] = static_cast<uint32_t>(std::ldexp(scaled - whole, 32));
  }
}

// What rotations add to a row's position: angles are exact at whole positions only.
inline uint32_t whole_position_offset(float offset) {
  if (!(offset >= 0 && offset <= 65536 && offset == std::floor(offset))) {
    fail(MB_UNSUPPORTED, "RoPE with a position offset of %g: the GPU kernels take whole numbers up to 65536.", double{offset});
  }
  return static_cast<uint32_t>(offset);
}

}  // namespace mb::gpu
