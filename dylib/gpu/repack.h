// repack.h: weights in blocks of GGUF, put into the layout of the kernels when a pass is compiled: a bit stream of codes for each
// row, as affine ones have it, with the scales behind all of them. Nothing is rounded. A weight is repacked once for all passes
// that are alive; its bytes must not change while one is. Codes are unpacked by the CPU device's kernels: they read every block
// format and are compared with the oracle, and a second reader here would be one more place for errors.
//
// Of a mapped file with such weights, the others are copied too, so that the GPU needs none of the file's own bytes.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "../device.h"

namespace mb::gpu {

class Repacked {
 public:
  using Create = std::function<std::shared_ptr<Buffer>(uint64_t bytes)>;

  Repacked(Create create, Memory &memory) : create_(std::move(create)), memory_(memory) {}

  // Gives each such weight of the plan its new place, in buffers that are added to the plan. Of q4_1 and q5_1 it makes affine
  // weights; the others keep their format and get `scales` and `biases` as shaders/weights.h reads them. Returns the bytes of the
  // new places.
  uint64_t repack(Plan &plan);

 private:
  struct Entry {
    std::weak_ptr<Buffer> source, result;
    uint64_t offset;
    Format format;
  };

  using Fill = std::function<void(Buffer &source, Buffer &result)>;

  // The new place of a weight, from an earlier call or filled now.
  std::shared_ptr<Buffer> result_of(const Plan &plan, const Tensor &tensor, uint64_t bytes, const Fill &fill);

  const Create create_;
  Memory &memory_;
  std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace mb::gpu
