// features.h: which instruction sets this CPU has, and the kernels compiled for the one chosen.
#pragma once
#include <string>
#include <vector>

#include "kernels.h"

namespace mb {

// Levels that a user can name, best last: scalar, then avx2 and avx512, or neon.
std::vector<std::string> available_levels();

// The kernels of a level; an empty name takes MARKBASE_CPU, else the best of this CPU. Throws Error(MB_UNSUPPORTED) for
// a level that is unknown or that this CPU does not have.
const Kernels &kernels_of_level(const std::string &name);

// Such as "AMD EPYC 9R14"; empty where the system does not say.
std::string cpu_name();

}  // namespace mb
