// scratch.h: the device's own buffers: the input block of a run and the bytes that kernels use within an op. Runs on a device
// take turns, so all its passes share one buffer of each kind, as large as the pass that needs most.
#pragma once
#include <set>

#include "buffer.h"

namespace mb::metal {

class SharedScratch {
 public:
  SharedScratch(std::shared_ptr<Context> context, Memory &memory) : context_(std::move(context)), memory_(memory) {}

  // A pass reserves what it needs for its lifetime.
  void reserve(uint64_t bytes);
  void release(uint64_t bytes);
  struct Current {
    std::shared_ptr<MetalBuffer> buffer;  // has room for every reservation; null where nothing is reserved
    uint64_t generation;                  // another number for each buffer
  };
  // A run keeps the pointer while it uses the buffer.
  Current current();

 private:
  void set(std::shared_ptr<MetalBuffer> buffer);

  const std::shared_ptr<Context> context_;
  Memory &memory_;
  std::mutex mutex_;
  std::multiset<uint64_t> reserved_;
  std::shared_ptr<MetalBuffer> buffer_;
  uint64_t generation_ = 0;
};

}  // namespace mb::metal
