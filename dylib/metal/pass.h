// pass.h: a compiled plan of the Metal device.
#pragma once
#include "../gpu/repack.h"
#include "../gpu/scratch.h"
#include "encode.h"

namespace mb::metal {

// What all passes of a device share.
struct Shared {
  std::shared_ptr<Context> context;
  Pipelines pipelines;
  gpu::SharedScratch<MetalBuffer> input, scratch;
  gpu::Repacked repacked;

  Shared(std::shared_ptr<Context> the_context, const std::string &cache, Memory &memory)
      : context(the_context), pipelines(the_context, cache), input(create(), memory), scratch(create(), memory),
        repacked(create(), memory) {}

 private:
  gpu::SharedScratch<MetalBuffer>::Create create() const {
    return [context = context](uint64_t bytes) { return MetalBuffer::create(context, bytes); };
  }
};

// Lowers the plan, makes its pipelines and lays Metal buffers over its weights. Throws Error(MB_UNSUPPORTED,
// MB_OUT_OF_MEMORY).
std::unique_ptr<Pass> compile_metal_pass(std::unique_ptr<Plan> plan, std::shared_ptr<Shared> shared);

}  // namespace mb::metal
