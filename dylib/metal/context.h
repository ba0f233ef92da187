// context.h: what the parts of the Metal device share, and the ownership rules of its Objective-C objects: an object from a
// new… or alloc call is held by NS::SharedPtr (TransferPtr), every other one lives in the autorelease pool of its scope.
#pragma once
#include <Foundation/Foundation.hpp>
#include <Metal/Metal.hpp>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "../device.h"
#include "../gpu/dispatch.h"
#include "residency.h"

namespace mb::metal {

// An autorelease pool for the length of a scope. Each function that another thread or the C ABI enters has one.
class PoolScope {
 public:
  PoolScope() : pool_(NS::AutoreleasePool::alloc()->init()) {}
  ~PoolScope() { pool_->release(); }
  PoolScope(const PoolScope &) = delete;
  PoolScope &operator=(const PoolScope &) = delete;

 private:
  NS::AutoreleasePool *pool_;
};

inline NS::String *ns_string(const std::string &text) {
  return NS::String::string(text.c_str(), NS::UTF8StringEncoding);
}

// What an NSError says; `error` may be null.
std::string error_text(const NS::Error *error);

// Whether the system is macOS `major` or later. Selectors that came later than macOS 13 are sent behind it only.
bool system_at_least(long major);

// The GPU and its queue.
struct Context {
  // Throws Error(MB_NO_DEVICE) where there is no GPU that the kernels run on.
  Context();

  NS::SharedPtr<MTL::Device> device;
  NS::SharedPtr<MTL::CommandQueue> queue;
  std::unique_ptr<Residency> residency;
  std::string name;            // of the GPU
  std::string system;          // version with the build number
  gpu::Limits limits;
  uint64_t max_buffer_bytes = 0;
  uint64_t working_set_bytes = 0;  // recommended most
};

}  // namespace mb::metal
