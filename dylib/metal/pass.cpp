// Lowers a plan once per shape and replays the result: one command buffer a run.
#include "pass.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <set>

#include "../gpu/finite.h"
#include "../gpu/shapes.h"

namespace mb::metal {

namespace {

using Shape = gpu::Lowering::Shape;
using Scratch = gpu::SharedScratch<MetalBuffer>::Current;

constexpr size_t kCachedShapes = 16;    // of a pass
constexpr uint64_t kLeastInput = 65536;  // bytes

class MetalPass final : public Pass {
 public:
  MetalPass(std::unique_ptr<Plan> the_plan, std::shared_ptr<Shared> shared)
      : shared_(std::move(shared)), repacked_bytes_(shared_->repacked.repack(*the_plan)), lowering_(*the_plan, shared_->context->limits) {
    plan = std::move(the_plan);
    for (const auto &buffer : plan->buffers) {
      if (dynamic_cast<MetalBuffer *>(buffer.get()) == nullptr) fail(MB_INVALID_ARGUMENT, "A buffer is not of this device.");
    }
  }
  ~MetalPass() override {
    const PoolScope pool;
    shared_->scratch.release(scratch_bytes_);
    shared_->input.release(input_bytes_);
  }
  MetalPass(const MetalPass &) = delete;
  MetalPass &operator=(const MetalPass &) = delete;

  // All that can fail before the first run. Apart from the constructor, so that the destructor runs after a failure.
  void warm_up() {
    const uint64_t scratch = lowering_.scratch_bytes();
    shared_->scratch.reserve(scratch);
    scratch_bytes_ = scratch;
    reserve_input(kLeastInput);
    const std::vector<Shape> shapes = gpu::shapes_of(*plan);
    std::set<KernelName> kernels;
    for (const Shape &shape : shapes) {
      for (const gpu::Dispatch &dispatch : lowering_.lower(shape)) kernels.insert({dispatch.family, dispatch.kernel});
    }
    shared_->pipelines.prepare({kernels.begin(), kernels.end()});
    // Each kernel against its pipeline and each weight into a Metal buffer.
    for (const Shape &shape : shapes) steps_of(shape);
    cache_.clear();
    shared_->context->residency->commit();
  }

  RunStatistics run(const Input &input) override {
    const PoolScope pool;
    const gpu::Block block = gpu::block_of(*plan, input);
    reserve_input(block.size);
    const Scratch own_input = shared_->input.current(), own_scratch = shared_->scratch.current();
    memcpy(own_input.buffer->host, block.bytes, block.size);
    const Shape shape = lowering_.shape(input);
    const Context &context = *shared_->context;
    const std::vector<Step> &steps = cached(shape, own_input, own_scratch);
    context.residency->commit();
    if (plan->flags & kPlanCheckFinite) return run_checked(steps, input);
    return execute(context, steps, 0, steps.size(), cancelled);
  }

  std::string info() const override {
    const PoolScope pool;
    const Shape shape = gpu::longest_decode_shape(*plan);
    const std::vector<Step> steps = steps_of(shape);
    const auto barriers = std::count_if(steps.begin(), steps.end(), [](const Step &step) { return step.barrier; });
    return "{\"ops\":" + std::to_string(plan->ops.size()) + ",\"dispatches\":" + std::to_string(steps.size()) +
           ",\"barriers\":" + std::to_string(barriers) + ",\"scratchBytes\":" + std::to_string(scratch_bytes_) +
           ",\"repackedBytes\":" + std::to_string(repacked_bytes_) + ",\"pipelines\":" + shared_->pipelines.info() +
           ",\"kernels\":" + gpu::kernels_json(*plan, lowering_.lower(shape)) + "}";
  }

 private:
  struct Cached {
    Shape shape;
    uint64_t input_generation, scratch_generation;
    std::vector<Step> steps;
  };

  void reserve_input(uint64_t bytes) {
    if (bytes <= input_bytes_) return;
    uint64_t room = kLeastInput;
    while (room < bytes) room *= 2;
    shared_->input.reserve(room);
    shared_->input.release(input_bytes_);
    input_bytes_ = room;
  }

  std::vector<Step> steps_of(const Shape &shape) const {
    const auto input = shared_->input.current(), scratch = shared_->scratch.current();
    return make_steps(*plan, lowering_.lower(shape), {input.buffer.get(), scratch.buffer.get()}, *shared_->context,
                      shared_->pipelines);
  }

  // The steps of a shape, from an earlier run where that had the same buffers. Decoding repeats one shape for 256 tokens.
  const std::vector<Step> &cached(const Shape &shape, const Scratch &input,
                                  const Scratch &scratch) {
    for (auto entry = cache_.begin(); entry != cache_.end(); ++entry) {
      if (!(entry->shape == shape)) continue;
      if (entry->input_generation == input.generation && entry->scratch_generation == scratch.generation) {
        cache_.splice(cache_.begin(), cache_, entry);
        return cache_.front().steps;
      }
      cache_.erase(entry);
      break;
    }
    std::vector<Step> steps = make_steps(*plan, lowering_.lower(shape), {input.buffer.get(), scratch.buffer.get()},
                                         *shared_->context, shared_->pipelines);
    cache_.push_front({shape, input.generation, scratch.generation, std::move(steps)});
    if (cache_.size() > kCachedShapes) cache_.pop_back();
    return cache_.front().steps;
  }

  // The debug check needs the host after each op, hence a command buffer for each.
  RunStatistics run_checked(const std::vector<Step> &steps, const Input &input) {
    RunStatistics sum;
    for (size_t begin = 0; begin < steps.size();) {
      const uint32_t op = steps[begin].op;
      size_t end = begin;
      while (end < steps.size() && steps[end].op == op) end++;
      const RunStatistics part = execute(*shared_->context, steps, begin, end, cancelled);
      sum.device_ns += part.device_ns;
      sum.dispatches += part.dispatches;
      sum.command_buffers += part.command_buffers;
      sum.waits += part.waits;
      if (op < plan->ops.size()) gpu::check_finite(*plan, plan->ops[op], input);
      begin = end;
    }
    return sum;
  }

  const std::shared_ptr<Shared> shared_;
  const uint64_t repacked_bytes_;  // of weights in the layout of the kernels
  gpu::Lowering lowering_;
  std::list<Cached> cache_;  // most recently used first; touched by run() alone
  uint64_t scratch_bytes_ = 0, input_bytes_ = 0;  // reserved
};

}  // namespace

std::unique_ptr<Pass> compile_metal_pass(std::unique_ptr<Plan> plan, std::shared_ptr<Shared> shared) {
  const PoolScope pool;
  auto pass = std::make_unique<MetalPass>(std::move(plan), std::move(shared));
  pass->warm_up();
  return pass;
}

}  // namespace mb::metal
