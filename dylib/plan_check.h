// plan_check.h: what the two halves of the plan check share.
#pragma once
#include "device.h"

namespace mb {

// Names and sizes of a format's elements.
struct FormatTraits {
  Format format;
  const char *name;
  uint32_t element_bytes;  // 0: quantised, several elements share a byte or a word
  uint32_t alignment;      // bytes
  uint32_t block, block_bytes;  // columns and bytes of a block of GGUF; otherwise 0
};

// Null for a code that no format has.
const FormatTraits *format_traits(uint32_t format);

// Checks op `index` of the plan, whose tensors are decoded, against the contract of its kind: operands, formats,
// shapes, parameters, and that it writes nothing that it reads.
void check_op(const Plan &plan, const Op &op, size_t index);

// Name of an op kind as ops.ts spells it, null for an unknown one.
const char *op_name(uint32_t kind);

}  // namespace mb
