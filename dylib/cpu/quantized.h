// quantized.h: rows of activations as int8 codes, in an op's shared scratch.
#pragma once
#include <vector>

#include "context.h"

namespace mb {

// The rows of one op for weights of one group size and order.
struct Quantized {
  int64_t group;
  Order order;
  std::vector<QuantizedRow> rows;
};

// Room for `rows` rows of that many columns.
Quantized take_quantized(Context &c, int64_t rows, int64_t columns, int64_t group, Order order);
// What take_quantized takes.
void need_quantized(ScratchNeed &need, const Kernels &k, int64_t rows, int64_t columns, int64_t group);

}  // namespace mb
