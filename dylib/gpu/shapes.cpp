#include "shapes.h"

#include <algorithm>
#include <set>

#include "../options.h"
#include "../plan_check.h"

namespace mb::gpu {

namespace {

using Shape = Lowering::Shape;

constexpr uint32_t kDecodeRows = 16;  // up to here each number of decode rows may have kernels of its own

uint32_t at_most(uint64_t a, uint64_t b) { return static_cast<uint32_t>(std::min(a, b)); }

uint64_t most_blocks(const Plan &plan) { return std::max<uint64_t>(1, plan.symbol_max[kPages] * kPageTokens / 256); }

}  // namespace

Shape decode_shape(uint32_t rows, uint32_t out_rows, uint32_t sequences, uint32_t context_blocks) {
  Shape shape{};
  shape.rows = shape.decode_rows = rows;
  shape.out_rows = shape.decode_out_rows = out_rows;
  shape.sequences = sequences;
  shape.context_blocks = context_blocks;
  return shape;
}

Shape longest_decode_shape(const Plan &plan) {
  return decode_shape(1, at_most(1, plan.symbol_max[kOutRows]), 1, at_most(most_blocks(plan), UINT32_MAX));
}

std::vector<Shape> shapes_of(const Plan &plan) {
  const uint64_t rows = plan.symbol_max[kRows], out_rows = plan.symbol_max[kOutRows], seqs = plan.symbol_max[kSequences];
  const uint64_t most = most_blocks(plan);
  std::vector<Shape> shapes;
  for (const uint32_t blocks : std::set<uint32_t>{1, at_most(most, 2), at_most(most, UINT32_MAX)}) {
    std::set<uint32_t> decode{at_most(rows, UINT32_MAX)};
    for (uint32_t n = 1; n <= std::min<uint64_t>(rows, kDecodeRows); n++) decode.insert(n);
    for (const uint32_t n : decode) {
      shapes.push_back(decode_shape(n, at_most(n, out_rows), at_most(n, seqs), blocks));
      Shape verify = decode_shape(n, at_most(n, out_rows), 1, blocks);
      verify.verifies = n > 1;
      shapes.push_back(verify);
      Shape prompt = decode_shape(n, at_most(1, out_rows), 1, blocks);
      prompt.decode_rows = prompt.decode_out_rows = 0;
      shapes.push_back(prompt);
    }
  }
  return shapes;
}

std::vector<KernelName> kernels_of(const Lowering &lowering, const std::vector<Shape> &shapes) {
  std::set<KernelName> kernels;
  for (const Shape &shape : shapes) {
    for (const Dispatch &dispatch : lowering.lower(shape)) kernels.insert({dispatch.family, dispatch.kernel});
  }
  return {kernels.begin(), kernels.end()};
}

Block block_of(const Plan &plan, const Input &input) {
  const uint64_t mask_words = (uint64_t{plan.vocabulary_size} + 31) / 32;
  const uint32_t *end = input.mask + input.header.masks * mask_words;
  if (input.soft_row != nullptr) end = input.soft_row + input.header.rows;
  if (input.block_last != nullptr) end = input.block_last + input.header.rows;
  return {reinterpret_cast<const uint8_t *>(input.token) - sizeof(InputHeader),
          sizeof(InputHeader) + static_cast<uint64_t>(end - input.token) * sizeof(uint32_t)};
}

std::string kernels_json(const Plan &plan, const std::vector<Dispatch> &dispatches, const std::vector<double> &seconds) {
  std::string text = "[";
  size_t at = 0;
  for (uint32_t op = 0; op < plan.ops.size(); op++) {
    std::string names;
    size_t count = 0;
    double sum = 0;
    for (; at < dispatches.size() && dispatches[at].op == op; at++, count++) {
      names += (names.empty() ? "" : " + ") + dispatches[at].kernel;
      if (at < seconds.size()) sum += seconds[at];
    }
    const Op &of = plan.ops[op];
    text += std::string(op == 0 ? "" : ",") + "{\"op\":\"" + op_name(of.kind) +
            "\",\"layer\":" + (of.layer == kNone ? "null" : std::to_string(of.layer)) + ",\"kernel\":" + json_text(names) +
            ",\"dispatches\":" + std::to_string(count);
    if (!seconds.empty()) text += ",\"seconds\":" + std::to_string(sum * 1e9) + "e-9";
    text += "}";
  }
  return text + "]";
}

}  // namespace mb::gpu
