// finite.h: the debug check behind kPlanCheckFinite.
#pragma once
#include "../device.h"

namespace mb::gpu {

// Looks for NaN and Inf in the live rows of what the op wrote; the device must be idle. Throws Error(MB_NOT_FINITE)
// that names op, layer and row.
void check_finite(const Plan &plan, const Op &op, const Input &input);

}  // namespace mb::gpu
