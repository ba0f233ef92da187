// Lowers a plan once per shape and replays the result as a command graph: one copy in, one graph, one wait a run.
#include "pass.h"

#include <algorithm>
#include <cstring>

#include "../gpu/finite.h"
#include "../gpu/shape_cache.h"
#include "../gpu/shapes.h"

namespace mb::cuda {

namespace {

using Shape = gpu::Lowering::Shape;

constexpr size_t kCachedShapes = 32;        // of a pass
constexpr uint64_t kLeastStaging = 65536;   // bytes
constexpr uint64_t kMostStaged = 16 << 20;  // bytes of outputs that a run copies along; larger ones are read when asked for

Pinned &staging(std::unique_ptr<Pinned> &slot, const std::shared_ptr<Context> &context, uint64_t bytes) {
  if (!slot || slot->size < bytes) {
    slot.reset();
    slot = std::make_unique<Pinned>(context, std::max(bytes, kLeastStaging));
  }
  return *slot;
}

class CudaPass final : public Pass {
 public:
  CudaPass(std::unique_ptr<Plan> the_plan, std::shared_ptr<Shared> shared)
      : shared_(std::move(shared)), repacked_bytes_(shared_->repacked.repack(*the_plan)),
        lowering_(*the_plan, shared_->context->limits),
        input_(shared_->input), scratch_(shared_->scratch) {
    plan = std::move(the_plan);
    for (const auto &buffer : plan->buffers) {
      if (dynamic_cast<CudaBuffer *>(buffer.get()) == nullptr) fail(MB_INVALID_ARGUMENT, "A buffer is not of this device.");
    }
  }
  CudaPass(const CudaPass &) = delete;
  CudaPass &operator=(const CudaPass &) = delete;

  // All that can fail before the first run but the repacking.
  void warm_up() {
    scratch_.grow(lowering_.scratch_bytes());
    input_.grow_for_input(0);
    const std::vector<Shape> shapes = gpu::shapes_of(*plan);
    shared_->kernels.prepare(gpu::kernels_of(lowering_, shapes));
    // Each kernel against its limits, and the weights to the GPU.
    const Own own = own_buffers();
    for (const Shape &shape : shapes) steps_of(dispatches_of(shape), own);
  }

  RunStatistics run(const Input &input) override {
    const Context &context = *shared_->context;
    context.enter();
    staged_.clear();
    const gpu::Block block = gpu::block_of(*plan, input);
    input_.grow_for_input(block.size);
    const Own own = own_buffers();
    const Shape shape = lowering_.shape(input);
    const bool checked = (plan->flags & kPlanCheckFinite) != 0;
    const auto fresh = [&] { return make(shape, own); };
    Made *made = checked ? nullptr : &cache_.find(shape, own.input.generation, own.scratch.generation, fresh);
    check_cancelled();
    Pinned &in = staging(shared_->input_staging, shared_->context, block.size);
    memcpy(in.data, block.bytes, block.size);
    context.check(driver().cuMemcpyHtoDAsync(own.input.buffer->address(), in.data, block.size, context.stream),
                  "Sending the input of a run");
    if (checked) return run_checked(steps_of(dispatches_of(shape), own), input);
    made->graph->launch();
    stage_outputs(input);
    context.wait("A run");
    RunStatistics statistics;
    statistics.device_ns = static_cast<uint64_t>(made->graph->seconds() * 1e9);
    statistics.dispatches = made->graph->size();
    statistics.command_buffers = 1;
    statistics.waits = 1;
    if (shared_->timed) note_times(*made);
    return statistics;
  }

  void read_output(size_t index, void *to, uint64_t bytes) override {
    const auto staged = std::find_if(staged_.begin(), staged_.end(), [&](const Staged &s) { return s.output == index; });
    if (staged != staged_.end()) {
      memcpy(to, shared_->output_staging->data + staged->offset, bytes);
    } else {
      Pass::read_output(index, to, bytes);
    }
  }

  std::string info() const override {
    const std::lock_guard<std::mutex> lock(times_mutex_);
    const std::vector<gpu::Dispatch> dispatches =
        times_.empty() ? dispatches_of(gpu::longest_decode_shape(*plan)) : timed_dispatches_;
    return "{\"ops\":" + std::to_string(plan->ops.size()) + ",\"dispatches\":" + std::to_string(dispatches.size()) +
           ",\"scratchBytes\":" + std::to_string(scratch_.bytes()) + ",\"repackedBytes\":" + std::to_string(repacked_bytes_) +
           ",\"pipelines\":" + shared_->kernels.info() +
           ",\"kernels\":" + gpu::kernels_json(*plan, dispatches, times_) + "}";
  }

 private:
  using Current = gpu::SharedScratch<CudaBuffer>::Current;

  // The device's own buffers at the time of a run.
  struct Own {
    Current input, scratch;
  };
  Own own_buffers() const { return {shared_->input.current(), shared_->scratch.current()}; }

  struct Made {
    std::vector<gpu::Dispatch> dispatches;  // kept where kernels are timed
    std::unique_ptr<Graph> graph;
  };

  // An output in the staging buffer.
  struct Staged {
    size_t output;
    uint64_t offset;
  };

  void check_cancelled() const {
    if (cancelled.load(std::memory_order_relaxed)) fail(MB_CANCELLED, "The run was cancelled.");
  }

  std::vector<gpu::Dispatch> dispatches_of(const Shape &shape) const {
    std::vector<gpu::Dispatch> dispatches = lowering_.lower(shape);
    const auto empty = [](const gpu::Dispatch &d) { return d.groups[0] == 0 || d.groups[1] == 0 || d.groups[2] == 0; };
    dispatches.erase(std::remove_if(dispatches.begin(), dispatches.end(), empty), dispatches.end());
    return dispatches;
  }

  std::vector<Step> steps_of(const std::vector<gpu::Dispatch> &dispatches, const Own &own) const {
    return make_steps(*plan, dispatches, {own.input.buffer.get(), own.scratch.buffer.get()}, *shared_->context, shared_->kernels);
  }

  Made make(const Shape &shape, const Own &own) const {
    std::vector<gpu::Dispatch> dispatches = dispatches_of(shape);
    const std::vector<Step> steps = steps_of(dispatches, own);
    // Measured on an H200: early starts make a token 4 % faster and a prompt of 512 tokens a fifth slower, perhaps since the
    // threadgroups of prompts, which do not fill the GPU evenly, lie where room happens to be.
    const bool decodes = shape.rows == shape.decode_rows;
    const Graph::Order order = shared_->timed ? Graph::Order::kTimed : decodes ? Graph::Order::kEarly : Graph::Order::kAsNeeded;
    auto graph = std::make_unique<Graph>(shared_->context, steps, 0, steps.size(), order);
    if (!shared_->timed) dispatches.clear();
    return {std::move(dispatches), std::move(graph)};
  }

  // Copies the selected outputs behind the run, so that one wait serves both.
  void stage_outputs(const Input &input) {
    uint64_t total = 0;
    for (size_t i = 0; i < plan->outputs.size(); i++) {
      if (selected(input, i)) total += live_bytes(*plan, *plan->outputs[i], input);
    }
    if (total == 0 || total > kMostStaged) return;
    Pinned &out = staging(shared_->output_staging, shared_->context, total);
    const Context &context = *shared_->context;
    uint64_t offset = 0;
    for (size_t i = 0; i < plan->outputs.size(); i++) {
      const Tensor &from = *plan->outputs[i];
      const uint64_t bytes = live_bytes(*plan, from, input);
      if (!selected(input, i) || bytes == 0) continue;
      auto &buffer = static_cast<CudaBuffer &>(*plan->buffers[from.buffer]);
      context.check(driver().cuMemcpyDtoHAsync(out.data + offset, buffer.address() + from.offset, bytes, context.stream),
                    "Copying the outputs of a run");
      staged_.push_back({i, offset});
      offset += bytes;
    }
  }

  void note_times(const Made &made) {
    const std::lock_guard<std::mutex> lock(times_mutex_);
    times_ = made.graph->step_seconds();
    timed_dispatches_ = made.dispatches;
  }

  // A graph for each op, since the check needs the host after it.
  RunStatistics run_checked(const std::vector<Step> &steps, const Input &input) {
    return gpu::run_checked(*plan, input, steps, [&](size_t begin, size_t end) {
      check_cancelled();
      const Graph graph(shared_->context, steps, begin, end, Graph::Order::kAsNeeded);
      graph.launch();
      shared_->context->wait("A run");
      RunStatistics part;
      part.device_ns = static_cast<uint64_t>(graph.seconds() * 1e9);
      part.dispatches = graph.size();
      part.command_buffers = part.waits = 1;
      return part;
    });
  }

  const std::shared_ptr<Shared> shared_;
  const uint64_t repacked_bytes_;  // of weights in the layout of the kernels
  gpu::Lowering lowering_;
  gpu::Reservation<CudaBuffer> input_, scratch_;
  gpu::ShapeCache<Made> cache_{kCachedShapes};  // touched by run() alone
  std::vector<Staged> staged_;
  mutable std::mutex times_mutex_;  // of what follows
  std::vector<double> times_;       // seconds of each dispatch of the last run, where kernels are timed
  std::vector<gpu::Dispatch> timed_dispatches_;
};

}  // namespace

Shared::Shared(std::shared_ptr<Context> the_context, const std::string &ptx, bool time_kernels, Memory &memory)
    : context(the_context),
      kernels(the_context, ptx),
      input([the_context](uint64_t bytes) { return CudaBuffer::create(the_context, bytes); }, memory),
      scratch([the_context](uint64_t bytes) { return CudaBuffer::create(the_context, bytes); }, memory),
      repacked([the_context](uint64_t bytes) { return CudaBuffer::create(the_context, bytes); }, memory),
      timed(time_kernels) {}

std::unique_ptr<Pass> compile_cuda_pass(std::unique_ptr<Plan> plan, std::shared_ptr<Shared> shared) {
  shared->context->enter();
  auto pass = std::make_unique<CudaPass>(std::move(plan), std::move(shared));
  pass->warm_up();
  return pass;
}

}  // namespace mb::cuda
