// samples.h: what programs that run sample plans (tests/ffi/sample.ts) under sanitizers share.
#pragma once
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "plan.h"

namespace mb {

using Bytes = std::vector<uint8_t>;

inline Bytes load(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

template <class T>
T at(const Bytes &bytes, uint64_t offset) {
  T value;
  memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

template <class T>
void put(Bytes &bytes, uint64_t offset, T value) {
  memcpy(bytes.data() + offset, &value, sizeof value);
}

struct Random {
  uint32_t seed;
  uint32_t below(uint32_t n) { return (seed = seed * 1664525u + 1013904223u) / 7 % n; }
};

// A plan as the TypeScript side wrote it, with its weights for buffer 1 and an input block that it runs with.
struct Sample {
  Bytes plan, weights, input;

  // Reads `path`.plan, .weights and .input.
  explicit Sample(const std::string &path)
      : plan(load(path + ".plan")), weights(load(path + ".weights")), input(load(path + ".input")) {}

  uint64_t buffer_count() const { return at<PlanHeader>(plan, 0).buffer_count; }
  uint64_t buffer_bytes(uint64_t i) const { return at<BufferRecord>(plan, kBuffers + i * sizeof(BufferRecord)).min_bytes; }
  // Where output i of the plan lies in its buffer.
  uint64_t output_offset(uint64_t i) const {
    const auto header = at<PlanHeader>(plan, 0);
    const uint64_t tensors = kBuffers + header.buffer_count * sizeof(BufferRecord);
    const uint64_t outputs = tensors + header.tensor_count * sizeof(TensorRecord) + header.op_count * sizeof(OpRecord);
    const uint64_t tensor = at<OutputRecord>(plan, outputs + i * sizeof(OutputRecord)).tensor;
    return at<TensorRecord>(plan, tensors + tensor * sizeof(TensorRecord)).offset;
  }

 private:
  static constexpr uint64_t kBuffers = sizeof(PlanHeader) + kSymbolCount * sizeof(uint64_t);
};

}  // namespace mb
