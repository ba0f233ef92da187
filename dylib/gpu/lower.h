// lower.h: what the lower_*.cpp files share. Each op kind has one function lower_<op>(Emitter &, const Op &), listed in
// lower.cpp, that appends the op's dispatches. Internal to dylib/gpu.
#pragma once
#include <string>
#include <utility>

#include "dispatch.h"

namespace mb::gpu {

inline uint32_t divide_up(uint64_t a, uint64_t b) { return static_cast<uint32_t>((a + b - 1) / b); }
inline uint64_t round_up(uint64_t a, uint64_t b) { return (a + b - 1) / b * b; }

// Builds one Dispatch. Slots are the [[buffer(slot)]] numbers of the kernel.
class Launch {
 public:
  Launch(std::string family, std::string kernel) {
    dispatch_.family = std::move(family);
    dispatch_.kernel = std::move(kernel);
  }

  Launch &reads(uint32_t slot, const Tensor &weight) {
    return bind(slot, weight.buffer, weight.offset, weight.max_bytes, false);
  }
  // Rows [first, first + count) of an activation; the kernel sees row `first` as its row 0.
  Launch &reads_rows(uint32_t slot, const Tensor &t, uint32_t first, uint32_t count) {
    return bind_rows(slot, t, first, count, false);
  }
  Launch &writes_rows(uint32_t slot, const Tensor &t, uint32_t first, uint32_t count) {
    return bind_rows(slot, t, first, count, true);
  }
  // A KV tensor or other state that the kernel changes in place.
  Launch &writes(uint32_t slot, const Tensor &t) { return bind(slot, t.buffer, t.offset, t.max_bytes, true); }
  Launch &reads_scratch(uint32_t slot, uint64_t offset, uint64_t bytes) {
    return bind(slot, kScratchBuffer, offset, bytes, false);
  }
  Launch &writes_scratch(uint32_t slot, uint64_t offset, uint64_t bytes) {
    return bind(slot, kScratchBuffer, offset, bytes, true);
  }
  Launch &reads_input(uint32_t slot) { return bind(slot, kInputBuffer, 0, 0, false); }
  // An operand that is absent: the slot gets the first binding's bytes, so that no declared slot is empty.
  Launch &absent(uint32_t slot) {
    const Binding first = dispatch_.bindings.at(0);
    return bind(slot, first.buffer, first.offset, first.bytes, first.writes);
  }

  template <class Params>
  Launch &params(uint32_t slot, const Params &value) {
    const auto *bytes = reinterpret_cast<const uint8_t *>(&value);
    dispatch_.params_slot = slot;
    dispatch_.params.assign(bytes, bytes + sizeof(Params));
    return *this;
  }
  Launch &groups(uint32_t x, uint32_t y = 1, uint32_t z = 1) {
    dispatch_.groups[0] = x, dispatch_.groups[1] = y, dispatch_.groups[2] = z;
    return *this;
  }
  Launch &threads(uint32_t x, uint32_t y = 1, uint32_t z = 1) {
    dispatch_.threads[0] = x, dispatch_.threads[1] = y, dispatch_.threads[2] = z;
    return *this;
  }
  Launch &threadgroup_bytes(uint32_t bytes) {
    dispatch_.threadgroup_bytes = bytes;
    return *this;
  }
  Dispatch take() { return std::move(dispatch_); }

 private:
  Launch &bind(uint32_t slot, uint32_t buffer, uint64_t offset, uint64_t bytes, bool writes) {
    dispatch_.bindings.push_back({slot, buffer, offset, bytes, writes});
    return *this;
  }
  Launch &bind_rows(uint32_t slot, const Tensor &t, uint32_t first, uint32_t count, bool writes);

  Dispatch dispatch_;
};

// The dispatches of one run, while they are made.
class Emitter {
 public:
  Emitter(const Plan &plan, const Limits &limits, const Lowering::Shape &shape)
      : plan(plan), limits(limits), shape(shape) {}

  const Plan &plan;
  const Limits &limits;
  const Lowering::Shape &shape;

  bool exact() const { return plan.flags & kPlanExact; }
  // Live rows of an activation: [0, decode) are of class decode, [decode, count) of class prefill.
  struct Rows {
    uint32_t count, decode;
    uint32_t prefill() const { return count - decode; }
  };
  Rows rows_of(const Tensor &activation) const;
  // From here on all rows count as decode rows, whose products are taken in f32 in every mode; until called with false.
  void treat_as_decode(bool all) { all_decode_ = all; }
  // A dimension with its symbol, if it is one, at the live value.
  uint64_t live(int64_t dimension) const;

  void begin(uint32_t op) { op_ = op, scratch_ = 0; }
  // Bytes of kScratchBuffer for the present op, 256-byte aligned. Other ops use the same bytes.
  uint64_t scratch(uint64_t bytes);
  void emit(Launch &launch);

  uint32_t op() const { return op_; }  // index in the plan
  uint64_t most_scratch() const { return most_scratch_; }
  std::vector<Dispatch> take() { return std::move(dispatches_); }

 private:
  uint32_t op_ = 0;
  uint64_t scratch_ = 0, most_scratch_ = 0;
  bool all_decode_ = false;
  std::vector<Dispatch> dispatches_;
};

// The storage format of a matrix in kernel and family names: "f32", "bf16", "f16", or "affine4_bf16" for 4-bit codes with
// bf16 scales. Throws Error(MB_UNSUPPORTED) for formats without kernels.
std::string weight_format_name(const Tensor &weight);
// The family part of it: "f32", "bf16", "f16", "affine4".
std::string weight_family_name(const Tensor &weight);
// The same for a plain vector or scalar; the code is the one that load_scalar() in shaders/common.h takes.
uint32_t scalar_format(const Tensor &vector);

// The kernel that makes u of prompt rows of k columns (shaders/linear_prologue.metal). `plain`: u is x; `in_quads`: k and the formats of
// norms let four columns be read at once.
const char *prompt_prologue(bool exact, uint32_t k, bool plain, bool in_quads);

// One function for each op kind. lower_linear.cpp, lower_rows.cpp, lower_pointwise.cpp, lower_attention.cpp,
// lower_candidates.cpp, lower_experts.cpp, lower_centroids.cpp, lower_towers.cpp.
void lower_linear(Emitter &, const Op &);
void lower_embed(Emitter &, const Op &);
void lower_per_layer_inputs(Emitter &, const Op &);
void lower_gather(Emitter &, const Op &);
void lower_rms_norm(Emitter &, const Op &);
void lower_add(Emitter &, const Op &);
void lower_gelu_mul(Emitter &, const Op &);
void lower_softcap(Emitter &, const Op &);
void lower_rope(Emitter &, const Op &);
void lower_attention(Emitter &, const Op &);
void lower_kv_write(Emitter &, const Op &);
void lower_attend(Emitter &, const Op &);
void lower_candidates(Emitter &, const Op &);
void lower_route(Emitter &, const Op &);
void lower_top_k(Emitter &, const Op &);
void lower_expert_gate_up(Emitter &, const Op &);
void lower_expert_linear(Emitter &, const Op &);
void lower_expert_down(Emitter &, const Op &);
void lower_expert_sum(Emitter &, const Op &);
void lower_add_norms(Emitter &, const Op &);
void lower_draft_input(Emitter &, const Op &);
void lower_centroid_head(Emitter &, const Op &);
void lower_add_positions(Emitter &, const Op &);
void lower_patch_attention(Emitter &, const Op &);
void lower_pool(Emitter &, const Op &);
void lower_subsample(Emitter &, const Op &);
void lower_local_attention(Emitter &, const Op &);
void lower_light_conv(Emitter &, const Op &);
void lower_layer_norm(Emitter &, const Op &);

}  // namespace mb::gpu
