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

// What a pass has reserved; given back at its end.
template <class DeviceBuffer>
class Reservation {
 public:
  explicit Reservation(SharedScratch<DeviceBuffer> &scratch) : scratch_(scratch) {}
  ~Reservation() { scratch_.release(bytes_); }
  Reservation(const Reservation &) = delete;
  Reservation &operator=(const Reservation &) = delete;

  // To that many bytes at least.
  void grow(uint64_t bytes) {
    if (bytes <= bytes_) return;
    scratch_.reserve(bytes);
    scratch_.release(bytes_);
    bytes_ = bytes;
  }
  // The same for the input of a run: in doublings, so that it seldom grows.
  void grow_for_input(uint64_t bytes) {
    constexpr uint64_t least = 65536;
    uint64_t room = bytes_ > 0 ? bytes_ : least;
    while (room < bytes) room *= 2;
    grow(room);
  }

  uint64_t bytes() const { return bytes_; }

 private:
  SharedScratch<DeviceBuffer> &scratch_;
  uint64_t bytes_ = 0;
};

}  // namespace mb::gpu
