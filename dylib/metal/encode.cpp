#include "encode.h"

#include "../gpu/hazards.h"

namespace mb::metal {

namespace {

using ull = unsigned long long;

constexpr uint32_t kMaxSlots = 31;            // of a compute encoder
constexpr size_t kMaxParams = 4096;           // bytes that setBytes takes
constexpr uint32_t kThreadgroupAlignment = 16;  // bytes

// Looks up the buffers of one plan.
class Resources {
 public:
  Resources(const Plan &plan, const OwnBuffers &own) : plan_(plan), own_(own) {}

  MetalBuffer *find(uint32_t buffer) const {
    if (buffer == gpu::kInputBuffer) return own_.input;
    if (buffer == gpu::kScratchBuffer) return own_.scratch;
    return buffer < plan_.buffers.size() ? static_cast<MetalBuffer *>(plan_.buffers[buffer].get()) : nullptr;
  }

 private:
  const Plan &plan_;
  const OwnBuffers &own_;
};

// A kernel list that does not fit its buffers is a fault of this library, found here before the GPU runs it.
MetalBuffer &checked(const gpu::Dispatch &dispatch, const gpu::Binding &binding, MetalBuffer *buffer) {
  const char *kernel = dispatch.kernel.c_str();
  if (buffer == nullptr || binding.slot >= kMaxSlots) {
    fail(MB_INTERNAL, "%s binds buffer %u at slot %u, which is not there.", kernel, binding.buffer, binding.slot);
  }
  if (binding.offset > buffer->size || binding.bytes > buffer->size - binding.offset) {
    fail(MB_INTERNAL, "%s binds bytes [%llu, %llu + %llu) of a buffer of %llu at slot %u.", kernel, ull(binding.offset),
         ull(binding.offset), ull(binding.bytes), ull(buffer->size), binding.slot);
  }
  if (binding.writes && !buffer->writable) {
    fail(MB_INTERNAL, "%s writes to a mapped file at slot %u.", kernel, binding.slot);
  }
  return *buffer;
}

void check_threads(const gpu::Dispatch &dispatch, const Pipeline &pipeline, const Context &context) {
  const char *kernel = dispatch.kernel.c_str();
  uint64_t threads = 1;
  for (const uint32_t n : dispatch.threads) threads *= n;
  if (threads == 0 || dispatch.params.size() > kMaxParams) {
    fail(MB_INTERNAL, "%s has %llu threads a threadgroup and %zu bytes of parameters.", kernel, ull(threads),
         dispatch.params.size());
  }
  if (threads > pipeline.max_threads) {
    fail(MB_UNSUPPORTED,
         "The kernel %s needs %llu threads a threadgroup; its pipeline on the GPU %s takes %u at most. Use device \"cpu\".",
         kernel, ull(threads), context.name.c_str(), pipeline.max_threads);
  }
  if (dispatch.threadgroup_bytes == 0) return;  // what a kernel declares itself was checked when its pipeline was made
  const uint64_t bytes = dispatch.threadgroup_bytes + pipeline.state->staticThreadgroupMemoryLength();
  if (bytes > context.limits.threadgroup_bytes) {
    fail(MB_UNSUPPORTED,
         "The kernel %s needs %llu bytes of threadgroup memory; the GPU %s has %u. Use device \"cpu\".", kernel, ull(bytes),
         context.name.c_str(), context.limits.threadgroup_bytes);
  }
}

MTL::Size size_of(const uint32_t (&n)[3]) { return MTL::Size::Make(n[0], n[1], n[2]); }

[[noreturn]] void fail_run(const Context &context, const MTL::CommandBuffer &commands) {
  const NS::Error *error = commands.error();
  mb_status status = MB_DEVICE_LOST;
  if (error != nullptr && error->code() == MTL::CommandBufferErrorTimeout) status = MB_TIMEOUT;
  if (error != nullptr && error->code() == MTL::CommandBufferErrorOutOfMemory) status = MB_OUT_OF_MEMORY;
  fail(status, "The GPU %s did not complete the run: %s", context.name.c_str(), error_text(error).c_str());
}

// Encodes the steps. Between two of them the encoder keeps what is bound, so that only changes are sent.
void encode(MTL::ComputeCommandEncoder &encoder, const std::vector<Step> &steps, size_t begin, size_t end) {
  MTL::ComputePipelineState *pipeline = nullptr;
  Step::Argument bound[kMaxSlots] = {};
  NS::UInteger threadgroup_bytes = 0;
  for (size_t i = begin; i < end; i++) {
    const Step &step = steps[i];
    if (step.barrier && i > begin) encoder.memoryBarrier(MTL::BarrierScopeBuffers);
    if (step.pipeline != pipeline) encoder.setComputePipelineState(step.pipeline);
    pipeline = step.pipeline;
    for (const Step::Argument &argument : step.arguments) {
      Step::Argument &last = bound[argument.slot];
      if (last.buffer == argument.buffer && last.offset == argument.offset) continue;
      encoder.setBuffer(argument.buffer, argument.offset, argument.slot);
      last = argument;
    }
    if (!step.params.empty()) {
      encoder.setBytes(step.params.data(), step.params.size(), step.params_slot);
      bound[step.params_slot] = {};
    }
    if (step.threadgroup_bytes > 0 && step.threadgroup_bytes != threadgroup_bytes) {
      encoder.setThreadgroupMemoryLength(step.threadgroup_bytes, 0);
      threadgroup_bytes = step.threadgroup_bytes;
    }
    encoder.dispatchThreadgroups(step.groups, step.threads);
  }
}

}  // namespace

std::vector<Step> make_steps(const Plan &plan, const std::vector<gpu::Dispatch> &dispatches, const OwnBuffers &own,
                             const Context &context, Pipelines &pipelines) {
  const Resources resources(plan, own);
  std::vector<Step> steps;
  gpu::Barriers barriers;
  for (const gpu::Dispatch &dispatch : dispatches) {
    if (dispatch.groups[0] == 0 || dispatch.groups[1] == 0 || dispatch.groups[2] == 0) continue;
    const Pipeline &pipeline = pipelines.get({dispatch.family, dispatch.kernel});
    check_threads(dispatch, pipeline, context);
    if (!dispatch.params.empty() && dispatch.params_slot >= kMaxSlots) {
      fail(MB_INTERNAL, "%s has its parameters at slot %u.", dispatch.kernel.c_str(), dispatch.params_slot);
    }
    Step step{};
    step.pipeline = pipeline.state.get();
    step.groups = size_of(dispatch.groups);
    step.threads = size_of(dispatch.threads);
    step.threadgroup_bytes =
        (dispatch.threadgroup_bytes + kThreadgroupAlignment - 1) / kThreadgroupAlignment * kThreadgroupAlignment;
    step.params = dispatch.params;
    step.params_slot = dispatch.params_slot;
    step.op = dispatch.op;
    std::vector<gpu::Access> accesses;
    for (const gpu::Binding &binding : dispatch.bindings) {
      MetalBuffer &buffer = checked(dispatch, binding, resources.find(binding.buffer));
      const MetalBuffer::View view = buffer.view(binding.offset, binding.bytes);
      step.arguments.push_back({binding.slot, view.buffer, view.offset});
      // A buffer may stand for several plan buffers, so it is told apart by its address.
      accesses.push_back({reinterpret_cast<uintptr_t>(&buffer), binding.offset, binding.offset + binding.bytes, binding.writes});
    }
    step.barrier = barriers.next(accesses);
    steps.push_back(std::move(step));
  }
  return steps;
}

RunStatistics execute(const Context &context, const std::vector<Step> &steps, size_t begin, size_t end,
                      const std::atomic<bool> &cancelled) {
  RunStatistics statistics;
  if (begin == end) return statistics;
  const PoolScope pool;
  const auto commands = NS::RetainPtr(context.queue->commandBuffer());
  if (!commands) fail(MB_DEVICE_LOST, "The GPU %s gives no command buffer.", context.name.c_str());
  const auto encoder = NS::RetainPtr(commands->computeCommandEncoder(MTL::DispatchTypeConcurrent));
  if (!encoder) fail(MB_DEVICE_LOST, "The GPU %s gives no compute encoder.", context.name.c_str());
  encode(*encoder.get(), steps, begin, end);
  encoder->endEncoding();
  if (cancelled.load(std::memory_order_relaxed)) fail(MB_CANCELLED, "The run was cancelled.");
  commands->commit();
  commands->waitUntilCompleted();
  if (commands->status() != MTL::CommandBufferStatusCompleted) fail_run(context, *commands.get());
  const double seconds = commands->GPUEndTime() - commands->GPUStartTime();
  statistics.device_ns = seconds > 0 ? static_cast<uint64_t>(seconds * 1e9) : 0;
  statistics.dispatches = end - begin;
  statistics.command_buffers = 1;
  statistics.waits = 1;
  return statistics;
}

}  // namespace mb::metal
