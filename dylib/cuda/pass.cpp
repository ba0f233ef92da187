// Lowers a plan once per shape and replays the result as a command graph: one copy in, one graph, one wait a run.
#include "pass.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <set>

#include "../gpu/finite.h"
#include "../gpu/shapes.h"

namespace mb::cuda {

namespace {

using Shape = gpu::Lowering::Shape;

constexpr size_t kCachedShapes = 32;           // of a pass
constexpr uint64_t kLeastInput = 65536;        // bytes
constexpr uint64_t kMostStaged = 16 << 20;     // bytes of outputs that a run copies along; larger ones are read when asked for

Pinned &staging(std::unique_ptr<Pinned> &slot, const std::shared_ptr<Context> &context, uint64_t bytes) {
  if (!slot || slot->size < bytes) {
    slot.reset();
    slot = std::make_unique<Pinned>(context, std::max(bytes, kLeastInput));
  }
  return *slot;
}

class CudaPass final : public Pass {
 public:
  CudaPass(std::unique_ptr<Plan> the_plan, std::shared_ptr<Shared> shared)
      : shared_(std::move(shared)), repacked_bytes_(shared_->repacked.repack(*the_plan)), lowering_(*the_plan, shared_->context->limits) {
    plan = std::move(the_plan);
    for (const auto &buffer : plan->buffers) {
      if (dynamic_cast<CudaBuffer *>(buffer.get()) == nullptr) fail(MB_INVALID_ARGUMENT, "A buffer is not of this device.");
    }
  }
  ~CudaPass() override {
    shared_->scratch.release(scratch_bytes_);
    shared_->input.release(input_bytes_);
  }
  CudaPass(const CudaPass &) = delete;
  CudaPass &operator=(const CudaPass &) = delete;

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
    shared_->kernels.prepare({kernels.begin(), kernels.end()});
    const auto own_input = shared_->input.current(), own_scratch = shared_->scratch.current();
    for (const Shape &shape : shapes) steps_of(dispatches_of(shape), own_input, own_scratch);  // each kernel against its limits
  }

  RunStatistics run(const Input &input) override {
    const Context &context = *shared_->context;
    context.enter();
    staged_.clear();
    const gpu::Block block = gpu::block_of(*plan, input);
    reserve_input(block.size);
    const auto own_input = shared_->input.current(), own_scratch = shared_->scratch.current();
    const Shape shape = lowering_.shape(input);
    const bool checked = (plan->flags & kPlanCheckFinite) != 0;
    Cached *entry = checked ? nullptr : &cached(shape, own_input, own_scratch);
    check_cancelled();
    Pinned &in = staging(shared_->input_staging, shared_->context, block.size);
    memcpy(in.data, block.bytes, block.size);
    context.check(driver().cuMemcpyHtoDAsync(own_input.buffer->address, in.data, block.size, context.stream), "Sending the input of a run");
    if (checked) return run_checked(steps_of(dispatches_of(shape), own_input, own_scratch), input);
    entry->graph->launch();
    stage_outputs(input);
    context.wait("A run");
    RunStatistics statistics;
    statistics.device_ns = static_cast<uint64_t>(entry->graph->seconds() * 1e9);
    statistics.dispatches = entry->graph->size();
    statistics.command_buffers = 1;
    statistics.waits = 1;
    if (shared_->timed) note_times(*entry);
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
           ",\"scratchBytes\":" + std::to_string(scratch_bytes_) + ",\"repackedBytes\":" + std::to_string(repacked_bytes_) + ",\"pipelines\":" + shared_->kernels.info() +
           ",\"kernels\":" + gpu::kernels_json(*plan, dispatches, times_) + "}";
  }

 private:
  using Current = gpu::SharedScratch<CudaBuffer>::Current;

  struct Cached {
    Shape shape;
    uint64_t input_generation, scratch_generation;
    std::vector<gpu::Dispatch> dispatches;  // kept where kernels are timed
    std::unique_ptr<Graph> graph;
  };

  // An output in the staging buffer.
  struct Staged {
    size_t output;
    uint64_t offset;
  };

  void reserve_input(uint64_t bytes) {
    if (bytes <= input_bytes_) return;
    uint64_t room = kLeastInput;
    while (room < bytes) room *= 2;
    shared_->input.reserve(room);
    shared_->input.release(input_bytes_);
    input_bytes_ = room;
  }

  void check_cancelled() const {
    if (cancelled.load(std::memory_order_relaxed)) fail(MB_CANCELLED, "The run was cancelled.");
  }

  std::vector<gpu::Dispatch> dispatches_of(const Shape &shape) const {
    std::vector<gpu::Dispatch> dispatches = lowering_.lower(shape);
    const auto empty = [](const gpu::Dispatch &d) { return d.groups[0] == 0 || d.groups[1] == 0 || d.groups[2] == 0; };
    dispatches.erase(std::remove_if(dispatches.begin(), dispatches.end(), empty), dispatches.end());
    return dispatches;
  }

  std::vector<Step> steps_of(const std::vector<gpu::Dispatch> &dispatches, const Current &input, const Current &scratch) const {
    return make_steps(*plan, dispatches, {input.buffer.get(), scratch.buffer.get()}, *shared_->context, shared_->kernels);
  }

  // The graph of a shape, from an earlier run where that had the same buffers. Decoding repeats one shape for 256 tokens.
  Cached &cached(const Shape &shape, const Current &input, const Current &scratch) {
    for (auto entry = cache_.begin(); entry != cache_.end(); ++entry) {
      if (!(entry->shape == shape)) continue;
      if (entry->input_generation == input.generation && entry->scratch_generation == scratch.generation) {
        cache_.splice(cache_.begin(), cache_, entry);
        return cache_.front();
      }
      cache_.erase(entry);
      break;
    }
    std::vector<gpu::Dispatch> dispatches = dispatches_of(shape);
    const std::vector<Step> steps = steps_of(dispatches, input, scratch);
    // Measured on an H200: early starts make a token 4 % faster and a prompt of 512 tokens a fifth slower, perhaps since the
    // threadgroups of prompts, which do not fill the GPU evenly, lie where room happens to be.
    const bool decodes = shape.rows == shape.decode_rows;
    const Graph::Order order = shared_->timed ? Graph::Order::kTimed : decodes ? Graph::Order::kEarly : Graph::Order::kAsNeeded;
    auto graph = std::make_unique<Graph>(shared_->context, steps, 0, steps.size(), order);
    if (!shared_->timed) dispatches.clear();
    cache_.push_front({shape, input.generation, scratch.generation, std::move(dispatches), std::move(graph)});
    if (cache_.size() > kCachedShapes) cache_.pop_back();
    return cache_.front();
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
      const auto &buffer = static_cast<const CudaBuffer &>(*plan->buffers[from.buffer]);
      context.check(driver().cuMemcpyDtoHAsync(out.data + offset, buffer.address + from.offset, bytes, context.stream),
                    "Copying the outputs of a run");
      staged_.push_back({i, offset});
      offset += bytes;
    }
  }

  void note_times(const Cached &entry) {
    const std::lock_guard<std::mutex> lock(times_mutex_);
    times_ = entry.graph->step_seconds();
    timed_dispatches_ = entry.dispatches;
  }

  // The debug check needs the host after each op, hence a graph for each.
  RunStatistics run_checked(const std::vector<Step> &steps, const Input &input) {
    RunStatistics sum;
    for (size_t begin = 0; begin < steps.size();) {
      const uint32_t op = steps[begin].op;
      size_t end = begin;
      while (end < steps.size() && steps[end].op == op) end++;
      check_cancelled();
      const Graph graph(shared_->context, steps, begin, end, Graph::Order::kAsNeeded);
      graph.launch();
      shared_->context->wait("A run");
      sum.device_ns += static_cast<uint64_t>(graph.seconds() * 1e9);
      sum.dispatches += graph.size();
      sum.command_buffers++;
      sum.waits++;
      if (op < plan->ops.size()) gpu::check_finite(*plan, plan->ops[op], input);
      begin = end;
    }
    return sum;
  }

  const std::shared_ptr<Shared> shared_;
  const uint64_t repacked_bytes_;  // of weights in the layout of the kernels
  gpu::Lowering lowering_;
  std::list<Cached> cache_;  // most recently used first; touched by run() alone
  std::vector<Staged> staged_;
  uint64_t scratch_bytes_ = 0, input_bytes_ = 0;  // reserved
  mutable std::mutex times_mutex_;                // of what follows
  std::vector<double> times_;                     // seconds of each dispatch of the last run, where kernels are timed
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
