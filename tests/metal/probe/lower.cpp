// A lowering for the tests of the Metal executor: it stands in for dylib/gpu/lower.cpp and turns ops into the dispatches that a
// test asks for. `add` and `embed` do what they say; the cap of a softcap names a behaviour instead (Probe below; executor_test.ts
// has the same numbers).
#include "dispatch.h"

#include <cstring>

#include "../../shaders/probe_params.h"

namespace mb::gpu {

namespace {

enum Probe {
  kCopy = 1,        // y = x
  kManyThreads,     // copy with 1024 threads a threadgroup
  kAbsentKernel,    // names a kernel that is not there
  kBeyondBuffer,    // binds more bytes than the buffer has
  kStage,           // copy through 4 KB of dynamic threadgroup memory
  kStageTooLarge,   // the same with 40 KB
  kThroughScratch,  // x to scratch, scratch to y: two dispatches
  kToken,           // y = the row's token
  kStray,           // writes outside y
  kDivide,          // y = x / 0
  kAbsentFamily,    // names a family that is not there
  kNoGroups,        // a dispatch of no threadgroups, then a copy
};

constexpr uint64_t kScratchBytes = 1 << 20;

uint64_t row_bytes(const Tensor &t) { return static_cast<uint64_t>(t.dims[1]) * sizeof(float); }

Binding rows(uint32_t slot, const Tensor &t, uint32_t rows, bool writes) {
  return {slot, t.buffer, t.offset, rows * row_bytes(t), writes};
}

Dispatch launch(const char *kernel, const Tensor &t, uint32_t rows, uint32_t op, uint32_t threads = 32) {
  const ProbeParams params{static_cast<uint32_t>(rows * t.dims[1]), static_cast<uint32_t>(t.dims[1]), 0};
  Dispatch dispatch;
  dispatch.family = "probe";
  dispatch.kernel = kernel;
  dispatch.threads[0] = threads;
  dispatch.groups[0] = (params.count + threads - 1) / threads;
  dispatch.params.resize(sizeof params);
  memcpy(dispatch.params.data(), &params, sizeof params);
  dispatch.params_slot = 3;
  dispatch.op = op;
  return dispatch;
}

void lower_probe(std::vector<Dispatch> &out, const Op &op, uint32_t rows_now, uint32_t index) {
  const Tensor &x = *op.operands[0], &y = *op.operands[1];
  const auto simple = [&](const char *kernel, uint32_t threads = 32) {
    Dispatch dispatch = launch(kernel, y, rows_now, index, threads);
    dispatch.bindings = {rows(0, x, rows_now, false), rows(1, y, rows_now, true)};
    return dispatch;
  };
  const auto kind = static_cast<Probe>(static_cast<int>(op.floats[0]));
  Dispatch dispatch = simple("probe_copy");
  switch (kind) {
    case kCopy: break;
    case kManyThreads: dispatch = simple("probe_copy", 1024); break;
    case kAbsentKernel: dispatch.kernel = "probe_absent"; break;
    case kAbsentFamily: dispatch.family = "absent"; break;
    case kBeyondBuffer: dispatch.bindings[0].bytes = 1ull << 40; break;
    case kStage:
    case kStageTooLarge:
      dispatch = simple("probe_stage");
      dispatch.threadgroup_bytes = kind == kStage ? 4096 : 40960;
      break;
    case kThroughScratch: {
      Dispatch first = dispatch;
      const uint64_t bytes = dispatch.bindings[0].bytes;
      first.bindings[1] = {1, kScratchBuffer, 256, bytes, true};
      dispatch.bindings[0] = {0, kScratchBuffer, 256, bytes, false};
      out.push_back(first);
      break;
    }
    case kToken:
      dispatch = simple("probe_token");
      dispatch.bindings[0] = {0, kInputBuffer, 0, 0, false};
      break;
    case kStray: dispatch = simple("probe_stray"); break;
    case kDivide: dispatch = simple("probe_divide"); break;
    case kNoGroups: {
      Dispatch none = dispatch;
      none.groups[1] = 0;
      out.push_back(none);
      break;
    }
  }
  out.push_back(dispatch);
}

std::vector<Dispatch> lower_all(const Plan &plan, uint32_t rows_now) {
  std::vector<Dispatch> out;
  for (uint32_t i = 0; i < plan.ops.size(); i++) {
    const Op &op = plan.ops[i];
    if (op.kind == kAdd) {
      const Tensor &y = *op.operands[3];
      out.push_back(launch("probe_add", y, rows_now, i));
      out.back().bindings = {rows(0, *op.operands[0], rows_now, false), rows(1, *op.operands[1], rows_now, false),
                             rows(2, y, rows_now, true)};
    } else if (op.kind == kEmbed) {
      const Tensor &table = *op.operands[0], &y = *op.operands[1];
      out.push_back(launch("probe_embed", y, rows_now, i));
      out.back().bindings = {{0, kInputBuffer, 0, 0, false},
                             {1, table.buffer, table.offset, table.max_bytes, false},
                             rows(2, y, rows_now, true)};
    } else if (op.kind == kSoftcap) {
      lower_probe(out, op, rows_now, i);
    } else {
      fail(MB_UNSUPPORTED, "The probe has no op of kind %u.", static_cast<unsigned>(op.kind));
    }
  }
  return out;
}

}  // namespace

Lowering::Lowering(const Plan &plan, const Limits &limits) : plan_(plan), limits_(limits) {
  for (const Op &op : plan.ops) {
    if (op.kind == kSoftcap && op.floats[0] == kThroughScratch) scratch_bytes_ = kScratchBytes;
  }
}

Lowering::Shape Lowering::shape(const Input &input) const {
  Shape shape{};
  shape.rows = input.header.rows;
  return shape;
}

std::vector<Dispatch> Lowering::lower(const Shape &shape) const { return lower_all(plan_, shape.rows); }

}  // namespace mb::gpu
