// Lowers a plan once per shape and replays the result: one command buffer a run.
#include "pass.h"

#include <algorithm>
#include <cstring>

#include "../gpu/finite.h"
#include "../gpu/shape_cache.h"
#include "../gpu/shapes.h"

namespace mb::metal {

namespace {

using Shape = gpu::Lowering::Shape;

constexpr size_t kCachedShapes = 16;  // of a pass

class MetalPass final : public Pass {
 public:
  MetalPass(std::unique_ptr<Plan> the_plan, std::shared_ptr<Shared> shared)
      : shared_(std::move(shared)), repacked_bytes_(shared_->repacked.repack(*the_plan)),
        lowering_(*the_plan, shared_->context->limits),
        input_(shared_->input), scratch_(shared_->scratch) {
    plan = std::move(the_plan);
    for (const auto &buffer : plan->buffers) {
      if (dynamic_cast<MetalBuffer *>(buffer.get()) == nullptr) fail(MB_INVALID_ARGUMENT, "A buffer is not of this device.");
    }
  }
  MetalPass(const MetalPass &) = delete;
  MetalPass &operator=(const MetalPass &) = delete;

  // All that can fail before the first run but the repacking.
  void warm_up() {
    scratch_.grow(lowering_.scratch_bytes());
    input_.grow_for_input(0);
    const std::vector<Shape> shapes = gpu::shapes_of(*plan);
    shared_->pipelines.prepare(gpu::kernels_of(lowering_, shapes));
    // Each kernel against its pipeline and each weight into a Metal buffer.
    for (const Shape &shape : shapes) steps_of(shape);
    shared_->context->residency->commit();
  }

  RunStatistics run(const Input &input) override {
    const PoolScope pool;
    const gpu::Block block = gpu::block_of(*plan, input);
    input_.grow_for_input(block.size);
    const Own own = own_buffers();
    memcpy(own.input.buffer->host, block.bytes, block.size);
    const Shape shape = lowering_.shape(input);
    const Context &context = *shared_->context;
    const std::vector<Step> &steps =
        cache_.find(shape, own.input.generation, own.scratch.generation, [&] { return steps_of(shape, own); });
    context.residency->commit();
    const auto run_range = [&](size_t begin, size_t end) { return execute(context, steps, begin, end, cancelled); };
    if (plan->flags & kPlanCheckFinite) return gpu::run_checked(*plan, input, steps, run_range);
    return run_range(0, steps.size());
  }

  std::string info() const override {
    const PoolScope pool;
    const Shape shape = gpu::longest_decode_shape(*plan);
    const std::vector<Step> steps = steps_of(shape);
    const auto barriers = std::count_if(steps.begin(), steps.end(), [](const Step &step) { return step.barrier; });
    return "{\"ops\":" + std::to_string(plan->ops.size()) + ",\"dispatches\":" + std::to_string(steps.size()) +
           ",\"barriers\":" + std::to_string(barriers) + ",\"scratchBytes\":" + std::to_string(scratch_.bytes()) +
           ",\"repackedBytes\":" + std::to_string(repacked_bytes_) + ",\"pipelines\":" + shared_->pipelines.info() +
           ",\"kernels\":" + gpu::kernels_json(*plan, lowering_.lower(shape)) + "}";
  }

 private:
  using Current = gpu::SharedScratch<MetalBuffer>::Current;

  // The device's own buffers at the time of a run.
  struct Own {
    Current input, scratch;
  };
  Own own_buffers() const { return {shared_->input.current(), shared_->scratch.current()}; }

  std::vector<Step> steps_of(const Shape &shape) const { return steps_of(shape, own_buffers()); }
  std::vector<Step> steps_of(const Shape &shape, const Own &own) const {
    return make_steps(*plan, lowering_.lower(shape), {own.input.buffer.get(), own.scratch.buffer.get()}, *shared_->context,
                      shared_->pipelines);
  }

  const std::shared_ptr<Shared> shared_;
  const uint64_t repacked_bytes_;  // of weights in the layout of the kernels
  gpu::Lowering lowering_;
  gpu::Reservation<MetalBuffer> input_, scratch_;
  gpu::ShapeCache<std::vector<Step>> cache_{kCachedShapes};  // touched by run() alone
};

}  // namespace

std::unique_ptr<Pass> compile_metal_pass(std::unique_ptr<Plan> plan, std::shared_ptr<Shared> shared) {
  const PoolScope pool;
  auto pass = std::make_unique<MetalPass>(std::move(plan), std::move(shared));
  pass->warm_up();
  return pass;
}

}  // namespace mb::metal
