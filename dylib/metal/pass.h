// pass.h: a compiled plan of the Metal device.
#pragma once
#include "encode.h"
#include "scratch.h"

namespace mb::metal {

// What all passes of a device share.
struct Shared {
  std::shared_ptr<Context> context;
  Pipelines pipelines;
  SharedScratch input, scratch;

  Shared(std::shared_ptr<Context> the_context, const std::string &cache, Memory &memory)
      : context(the_context), pipelines(the_context, cache), input(the_context, memory), scratch(the_context, memory) {}
};

// Lowers the plan, makes its pipelines and lays Metal buffers over its weights. Throws Error(MB_UNSUPPORTED,
// MB_OUT_OF_MEMORY).
std::unique_ptr<Pass> compile_metal_pass(std::unique_ptr<Plan> plan, std::shared_ptr<Shared> shared);

}  // namespace mb::metal
