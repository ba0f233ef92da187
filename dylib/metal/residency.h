// residency.h: keeps the device's buffers resident between command buffers where the system has residency sets (macOS 15).
// Without one the system makes the buffers of each command buffer resident anew.
#pragma once
#include <Metal/Metal.hpp>
#include <cstdint>
#include <mutex>
#include <string>

namespace mb::metal {

class Residency {
 public:
  // Without a set where the system has none. `limit` (bytes): buffers beyond it stay out, since a set that the GPU
  // cannot hold makes every command buffer fail.
  Residency(MTL::Device &device, MTL::CommandQueue &queue, uint64_t limit);
  ~Residency();
  Residency(const Residency &) = delete;
  Residency &operator=(const Residency &) = delete;

  // Returns whether the buffer went into the set; remove() only those.
  bool add(const MTL::Buffer &buffer);
  void remove(const MTL::Buffer &buffer);
  // Makes the changes since the last call take effect.
  void commit();

  std::string info() const;  // JSON

 private:
  mutable std::mutex mutex_;
  NS::SharedPtr<MTL::ResidencySet> set_;
  const uint64_t limit_;
  uint64_t bytes_ = 0, left_out_ = 0;
  bool changed_ = false, refused_ = false;
};

}  // namespace mb::metal
