// Runs a plan's ops one after another on the pool.
#include "pass.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "../plan_check.h"
#include "context.h"
#include "memory.h"

namespace mb {

namespace {

constexpr uint64_t kGuard = 128;  // bytes around each scratch part, watched while finiteness is checked
constexpr uint8_t kPoison = 0xa5;
constexpr ptrdiff_t kOpsBegun = 6;  // ops after which all threads of the pool are at work

bool is_float(Format format) { return format == kF32 || format == kF16 || format == kBF16; }

// Throws for a plan that is valid but has no kernel here.
void check_supported(const Op &op) {
  const char *name = op_name(op.kind);
  if (!name) fail(MB_UNSUPPORTED, "The cpu device has no op of kind %u.", static_cast<unsigned>(op.kind));
  for (const Tensor *t : op.operands) {
    if (!t || is_float(t->format) || !is_plain(t->format)) continue;
    if (t->format == kU32 || t->format == kI8) continue;  // the plan's check admits these for ids and pages alone
    fail(MB_UNSUPPORTED, "The cpu device has no %s for the format %s.", name, format_traits(t->format)->name);
  }
}

ScratchNeed scratch_of(const Kernels &k, const Plan &plan, const Op &op) {
  const bool exact = plan.flags & kPlanExact;
  switch (op.kind) {
    case kEmbed: return need_embed(op);
    case kPerLayerInputs: return need_per_layer_inputs(op);
    case kLinear: return need_linear(k, plan, op, exact);
    case kAttention:
    case kAttend: return need_attention(plan, op);
    case kCandidates: return need_candidates(plan, op);
    case kRoute: return need_route(plan, op);
    case kExpertGateUp:
    case kExpertLinear: return need_expert_products(k, plan, op, exact);
    case kExpertDown: return need_expert_down(k, plan, op, exact);
    case kCentroidHead: return need_centroid_head(plan, op);
    case kPatchAttention: return need_patch_attention(plan, op);
    case kAddPositions:
    case kPoolRows:
    case kSubsample:
    case kLightConv:
    case kLayerNorm: return need_tower(op);
    case kLocalAttention: return need_local_attention(op);
    default: return need_elementary(op);
  }
}

void run_op(Context &c, const Op &op) {
  switch (op.kind) {
    case kEmbed: return run_embed(c, op);
    case kPerLayerInputs: return run_per_layer_inputs(c, op);
    case kLinear: return run_linear(c, op);
    case kAttention: return run_attention(c, op);
    case kGather: return run_gather(c, op);
    case kCandidates: return run_candidates(c, op);
    case kRoute: return run_route(c, op);
    case kExpertGateUp: return run_expert_gate_up(c, op);
    case kExpertDown: return run_expert_down(c, op);
    case kAddNorms: return run_add_norms(c, op);
    case kDraftInput: return run_draft_input(c, op);
    case kCentroidHead: return run_centroid_head(c, op);
    case kAddPositions: return run_add_positions(c, op);
    case kPatchAttention: return run_patch_attention(c, op);
    case kPoolRows: return run_pool(c, op);
    case kSubsample: return run_subsample(c, op);
    case kLocalAttention: return run_local_attention(c, op);
    case kLightConv: return run_light_conv(c, op);
    case kLayerNorm: return run_layer_norm(c, op);
    case kTopK: return run_top_k(c, op);
    case kExpertLinear: return run_expert_linear(c, op);
    case kExpertSum: return run_expert_sum(c, op);
    case kRmsNorm: return run_rms_norm(c, op);
    case kAdd: return run_add(c, op);
    case kGeluMul: return run_gelu_mul(c, op);
    case kSoftcap: return run_softcap(c, op);
    case kRope: return run_rope(c, op);
    case kKvWrite: return run_kv_write(c, op);
    case kAttend: return run_attend(c, op);
  }
}

// Weights that every forward reads from end to end. Tables of which it reads single rows are not among them: in huge pages each row
// would make two megabytes resident.
std::vector<const Tensor *> streamed(const Op &op) {
  const auto &o = op.operands;
  switch (op.kind) {
    case kLinear: return {o[6], o[7], o[8]};
    case kExpertGateUp: return {o[3], o[4]};
    case kExpertDown: return {o[3]};
    case kExpertLinear: return {o[2]};
    default: return {};
  }
}

void advise_weights(const Plan &plan) {
  std::vector<std::vector<AddressRange>> ranges(plan.buffers.size());
  const auto add = [&](const Tensor *t) {
    if (!t || t->interleaved || plan.buffers[t->buffer]->writable) return;
    const uintptr_t first = reinterpret_cast<uintptr_t>(plan.buffers[t->buffer]->host) + t->offset;
    ranges[t->buffer].push_back({first, first + t->max_bytes});
  };
  for (const Op &op : plan.ops) {
    for (const Tensor *t : streamed(op)) {
      add(t);
      add(t ? t->scales : nullptr);
      add(t ? t->biases : nullptr);
    }
  }
  for (std::vector<AddressRange> &of_buffer : ranges) advise_streamed(std::move(of_buffer));
}

// The first op that may write where outputs are: it has an operand there.
const Op *first_output(const Plan &plan) {
  const auto end = [](const Tensor *t) { return t->offset + t->max_bytes; };
  for (const Op &op : plan.ops) {
    for (const Tensor *t : op.operands) {
      for (const Tensor *output : plan.outputs) {
        if (t && t->buffer == output->buffer && t->offset < end(output) && output->offset < end(t)) return &op;
      }
    }
  }
  return nullptr;
}

// The f32 activations that an op writes, for the finiteness check.
std::vector<const Tensor *> written(const Op &op) {
  const auto &o = op.operands;
  switch (op.kind) {
    case kEmbed:
    case kGather:
    case kSoftcap:
    case kRope: return {o[1]};
    case kPerLayerInputs:
    case kAdd: return {o[3]};
    case kLinear: return {o[4], o[13]};
    case kAttention: return {o[4]};
    case kCandidates: return {o[3]};
    case kRoute:
    case kExpertGateUp:
    case kCentroidHead: return {o[5]};
    case kExpertDown:
    case kAddNorms: return {o[4]};
    case kAddPositions:
    case kLightConv:
    case kLayerNorm:
    case kTopK:
    case kExpertLinear: return {o[3]};
    case kPatchAttention:
    case kLocalAttention: return {o[6]};
    case kPoolRows:
    case kSubsample: return {o[4]};
    case kRmsNorm:
    case kGeluMul:
    case kDraftInput:
    case kExpertSum:
    case kAttend: return {o[2]};
    case kKvWrite: return {};
  }
  return {};
}

class CpuPass final : public Pass {
 public:
  CpuPass(std::unique_ptr<Plan> the_plan, const Kernels &kernels, int threads, Interleaved *interleaved, ScratchRoom &scratch)
      : kernels_(kernels), threads_(threads), scratch_(scratch) {
    plan = std::move(the_plan);
    for (const Op &op : plan->ops) check_supported(op);  // before anything large is made
    if (interleaved) copies_ = interleaved->interleave(*plan);
    advise_weights(*plan);
    first_output_ = first_output(*plan);
    tells_when_begun = true;
    for (const Op &op : plan->ops) {
      const ScratchNeed need = scratch_of(kernels, *plan, op);
      need_.shared = std::max(need_.shared, need.shared);
      need_.thread = std::max(need_.thread, need.thread);
    }
    scratch_bytes_ = kGuard + need_.shared + kGuard + static_cast<uint64_t>(threads) * (need_.thread + kGuard);
    scratch_.reserve(scratch_bytes_);
  }
  ~CpuPass() override { scratch_.release(scratch_bytes_); }
  CpuPass(const CpuPass &) = delete;
  CpuPass &operator=(const CpuPass &) = delete;

  RunStatistics run(const Input &input) override {
    const auto start = std::chrono::steady_clock::now();
    const bool check = plan->flags & kPlanCheckFinite;
    Context c(kernels_, *plan, threads_, input);
    const std::shared_ptr<ScratchRoom::Mapping> mapping = scratch_.current();
    uint8_t *const scratch = mapping->data();
    if (check) poison_guards(scratch);
    for (const Op &op : plan->ops) {
      if (&op - plan->ops.data() == kOpsBegun) note_begun();
      if (&op == first_output_) wait_while_held();
      if (cancelled.load(std::memory_order_relaxed)) fail(MB_CANCELLED, "The run was cancelled.");
      c.shared = Scratch(scratch + kGuard, need_.shared);
      c.thread_scratch.clear();
      for (int t = 0; t < threads_; t++) c.thread_scratch.emplace_back(thread_part(scratch, t), need_.thread);
      run_op(c, op);
      if (check) check_op(c, op, scratch);
    }
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
    RunStatistics statistics;
    statistics.wall_ns = statistics.device_ns = static_cast<uint64_t>(ns);
    statistics.dispatches = plan->ops.size();
    statistics.command_buffers = statistics.waits = 1;
    return statistics;
  }

  std::string info() const override {
    std::string text = "{\"ops\":" + std::to_string(plan->ops.size()) +
                       ",\"dispatches\":" + std::to_string(plan->ops.size()) +
                       ",\"scratchBytes\":" + std::to_string(scratch_bytes_) + ",\"repackedBytes\":" + std::to_string(interleaved_bytes(copies_)) + ",\"kernels\":[";
    bool first = true;
    for (const Op &op : plan->ops) {
      const std::string kernel =
          op.kind == kLinear ? name_linear(*plan, op, plan->flags & kPlanExact) : std::string(op_name(op.kind));
      text += std::string(first ? "" : ",") + "{\"op\":\"" + op_name(op.kind) + "\",\"layer\":" +
              (op.layer == kNone ? "null" : std::to_string(op.layer)) + ",\"kernel\":\"" + kernel + "_" +
              kernels_.level + "\",\"dispatches\":1}";
      first = false;
    }
    return text + "]}";
  }

 private:
  uint8_t *thread_part(uint8_t *scratch, int thread) const {
    return scratch + kGuard + need_.shared + kGuard + static_cast<uint64_t>(thread) * (need_.thread + kGuard);
  }

  template <class F>
  void each_guard(uint8_t *scratch, const F &f) {
    f(scratch);
    f(scratch + kGuard + need_.shared);
    for (int t = 0; t < threads_; t++) f(thread_part(scratch, t) + need_.thread);
  }

  void poison_guards(uint8_t *scratch) {
    each_guard(scratch, [](uint8_t *guard) { memset(guard, kPoison, kGuard); });
  }

  void check_op(const Context &c, const Op &op, uint8_t *scratch) {
    const std::string where = std::string(op_name(op.kind)) +
                              (op.layer == kNone ? "" : " of layer " + std::to_string(op.layer));
    each_guard(scratch, [&](const uint8_t *guard) {
      for (uint64_t i = 0; i < kGuard; i++) {
        if (guard[i] != kPoison) fail(MB_INTERNAL, "%s wrote outside its scratch.", where.c_str());
      }
    });
    for (const Tensor *t : written(op)) {
      if (!t) continue;
      const int64_t columns = columns_of(t), rows = c.rows(t);
      for (int64_t r = 0; r < rows; r++) {
        if (kernels_.all_finite(c.f32(t) + r * columns, columns)) continue;
        fail(MB_NOT_FINITE, "%s wrote NaN or Inf into row %lld; it is the first op of the plan that did.", where.c_str(),
             static_cast<long long>(r));
      }
    }
  }

  const Kernels &kernels_;
  const int threads_;
  ScratchRoom &scratch_;
  std::vector<std::shared_ptr<Interleaved::Copy>> copies_;  // that the plan's tensors point to
  const Op *first_output_ = nullptr;
  ScratchNeed need_;
  uint64_t scratch_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Pass> compile_cpu_pass(std::unique_ptr<Plan> plan, const Kernels &kernels, int threads, Interleaved *interleaved,
                                       ScratchRoom &scratch) {
  return std::make_unique<CpuPass>(std::move(plan), kernels, threads, interleaved, scratch);
}

}  // namespace mb
