// lower.cpp: the table op → lowering function, and what all of them share.
#include "lower.h"

#include <algorithm>

#include "../plan_check.h"

namespace mb::gpu {
namespace {

struct Row {
  OpKind kind;
  void (*lower)(Emitter &, const Op &);
};

constexpr Row kTable[] = {
    {kEmbed, lower_embed},           {kPerLayerInputs, lower_per_layer_inputs},
    {kLinear, lower_linear},         {kAttention, lower_attention},
    {kGather, lower_gather},         {kCandidates, lower_candidates},
    {kRmsNorm, lower_rms_norm},      {kAdd, lower_add},
    {kGeluMul, lower_gelu_mul},      {kSoftcap, lower_softcap},
    {kRope, lower_rope},             {kKvWrite, lower_kv_write},
    {kAttend, lower_attend},         {kRoute, lower_route},
    {kTopK, lower_top_k},            {kExpertGateUp, lower_expert_gate_up},
    {kExpertDown, lower_expert_down}, {kExpertLinear, lower_expert_linear},
    {kExpertSum, lower_expert_sum},  {kAddNorms, lower_add_norms},
    {kDraftInput, lower_draft_input}, {kCentroidHead, lower_centroid_head},
    {kAddPositions, lower_add_positions}, {kPatchAttention, lower_patch_attention},
    {kPoolRows, lower_pool},         {kSubsample, lower_subsample},
    {kLocalAttention, lower_local_attention}, {kLightConv, lower_light_conv},
    {kLayerNorm, lower_layer_norm},
};

void check_formats(const Op &op) {
  for (const Tensor *t : op.operands) {
    // A lane takes two groups of an nvfp4 row at once.
    if (t == nullptr || t->format != kNvfp4 || t->dims[t->rank - 1] % 32 == 0) continue;
    fail(MB_UNSUPPORTED, "The GPU devices have no kernel of the op %s for nvfp4 rows of %lld columns, which 32 does not divide; "
         "use device \"cpu\".", op_name(op.kind), static_cast<long long>(t->dims[t->rank - 1]));
  }
}

void lower_op(Emitter &emitter, const Op &op) {
  for (const Row &row : kTable) {
    if (row.kind == op.kind) return row.lower(emitter, op);
  }
  fail(MB_UNSUPPORTED, "The GPU devices have no kernel for the op %s; use device \"cpu\".", op_name(op.kind));
}

uint64_t row_bytes(const Tensor &t) {
  uint64_t elements = 1;
  for (uint32_t i = 1; i < t.rank; i++) elements *= static_cast<uint64_t>(t.dims[i]);
  return elements * (t.format == kF16 || t.format == kBF16 ? 2 : 4);
}

}  // namespace

Launch &Launch::bind_rows(uint32_t slot, const Tensor &t, uint32_t first, uint32_t count, bool writes) {
  const uint64_t bytes = row_bytes(t);
  return bind(slot, t.buffer, t.offset + first * bytes, count * bytes, writes);
}

uint64_t Emitter::live(int64_t dimension) const {
  if (dimension >= 0) return static_cast<uint64_t>(dimension);
  switch (-1 - dimension) {
    case kRows: return shape.rows;
    case kOutRows: return shape.out_rows;
    case kSequences: return shape.sequences;
    default: return plan.symbol_max[kPages];
  }
}

Emitter::Rows Emitter::rows_of(const Tensor &activation) const {
  const bool gathered = activation.dims[0] == -1 - int64_t{kOutRows};
  const uint32_t decode = gathered ? shape.decode_out_rows : shape.decode_rows;
  const auto count = static_cast<uint32_t>(live(activation.dims[0]));
  return {count, all_decode_ ? count : std::min(decode, count)};
}

uint64_t Emitter::scratch(uint64_t bytes) {
  const uint64_t at = scratch_;
  scratch_ = round_up(at + bytes, 256);
  most_scratch_ = std::max(most_scratch_, scratch_);
  return at;
}

void Emitter::emit(Launch &launch) {
  dispatches_.push_back(launch.take());
  dispatches_.back().op = op_;
}

Lowering::Lowering(const Plan &plan, const Limits &limits) : plan_(plan), limits_(limits) {
  if (limits.max_threads < 256 || limits.threadgroup_bytes < 32 * 1024) {
    fail(MB_UNSUPPORTED, "The GPU kernels need threadgroups of 256 threads and 32 KB; this device has %u threads and %u bytes.",
         limits.max_threads, limits.threadgroup_bytes);
  }
  for (const Op &op : plan.ops) check_formats(op);
  // Scratch grows with either class of rows and with the context, so the largest shape of each class bounds every mix.
  const uint64_t *most = plan.symbol_max;
  Shape shape{};
  shape.rows = static_cast<uint32_t>(most[kRows]);
  shape.out_rows = static_cast<uint32_t>(most[kOutRows]);
  shape.sequences = static_cast<uint32_t>(most[kSequences]);
  shape.context_blocks = divide_up(most[kPages] * kPageTokens, 256);
  for (const bool decode : {false, true}) {
    shape.decode_rows = decode ? shape.rows : 0;
    shape.decode_out_rows = decode ? shape.out_rows : 0;
    Emitter emitter(plan, limits_, shape);
    for (uint32_t i = 0; i < plan.ops.size(); i++) {
      emitter.begin(i);
      lower_op(emitter, plan.ops[i]);
    }
    scratch_bytes_ += emitter.most_scratch();  // a mix of both classes needs at most the sum
  }
}

Lowering::Shape Lowering::shape(const Input &input) const {
  Shape shape{};
  shape.rows = input.header.rows;
  shape.out_rows = input.header.out_rows;
  shape.sequences = input.header.sequences;
  while (shape.decode_rows < shape.rows && input.row_class[shape.decode_rows] == 1) shape.decode_rows++;
  uint32_t last = 0;
  std::vector<bool> seen(shape.sequences);
  for (uint32_t row = 0; row < shape.rows; row++) {
    if (row < shape.decode_rows) {
      const uint32_t sequence = input.sequence[row];
      shape.verifies = shape.verifies || seen[sequence];
      seen[sequence] = true;
    }
    if (row >= shape.decode_rows && input.row_class[row] == 1) {
      fail(MB_INVALID_INPUT, "Row %u is of class decode but follows a prefill row; decode rows come first.", row);
    }
    last = std::max(last, input.position[row]);
  }
  while (shape.decode_out_rows < shape.out_rows && input.out_row[shape.decode_out_rows] < shape.decode_rows) {
    shape.decode_out_rows++;
  }
  shape.context_blocks = shape.rows == 0 ? 0 : last / 256 + 1;
  return shape;
}

std::vector<Dispatch> Lowering::lower(const Shape &shape) const {
  Emitter emitter(plan_, limits_, shape);
  for (uint32_t i = 0; i < plan_.ops.size(); i++) {
    emitter.begin(i);
    lower_op(emitter, plan_.ops[i]);
  }
  return emitter.take();
}

std::string weight_family_name(const Tensor &weight) {
  switch (weight.format) {
    case kF32: return "f32";
    case kF16: return "f16";
    case kBF16: return "bf16";
    case kAffine: return "affine" + std::to_string(weight.bits);
    default: break;
  }
  if (!is_plain(weight.format)) return format_traits(weight.format)->name;
  fail(MB_UNSUPPORTED, "The GPU devices have no kernels for weights in the format %s; use device \"cpu\".",
       format_traits(weight.format)->name);
}

std::string weight_format_name(const Tensor &weight) {
  const std::string family = weight_family_name(weight);
  return weight.format == kAffine ? family + "_" + weight_family_name(*weight.scales) : family;
}

uint32_t scalar_format(const Tensor &vector) {
  if (vector.format == kF32 || vector.format == kF16 || vector.format == kBF16) return vector.format;
  fail(MB_UNSUPPORTED, "A norm, bias or scalar in the format %s: the GPU kernels read f32, f16 and bf16.",
       format_traits(vector.format)->name);
}

}  // namespace mb::gpu
