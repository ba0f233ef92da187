// softmax.h: the weight of a score beside the largest, e^(score - largest).
#pragma once
#include <cmath>

namespace mb {

// Below this difference a weight is 0. It would be less than 1e-30, which no sum in f32 can tell beside the largest score's 1, and
// its products with values would be subnormal numbers, for each of which x86 takes some hundred cycles: where most keys of a head are
// that far below, attention took five times as long with them.
constexpr float kNegligible = -69.0f;

static inline float softmax_weight(float difference) { return difference < kNegligible ? 0.0f : std::exp(difference); }

}  // namespace mb
