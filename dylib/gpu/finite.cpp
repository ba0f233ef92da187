#include "finite.h"

#include <cstring>

#include "../plan_check.h"

namespace mb::gpu {

namespace {

// Operand slots of the f32 activations that an op writes; -1: none. KV pages are not looked at: an op that reads them
// shows what is wrong there.
struct Written {
  int slots[2];
};

Written written(OpKind kind) {
  switch (kind) {
    case kEmbed:
    case kGather:
    case kSoftcap:
    case kRope: return {{1, -1}};
    case kRmsNorm:
    case kGeluMul:
    case kAttend:
    case kDraftInput:
    case kExpertSum: return {{2, -1}};
    case kPerLayerInputs:
    case kAdd:
    case kTopK:
    case kExpertLinear:
    case kCandidates: return {{3, -1}};  // kCandidates: stats
    case kAddPositions:
    case kLightConv:
    case kLayerNorm: return {{3, -1}};
    case kPatchAttention:
    case kLocalAttention: return {{6, -1}};
    case kPoolRows:
    case kSubsample:
    case kAttention:
    case kExpertDown:
    case kAddNorms: return {{4, -1}};
    case kRoute:
    case kExpertGateUp:
    case kCentroidHead: return {{5, -1}};
    case kLinear: return {{4, 13}};
    case kKvWrite: return {{-1, -1}};
  }
  return {{-1, -1}};
}

bool finite(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (bits & 0x7f800000u) != 0x7f800000u;
}

}  // namespace

void check_finite(const Plan &plan, const Op &op, const Input &input) {
  for (const int slot : written(op.kind).slots) {
    const Tensor *tensor = slot < 0 ? nullptr : op.operands[slot];
    if (tensor == nullptr || tensor->format != kF32) continue;
    const int64_t first = tensor->dims[0];
    const uint64_t most = first >= 0 ? static_cast<uint64_t>(first) : plan.symbol_max[-1 - first];
    const uint64_t rows = first >= 0 ? most : input.symbol(static_cast<uint32_t>(-1 - first));
    const uint64_t row_bytes = tensor->max_bytes / most;
    std::vector<float> row(row_bytes / sizeof(float));
    for (uint64_t r = 0; r < rows; r++) {
      plan.buffers[tensor->buffer]->read(tensor->offset + r * row_bytes, row.data(), row_bytes);
      for (const float value : row) {
        if (finite(value)) continue;
        const std::string layer = op.layer == kNone ? "" : " of layer " + std::to_string(op.layer);
        fail(MB_NOT_FINITE, "%s%s wrote NaN or Inf into row %llu; it is the first op of the plan that did.", op_name(op.kind),
             layer.c_str(), static_cast<unsigned long long>(r));
      }
    }
  }
}

}  // namespace mb::gpu
