// Lowers a plan once per shape and replays the result: one command buffer a run.
#include "pass.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <set>

#include "../gpu/finite.h"
#include "../gpu/options.h"
#include "../plan_check.h"

namespace mb::metal {

namespace {

using Shape = gpu::Lowering::Shape;

constexpr size_t kCachedShapes = 16;    // of a pass
constexpr uint32_t kDecodeRows = 16;    // up to here each number of decode rows may have kernels of its own
constexpr uint64_t kLeastInput = 65536;  // bytes

uint32_t at_most(uint64_t a, uint64_t b) { return static_cast<uint32_t>(std::min(a, b)); }

Shape decode_shape(uint32_t rows, uint32_t out_rows, uint32_t sequences, uint32_t context_blocks) {
  Shape shape{};
  shape.rows = shape.decode_rows = rows;
  shape.out_rows = shape.decode_out_rows = out_rows;
  shape.sequences = sequences;
  shape.context_blocks = context_blocks;
  return shape;
}

uint64_t most_blocks(const Plan &plan) { return std::max<uint64_t>(1, plan.symbol_max[kPages] * kPageTokens / 256); }

// Shapes that between them use every kernel that the plan may need.
std::vector<Shape> shapes_of(const Plan &plan) {
  const uint64_t rows = plan.symbol_max[kRows], out_rows = plan.symbol_max[kOutRows], seqs = plan.symbol_max[kSequences];
  const uint64_t most = most_blocks(plan);
  std::vector<Shape> shapes;
  for (const uint32_t blocks : std::set<uint32_t>{1, at_most(most, 2), at_most(most, UINT32_MAX)}) {
    std::set<uint32_t> decode{at_most(rows, UINT32_MAX)};
    for (uint32_t n = 1; n <= std::min<uint64_t>(rows, kDecodeRows); n++) decode.insert(n);
    for (const uint32_t n : decode) {
      shapes.push_back(decode_shape(n, at_most(n, out_rows), at_most(n, seqs), blocks));
      Shape verify = decode_shape(n, at_most(n, out_rows), 1, blocks);
      verify.verifies = n > 1;
      shapes.push_back(verify);
      Shape prompt = decode_shape(n, at_most(1, out_rows), 1, blocks);
      prompt.decode_rows = prompt.decode_out_rows = 0;
      shapes.push_back(prompt);
    }
  }
  return shapes;
}

uint64_t input_bytes(const Plan &plan, const Input &input) {
  const uint64_t mask_words = (uint64_t{plan.vocabulary_size} + 31) / 32;
  const uint32_t *end = input.mask + input.header.masks * mask_words;
  return sizeof(InputHeader) + static_cast<uint64_t>(end - input.token) * sizeof(uint32_t);
}

const uint8_t *block_of(const Input &input) { return reinterpret_cast<const uint8_t *>(input.token) - sizeof(InputHeader); }

class MetalPass final : public Pass {
 public:
  MetalPass(std::unique_ptr<Plan> the_plan, std::shared_ptr<Shared> shared)
      : shared_(std::move(shared)), lowering_(*the_plan, shared_->context->limits) {
    plan = std::move(the_plan);
    for (const auto &buffer : plan->buffers) {
      if (dynamic_cast<MetalBuffer *>(buffer.get()) == nullptr) fail(MB_INVALID_ARGUMENT, "A buffer is not of this device.");
    }
  }
  ~MetalPass() override {
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
    const std::vector<Shape> shapes = shapes_of(*plan);
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
    reserve_input(input_bytes(*plan, input));
    const SharedScratch::Current own_input = shared_->input.current();
    const SharedScratch::Current own_scratch = shared_->scratch.current();
    memcpy(own_input.buffer->host, block_of(input), input_bytes(*plan, input));
    const Shape shape = lowering_.shape(input);
    const Context &context = *shared_->context;
    const std::vector<Step> &steps = cached(shape, own_input, own_scratch);
    context.residency->commit();
    if (plan->flags & kPlanCheckFinite) return run_checked(steps, input);
    return execute(context, steps, 0, steps.size(), cancelled);
  }

  std::string info() const override {
    const PoolScope pool;
    const Shape shape =
        decode_shape(1, at_most(1, plan->symbol_max[kOutRows]), 1, at_most(most_blocks(*plan), UINT32_MAX));
    const std::vector<gpu::Dispatch> dispatches = lowering_.lower(shape);
    const std::vector<Step> steps = steps_of(shape);
    const auto barriers = std::count_if(steps.begin(), steps.end(), [](const Step &step) { return step.barrier; });
    std::string text = "{\"ops\":" + std::to_string(plan->ops.size()) + ",\"dispatches\":" + std::to_string(steps.size()) +
                       ",\"barriers\":" + std::to_string(barriers) + ",\"scratchBytes\":" + std::to_string(scratch_bytes_) +
                       ",\"repackedBytes\":0,\"pipelines\":" + shared_->pipelines.info() + ",\"kernels\":[";
    size_t at = 0;
    for (uint32_t op = 0; op < plan->ops.size(); op++) {
      std::string names;
      size_t count = 0;
      for (; at < dispatches.size() && dispatches[at].op == op; at++, count++) {
        names += (names.empty() ? "" : " + ") + dispatches[at].kernel;
      }
      const Op &of = plan->ops[op];
      text += std::string(op == 0 ? "" : ",") + "{\"op\":\"" + op_name(of.kind) +
              "\",\"layer\":" + (of.layer == kNone ? "null" : std::to_string(of.layer)) +
              ",\"kernel\":" + gpu::json_text(names) + ",\"dispatches\":" + std::to_string(count) + "}";
    }
    return text + "]}";
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
  const std::vector<Step> &cached(const Shape &shape, const SharedScratch::Current &input,
                                  const SharedScratch::Current &scratch) {
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
