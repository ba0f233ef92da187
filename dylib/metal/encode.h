// encode.h: a list of dispatches made ready for an encoder, and its execution as one command buffer.
#pragma once
#include <vector>

#include "buffer.h"
#include "pipelines.h"

namespace mb::metal {

// One dispatch with its pipeline, its Metal buffers and whether a barrier stands before it.
struct Step {
  struct Argument {
    NS::UInteger slot;
    MTL::Buffer *buffer;
    NS::UInteger offset;  // bytes
  };
  MTL::ComputePipelineState *pipeline;
  bool barrier;
  MTL::Size groups, threads;
  NS::UInteger threadgroup_bytes;
  std::vector<Argument> arguments;
  std::vector<uint8_t> params;
  NS::UInteger params_slot;
  uint32_t op;  // index in the plan
};

// The buffers that dispatches name by gpu::kInputBuffer and gpu::kScratchBuffer.
struct OwnBuffers {
  MetalBuffer *input, *scratch;  // scratch may be null
};

// Checks each dispatch against its pipeline and buffers; throws Error(MB_UNSUPPORTED) where this GPU's pipeline allows less
// than the dispatch asks for. Dispatches of no threadgroups are left out.
std::vector<Step> make_steps(const Plan &plan, const std::vector<gpu::Dispatch> &dispatches, const OwnBuffers &own,
                             const Context &context, Pipelines &pipelines);

// Runs steps [begin, end) as one command buffer and waits for it. Throws Error(MB_DEVICE_LOST, MB_TIMEOUT,
// MB_OUT_OF_MEMORY) for what its status says, and MB_CANCELLED where `cancelled` is set before it is committed.
RunStatistics execute(const Context &context, const std::vector<Step> &steps, size_t begin, size_t end,
                      const std::atomic<bool> &cancelled);

}  // namespace mb::metal
