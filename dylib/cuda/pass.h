// pass.h: a compiled plan of the CUDA device.
#pragma once
#include "../gpu/repack.h"
#include "../gpu/scratch.h"
#include "graph.h"

namespace mb::cuda {

// What all passes of a device share. Runs on a device take turns, so one staging buffer of each kind serves all of them.
struct Shared {
  Shared(std::shared_ptr<Context> the_context, const std::string &ptx, bool time_kernels, Memory &memory);

  const std::shared_ptr<Context> context;
  Kernels kernels;
  gpu::SharedScratch<CudaBuffer> input, scratch;
  gpu::Repacked repacked;
  std::unique_ptr<Pinned> input_staging, output_staging;  // grown when a run needs more
  const bool timed;                                       // each kernel, which then run one after another
};

// Lowers the plan and makes its kernels ready. Throws Error(MB_UNSUPPORTED, MB_OUT_OF_MEMORY).
std::unique_ptr<Pass> compile_cuda_pass(std::unique_ptr<Plan> plan, std::shared_ptr<Shared> shared);

}  // namespace mb::cuda
