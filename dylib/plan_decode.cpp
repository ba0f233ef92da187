// plan_decode.cpp: from the bytes of a plan to tensors bound to buffers. Every number in them is untrusted.
#include <cmath>
#include <cstring>

#include "plan_check.h"

namespace mb {

namespace {

using ull = unsigned long long;

constexpr uint64_t kMaxSymbol = 1u << 30;     // rows, sequences and page entries are 32-bit in an input block
constexpr uint64_t kMaxExtent = 1ull << 40;   // of one dimension
constexpr uint32_t kMaxGroups = 16;           // KV page groups
constexpr uint32_t kMaxVocabulary = 1u << 28;
constexpr uint32_t kMaxOutputs = 32;          // bits of an output mask
constexpr uint32_t kKnownFlags = kPlanExact | kPlanCheckFinite | kPlanInPlace;

const FormatTraits kFormats[] = {
    {kF32, "f32", 4, 4, 0, 0},         {kF16, "f16", 2, 2, 0, 0},         {kBF16, "bf16", 2, 2, 0, 0},
    {kU32, "u32", 4, 4, 0, 0},         {kI8, "i8", 1, 1, 0, 0},           {kAffine, "affine", 0, 4, 0, 0},
    {kMxfp4, "mxfp4", 0, 4, 0, 0},     {kMxfp8, "mxfp8", 0, 4, 0, 0},     {kNvfp4, "nvfp4", 0, 4, 0, 0},
    {kQ4_0, "q4_0", 0, 2, 32, 18},     {kQ4_1, "q4_1", 0, 2, 32, 20},     {kQ5_0, "q5_0", 0, 2, 32, 22},
    {kQ5_1, "q5_1", 0, 2, 32, 24},     {kQ8_0, "q8_0", 0, 2, 32, 34},     {kQ2K, "q2_k", 0, 2, 256, 84},
    {kQ3K, "q3_k", 0, 2, 256, 110},    {kQ4K, "q4_k", 0, 2, 256, 144},    {kQ5K, "q5_k", 0, 2, 256, 176},
    {kQ6K, "q6_k", 0, 2, 256, 210},    {kIq4Nl, "iq4_nl", 0, 2, 32, 18},  {kIq4Xs, "iq4_xs", 0, 2, 256, 136},
};

// Takes records off the front of the plan. The plan's address need not be aligned.
class Reader {
 public:
  Reader(const void *bytes, uint64_t size) : next_(static_cast<const uint8_t *>(bytes)), left_(size) {}

  template <class Record>
  Record take(const char *what) {
    if (left_ < sizeof(Record)) fail(MB_INVALID_PLAN, "the plan ends inside %s", what);
    Record record;
    memcpy(&record, next_, sizeof record);
    next_ += sizeof record;
    left_ -= sizeof record;
    return record;
  }

  uint64_t left() const { return left_; }

 private:
  const uint8_t *next_;
  uint64_t left_;
};

void expect_zero(uint32_t value, const char *record, uint64_t index) {
  if (value != 0) fail(MB_INVALID_PLAN, "%s %llu: a reserved field is %u instead of 0", record, ull(index), value);
}

// Bytes of one row of `columns` elements.
uint64_t row_bytes(const TensorRecord &record, uint64_t index, uint64_t columns) {
  const FormatTraits &traits = *format_traits(record.format);
  if (traits.element_bytes > 0) return columns * traits.element_bytes;  // columns is at most kMaxExtent
  if (traits.block > 0) {
    if (columns % traits.block != 0) {
      fail(MB_INVALID_PLAN, "tensor %llu: %llu columns are no multiple of the %u of a block of %s", ull(index), ull(columns),
           traits.block, traits.name);
    }
    return columns / traits.block * traits.block_bytes;
  }
  if (columns % record.group != 0) {
    fail(MB_INVALID_PLAN, "tensor %llu: %llu columns are no multiple of its group of %u (%s)", ull(index), ull(columns),
         record.group, traits.name);
  }
  const uint32_t bits = record.format == kAffine ? record.bits : record.format == kMxfp8 ? 8 : 4;
  return columns * bits / 8;  // groups are multiples of 16 elements, so a row ends with a whole word
}

// The parameters that belong to the format: bits, group, scales and biases.
void check_quantisation(const TensorRecord &record, uint64_t index) {
  uint32_t group = 0;
  bool bits_known = record.bits == 0, group_known;
  switch (record.format) {
    case kAffine:
      bits_known = record.bits == 2 || record.bits == 3 || record.bits == 4 || record.bits == 5 || record.bits == 6 ||
                   record.bits == 8;
      group_known = record.group == 32 || record.group == 64 || record.group == 128;
      break;
    case kMxfp4:
    case kMxfp8:
      group = 32;
      group_known = record.group == group;
      break;
    case kNvfp4:
      group = 16;
      group_known = record.group == group;
      break;
    default:
      group_known = record.group == 0;
  }
  const char *name = format_traits(record.format)->name;
  if (!bits_known) fail(MB_INVALID_PLAN, "tensor %llu: %s has no variant of %u bits", ull(index), name, record.bits);
  if (!group_known) fail(MB_INVALID_PLAN, "tensor %llu: %s has no group of %u", ull(index), name, record.group);
  const FormatTraits &traits = *format_traits(record.format);
  const bool scaled = traits.element_bytes == 0 && traits.block == 0;
  if (scaled != (record.scales != kNone) || (record.format == kAffine) != (record.biases != kNone)) {
    fail(MB_INVALID_PLAN, "tensor %llu: the scales or biases do not fit the format %s", ull(index), name);
  }
}

// Checks dims and returns the bytes that the tensor takes with every symbol at its maximum.
uint64_t check_extents(const TensorRecord &record, uint64_t index, const uint64_t *symbol_max) {
  if (record.rank < 1 || record.rank > 5) fail(MB_INVALID_PLAN, "tensor %llu: rank %u", ull(index), record.rank);
  uint64_t rows = 1, columns = 0;
  for (uint32_t d = 0; d < 5; d++) {
    const int64_t dim = record.dims[d];
    if (d >= record.rank) {
      if (dim != 0) fail(MB_INVALID_PLAN, "tensor %llu: dimension %u lies beyond its rank", ull(index), d);
      continue;
    }
    uint64_t extent = static_cast<uint64_t>(dim);
    if (dim < 0) {
      if (d > 0) fail(MB_INVALID_PLAN, "tensor %llu: dimension %u is a symbol; only the first may be", ull(index), d);
      if (dim < -static_cast<int64_t>(kSymbolCount)) {
        fail(MB_INVALID_PLAN, "tensor %llu: there is no symbol %lld", ull(index), static_cast<long long>(-1 - dim));
      }
      extent = symbol_max[-1 - dim];
    }
    if (extent < 1 || extent > kMaxExtent) {
      fail(MB_INVALID_PLAN, "tensor %llu: dimension %u has extent %llu", ull(index), d, ull(extent));
    }
    if (d + 1 == record.rank) {
      columns = extent;
    } else if (__builtin_mul_overflow(rows, extent, &rows)) {
      fail(MB_INVALID_PLAN, "tensor %llu: its size overflows", ull(index));
    }
  }
  if (record.rank == 1 && record.dims[0] < 0 && format_traits(record.format)->element_bytes == 0) {
    fail(MB_INVALID_PLAN, "tensor %llu: a quantised row cannot have a symbol as its length", ull(index));
  }
  uint64_t bytes;
  if (__builtin_mul_overflow(rows, row_bytes(record, index, columns), &bytes)) {
    fail(MB_INVALID_PLAN, "tensor %llu: its size overflows", ull(index));
  }
  return bytes;
}

// Checks that the tensor lies inside its buffer, at an address that its format and the device allow.
void check_place(const Tensor &tensor, uint64_t index, const Buffer &buffer, uint64_t weight_alignment) {
  if (tensor.offset > buffer.size || tensor.max_bytes > buffer.size - tensor.offset) {
    fail(MB_INVALID_PLAN, "tensor %llu: %llu bytes at offset %llu are outside buffer %u of %llu bytes", ull(index),
         ull(tensor.max_bytes), ull(tensor.offset), tensor.buffer, ull(buffer.size));
  }
  uint64_t alignment = format_traits(tensor.format)->alignment;
  if (!buffer.writable && weight_alignment > alignment) alignment = weight_alignment;
  const uint64_t address = reinterpret_cast<uintptr_t>(buffer.host) + tensor.offset;
  if (address % alignment != 0) {
    fail(MB_INVALID_PLAN, "tensor %llu: offset %llu of buffer %u is not aligned to %llu bytes", ull(index),
         ull(tensor.offset), tensor.buffer, ull(alignment));
  }
}

// Connects a quantised tensor with its scales or biases: one per group of each row.
const Tensor *bind_companion(const Plan &plan, const Tensor &tensor, uint64_t index, uint32_t companion,
                             const char *name) {
  if (companion == kNone) return nullptr;
  if (companion >= plan.tensors.size()) {
    fail(MB_INVALID_PLAN, "tensor %llu: its %s are tensor %u of %zu", ull(index), name, companion,
         plan.tensors.size());
  }
  const Tensor &other = *plan.tensors[companion];
  const bool bytes = tensor.format != kAffine;  // e8m0 or e4m3 codes
  const bool fits = bytes ? other.format == kI8 : other.format == kF32 || other.format == kF16 || other.format == kBF16;
  bool same = other.rank == tensor.rank;
  for (uint32_t d = 0; same && d < tensor.rank; d++) {
    same = other.dims[d] == (d + 1 == tensor.rank ? tensor.dims[d] / tensor.group : tensor.dims[d]);
  }
  if (!fits || !same) {
    fail(MB_INVALID_PLAN, "tensor %llu (%s): its %s (tensor %u, %s) have the wrong format or shape", ull(index),
         format_traits(tensor.format)->name, name, companion, format_traits(other.format)->name);
  }
  return &other;
}

void decode_buffers(Plan &plan, Reader &reader, uint32_t count) {
  if (plan.buffers.size() != count) {
    fail(MB_INVALID_PLAN, "the plan has %u buffers but %zu were given", count, plan.buffers.size());
  }
  for (uint32_t i = 0; i < count; i++) {
    const auto record = reader.take<BufferRecord>("the buffer records");
    expect_zero(record.reserved, "buffer", i);
    if (record.writable > 1) fail(MB_INVALID_PLAN, "buffer %u: writable is %u", i, record.writable);
    if (record.writable == 1 && !plan.buffers[i]->writable) {
      fail(MB_INVALID_PLAN, "buffer %u is read-only but the plan writes into it", i);
    }
    if (record.min_bytes > plan.buffers[i]->size) {
      fail(MB_INVALID_PLAN, "buffer %u has %llu bytes but the plan needs %llu", i, ull(plan.buffers[i]->size),
           ull(record.min_bytes));
    }
    plan.buffer_writable.push_back(record.writable == 1);
  }
}

void decode_tensors(Plan &plan, Reader &reader, uint32_t count, uint64_t weight_alignment) {
  std::vector<TensorRecord> records;
  for (uint32_t i = 0; i < count; i++) {
    const auto record = reader.take<TensorRecord>("the tensor records");
    expect_zero(record.reserved, "tensor", i);
    if (format_traits(record.format) == nullptr) {
      fail(MB_INVALID_PLAN, "tensor %u: there is no format %u", i, record.format);
    }
    if (record.buffer >= plan.buffers.size()) {
      fail(MB_INVALID_PLAN, "tensor %u: it lies in buffer %u of %zu", i, record.buffer, plan.buffers.size());
    }
    check_quantisation(record, i);
    auto tensor = std::make_unique<Tensor>();
    tensor->format = static_cast<Format>(record.format);
    tensor->bits = record.bits;
    tensor->group = record.group;
    tensor->buffer = record.buffer;
    tensor->offset = record.offset;
    tensor->rank = record.rank;
    memcpy(tensor->dims, record.dims, sizeof tensor->dims);
    tensor->max_bytes = check_extents(record, i, plan.symbol_max);
    check_place(*tensor, i, *plan.buffers[record.buffer], weight_alignment);
    plan.tensors.push_back(std::move(tensor));
    records.push_back(record);
  }
  for (uint32_t i = 0; i < count; i++) {
    Tensor &tensor = *plan.tensors[i];
    tensor.scales = bind_companion(plan, tensor, i, records[i].scales, "scales");
    tensor.biases = bind_companion(plan, tensor, i, records[i].biases, "biases");
    if (tensor.biases != nullptr && tensor.biases->format != tensor.scales->format) {
      fail(MB_INVALID_PLAN, "tensor %u: its scales and biases differ in format", i);
    }
  }
}

void decode_ops(Plan &plan, Reader &reader, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    const auto record = reader.take<OpRecord>("the op records");
    expect_zero(record.reserved, "op", i);
    if (op_name(record.kind) == nullptr) fail(MB_INVALID_PLAN, "op %u: there is no kind %u", i, record.kind);
    Op op;
    op.kind = static_cast<OpKind>(record.kind);
    op.flags = record.flags;
    op.layer = record.layer;
    for (uint32_t slot = 0; slot < kMaxOperands; slot++) {
      const uint32_t tensor = record.operands[slot];
      if (tensor == kNone) continue;
      if (tensor >= plan.tensors.size()) {
        fail(MB_INVALID_PLAN, "op %u: operand %u is tensor %u of %zu", i, slot, tensor, plan.tensors.size());
      }
      op.operands[slot] = plan.tensors[tensor].get();
    }
    memcpy(op.ints, record.ints, sizeof op.ints);
    memcpy(op.floats, record.floats, sizeof op.floats);
    for (uint32_t f = 0; f < 8; f++) {
      if (!std::isfinite(op.floats[f])) fail(MB_INVALID_PLAN, "op %u: float %u is not finite", i, f);
    }
    check_op(plan, op, i);
    plan.ops.push_back(op);
  }
}

void decode_outputs(Plan &plan, Reader &reader, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    const auto record = reader.take<OutputRecord>("the output records");
    expect_zero(record.reserved, "output", i);
    if (record.tensor >= plan.tensors.size()) {
      fail(MB_INVALID_PLAN, "output %u is tensor %u of %zu", i, record.tensor, plan.tensors.size());
    }
    const Tensor &tensor = *plan.tensors[record.tensor];
    if (tensor.dims[0] >= 0) fail(MB_INVALID_PLAN, "output %u: its first dimension is not a symbol", i);
    plan.outputs.push_back(&tensor);
  }
}

}  // namespace

const FormatTraits *format_traits(uint32_t format) {
  for (const FormatTraits &traits : kFormats) {
    if (traits.format == format) return &traits;
  }
  return nullptr;
}

std::unique_ptr<Plan> decode_plan(const void *bytes, uint64_t size, std::vector<std::shared_ptr<Buffer>> buffers,
                                  uint64_t weight_alignment) {
  Reader reader(bytes, size);
  const auto header = reader.take<PlanHeader>("its header");
  if (header.magic != kPlanMagic) fail(MB_INVALID_PLAN, "these bytes are no plan: the magic is %08x", header.magic);
  if (header.version != kPlanVersion) {
    fail(MB_INVALID_PLAN, "the plan has version %u; this library reads %u", header.version, kPlanVersion);
  }
  if ((header.flags & ~kKnownFlags) != 0) fail(MB_INVALID_PLAN, "the plan has unknown flags %08x", header.flags);
  for (const uint32_t reserved : header.reserved) expect_zero(reserved, "header", 0);
  if (header.op_count == 0) fail(MB_INVALID_PLAN, "the plan has no ops");
  if (header.output_count > kMaxOutputs) fail(MB_INVALID_PLAN, "the plan has %u outputs", header.output_count);
  if (header.group_count > kMaxGroups) fail(MB_INVALID_PLAN, "the plan has %u page groups", header.group_count);
  if (header.vocabulary_size < 1 || header.vocabulary_size > kMaxVocabulary) {
    fail(MB_INVALID_PLAN, "the plan has a vocabulary of %u tokens", header.vocabulary_size);
  }
  // The counts are 32-bit, so these products cannot overflow. After this, records bound all that is allocated.
  const uint64_t records = kSymbolCount * sizeof(uint64_t) + header.buffer_count * uint64_t(sizeof(BufferRecord)) +
                           header.tensor_count * uint64_t(sizeof(TensorRecord)) +
                           header.op_count * uint64_t(sizeof(OpRecord)) +
                           header.output_count * uint64_t(sizeof(OutputRecord));
  if (records != reader.left()) {
    fail(MB_INVALID_PLAN, "the plan has %llu bytes of records but its header says %llu", ull(reader.left()),
         ull(records));
  }
  auto plan = std::make_unique<Plan>();
  plan->flags = header.flags;
  plan->group_count = header.group_count;
  plan->vocabulary_size = header.vocabulary_size;
  for (uint32_t s = 0; s < kSymbolCount; s++) {
    plan->symbol_max[s] = reader.take<uint64_t>("the symbols");
    const uint64_t least = s == kPages && header.group_count == 0 ? 0 : 1;
    if (plan->symbol_max[s] < least || plan->symbol_max[s] > kMaxSymbol) {
      fail(MB_INVALID_PLAN, "symbol %u has the maximum %llu", s, ull(plan->symbol_max[s]));
    }
  }
  plan->buffers = std::move(buffers);
  decode_buffers(*plan, reader, header.buffer_count);
  decode_tensors(*plan, reader, header.tensor_count, weight_alignment);
  decode_ops(*plan, reader, header.op_count);
  decode_outputs(*plan, reader, header.output_count);
  return plan;
}

}  // namespace mb
