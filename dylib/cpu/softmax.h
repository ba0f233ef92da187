// softmax.h: the weight of a score beside the largest, e^(score - largest).
#pragma once
#include <cmath>

namespace mb {

// Below this difference a weight is 0. It would be less than 1e-30, which no sum in f32 can tell beside the largest score's 1, and
// its products with values would be subnormal numbers, which x86 computes in microcode: attention over noise took five times as long.
constexpr float kNegligible = -69.0f;

static inline float softmax_weight(float difference) { return difference < kNegligible ? 0.0f : std::exp(difference); }

}  // namespace mb
