// context.h: what an op of the CPU device runs in.
#pragma once
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "../device.h"
#include "kernels.h"
#include "pool.h"

namespace mb {

// Memory that an op needs while it runs; each part is cut into pieces by take().
struct ScratchNeed {
  uint64_t shared = 0;  // bytes for all threads together
  uint64_t thread = 0;  // bytes for each thread

  static uint64_t rounded(uint64_t bytes) { return (bytes + 127) & ~127ull; }  // no two pieces share a cache line
  void add_shared(uint64_t bytes) { shared += rounded(bytes); }
  void add_thread(uint64_t bytes) { thread += rounded(bytes); }
};

// A piece of scratch that is handed out from its start.
class Scratch {
 public:
  Scratch() = default;
  Scratch(uint8_t *base, uint64_t size) : base_(base), size_(size) {}
  template <class T>
  T *take(uint64_t count) {
    const uint64_t bytes = ScratchNeed::rounded(count * sizeof(T));
    if (bytes > size_ - used_) fail(MB_INTERNAL, "An op needs more scratch than its plan said.");
    uint8_t *piece = base_ + used_;
    used_ += bytes;
    return reinterpret_cast<T *>(piece);
  }

 private:
  uint8_t *base_ = nullptr;
  uint64_t size_ = 0, used_ = 0;
};

// Cosines and sines of one rotary embedding for the rows of a run: [rows, pairs] each.
struct RopeTable {
  std::vector<float> cosines, sines;
};

struct Context {
  Context(const Kernels &the_kernels, const Plan &the_plan, int thread_count, const Input &the_input)
      : kernels(the_kernels), plan(the_plan), threads(thread_count), exact(the_plan.flags & kPlanExact), input(&the_input) {}

  const Kernels &kernels;
  const Plan &plan;
  const int threads;
  const bool exact;
  const Input *input;
  Scratch shared;
  std::vector<Scratch> thread_scratch;  // [threads]; an op copies its thread's before it takes from it
  // Of this run, by theta, position scale and offset, head size and pairs.
  std::map<std::tuple<float, float, float, uint32_t, uint32_t>, RopeTable> rope_tables;

  uint8_t *bytes(const Tensor *t) const { return plan.buffers[t->buffer]->host + t->offset; }
  float *f32(const Tensor *t) const { return reinterpret_cast<float *>(bytes(t)); }

  // Live rows: dimension 0 of an activation.
  int64_t rows(const Tensor *t) const {
    return t->dims[0] < 0 ? static_cast<int64_t>(input->symbol(static_cast<uint32_t>(-1 - t->dims[0]))) : t->dims[0];
  }
  // The row of the input block that row r of an activation belongs to.
  uint32_t input_row(const Tensor *t, int64_t r) const {
    return t->dims[0] == -1 - static_cast<int64_t>(kOutRows) ? input->out_row[r] : static_cast<uint32_t>(r);
  }

  template <class Body>
  void parallel(int64_t chunks, const Body &body) const {
    Pool::shared().run(threads, chunks, body);
  }
  // For loops over many small items: body(first, last, thread), with at least `grain` items a call.
  template <class Body>
  void parallel_ranges(int64_t items, int64_t grain, const Body &body) const {
    const int64_t most = 4ll * threads;
    int64_t step = (items + most - 1) / most;
    if (step < grain) step = grain;
    const int64_t chunks = step ? (items + step - 1) / step : 0;
    parallel(chunks, [&](int64_t chunk, int thread) {
      const int64_t first = chunk * step, last = first + step < items ? first + step : items;
      body(first, last, thread);
    });
  }

  // A vector tensor (norm weight, bias, scalar) as f32: its own bytes, or a copy in shared scratch.
  const float *vector(const Tensor *t);
  const RopeTable &rope_table(float theta, float position_scale, float position_offset, uint32_t head_dim, uint32_t pairs);
};

// Most rows that an activation can have.
int64_t max_rows(const Plan &plan, const Tensor *t);
int64_t columns_of(const Tensor *t);
Weight weight_of(const Plan &plan, const Tensor *t);
// Shared bytes that Context::vector takes.
void need_vector(ScratchNeed &need, const Tensor *t);

// ops/: each op, its scratch, and the name of the kernel it takes. Operand slots are those of plan.h.
void run_embed(Context &c, const Op &op);
void run_per_layer_inputs(Context &c, const Op &op);
void run_gather(Context &c, const Op &op);
ScratchNeed need_per_layer_inputs(const Op &op);
ScratchNeed need_embed(const Op &op);

void run_linear(Context &c, const Op &op);
ScratchNeed need_linear(const Kernels &k, const Plan &plan, const Op &op, bool exact);
std::string name_linear(const Plan &plan, const Op &op, bool exact);

void run_attention(Context &c, const Op &op);
void run_attend(Context &c, const Op &op);
void run_kv_write(Context &c, const Op &op);
ScratchNeed need_attention(const Plan &plan, const Op &op);

void run_candidates(Context &c, const Op &op);
ScratchNeed need_candidates(const Plan &plan, const Op &op);

void run_route(Context &c, const Op &op);
void run_top_k(Context &c, const Op &op);
ScratchNeed need_route(const Plan &plan, const Op &op);

void run_expert_gate_up(Context &c, const Op &op);
void run_expert_linear(Context &c, const Op &op);
ScratchNeed need_expert_products(const Kernels &k, const Plan &plan, const Op &op, bool exact);
void run_expert_down(Context &c, const Op &op);
ScratchNeed need_expert_down(const Kernels &k, const Plan &plan, const Op &op, bool exact);

void run_draft_input(Context &c, const Op &op);
void run_centroid_head(Context &c, const Op &op);
ScratchNeed need_centroid_head(const Plan &plan, const Op &op);

// ops/towers.cpp, ops/patch_attention.cpp, ops/local_attention.cpp
void run_add_positions(Context &c, const Op &op);
void run_pool(Context &c, const Op &op);
void run_subsample(Context &c, const Op &op);
void run_light_conv(Context &c, const Op &op);
void run_layer_norm(Context &c, const Op &op);
ScratchNeed need_tower(const Op &op);
void run_patch_attention(Context &c, const Op &op);
ScratchNeed need_patch_attention(const Plan &plan, const Op &op);
void run_local_attention(Context &c, const Op &op);
ScratchNeed need_local_attention(const Op &op);

void run_add_norms(Context &c, const Op &op);
void run_expert_sum(Context &c, const Op &op);
void run_rms_norm(Context &c, const Op &op);
void run_add(Context &c, const Op &op);
void run_gelu_mul(Context &c, const Op &op);
void run_softcap(Context &c, const Op &op);
void run_rope(Context &c, const Op &op);
ScratchNeed need_elementary(const Op &op);

}  // namespace mb
