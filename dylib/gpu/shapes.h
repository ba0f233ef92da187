// shapes.h: what a pass of any GPU device needs to know of its plan's runs.
#pragma once
#include <string>
#include <vector>

#include "dispatch.h"

namespace mb::gpu {

// A run of `rows` decode rows.
Lowering::Shape decode_shape(uint32_t rows, uint32_t out_rows, uint32_t sequences, uint32_t context_blocks);

// One decode row at the end of the longest context: what mb_pass_info tells about.
Lowering::Shape longest_decode_shape(const Plan &plan);

// Shapes that between them use every kernel that the plan may need.
std::vector<Lowering::Shape> shapes_of(const Plan &plan);

// Every kernel that these shapes use, once.
std::vector<KernelName> kernels_of(const Lowering &lowering, const std::vector<Lowering::Shape> &shapes);

// The bytes of an input block.
struct Block {
  const uint8_t *bytes;
  uint64_t size;
};
Block block_of(const Plan &plan, const Input &input);

// JSON array of mb_pass_info: {op, layer, kernel, dispatches} of each op. Where `seconds` has a value for each dispatch, their sum
// is added as `seconds`.
std::string kernels_json(const Plan &plan, const std::vector<Dispatch> &dispatches, const std::vector<double> &seconds = {});

}  // namespace mb::gpu
