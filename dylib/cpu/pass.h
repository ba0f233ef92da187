// pass.h: a compiled plan of the CPU device.
#pragma once
#include "../device.h"
#include "interleaved.h"
#include "kernels.h"
#include "scratch_room.h"

namespace mb {

// Throws Error(MB_UNSUPPORTED) for an op or format without a kernel. `scratch` must outlive the pass.
// `interleaved` may be null: weights stay where they are.
std::unique_ptr<Pass> compile_cpu_pass(std::unique_ptr<Plan> plan, const Kernels &kernels, int threads, Interleaved *interleaved,
                                       ScratchRoom &scratch);

}  // namespace mb
