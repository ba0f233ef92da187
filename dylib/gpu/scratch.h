// scratch.h: a GPU device's own buffers: the input block of a run and the bytes that kernels use within an op. Runs on a device
// take turns, so all its passes share one buffer of each kind, as large as the pass that needs most.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <set>

#include "../device.h"

namespace mb::gpu {

template <class DeviceBuffer>
class SharedScratch {
 public:
  using Create = std::function<std::shared_ptr<DeviceBuffer>(uint64_t bytes)>;

  SharedScratch(Create create, Memory &memory) : create_(std::move(create)), memory_(memory) {}

  // A pass reserves what it needs for its lifetime.
  void reserve(uint64_t bytes) {
    if (bytes == 0) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!buffer_ || buffer_->size < bytes) set(create_(bytes));
    reserved_.insert(bytes);
  }

  void release(uint64_t bytes) {
    if (bytes == 0) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    reserved_.erase(reserved_.find(bytes));
    if (reserved_.empty()) set(nullptr);
  }

  struct Current {
    std::shared_ptr<DeviceBuffer> buffer;  // has room for every reservation; null where nothing is reserved
    uint64_t generation;                   // another number for each buffer
  };
  // A run keeps the pointer while it uses the buffer.
  Current current() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return {buffer_, generation_};
  }

 private:
  void set(std::shared_ptr<DeviceBuffer> buffer) {
    if (buffer_) memory_.scratch -= buffer_->size;
    buffer_ = std::move(buffer);
    generation_++;
    if (buffer_) memory_.scratch += buffer_->size;
    memory_.note_peak();
  }

  const Create create_;
  Memory &memory_;
  mutable std::mutex mutex_;
  std::multiset<uint64_t> reserved_;
  std::shared_ptr<DeviceBuffer> buffer_;
  uint64_t generation_ = 0;
};

}  // namespace mb::gpu
