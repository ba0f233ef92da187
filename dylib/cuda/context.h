// context.h: the GPU, its primary context and the one stream of this device.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "../gpu/dispatch.h"
#include "driver.h"

namespace mb::cuda {

struct Context {
  // Opens GPU `ordinal`. Throws Error(MB_NO_DEVICE) where there is none or the kernels do not run on it. early_start:
  // where GPU and driver can, kernels start before those that they follow are over.
  Context(int ordinal, bool early_start);
  ~Context();
  Context(const Context &) = delete;
  Context &operator=(const Context &) = delete;

  // Makes the context current for the calling thread. Every function that another thread or the C ABI enters calls this
  // first. Throws Error(MB_DEVICE_LOST) after a failure that the driver does not recover from.
  void enter() const;

  // Throws an Error for a result other than success; `what` begins the text. An error that the GPU met while it worked
  // leaves the context unusable, so that from then on enter() throws it too.
  void check(Result result, const char *what) const;

  // Waits for the stream.
  void wait(const char *what) const;

  const DeviceOrdinal ordinal;
  ContextHandle handle = nullptr;
  StreamHandle stream = nullptr;
  std::string name;           // of the GPU
  std::string architecture;   // of the PTX that it takes, such as "sm_90"
  int driver_version = 0;     // 1000 · major + 10 · minor of CUDA
  uint64_t memory_bytes = 0;  // of the GPU
  uint32_t multiprocessors = 0, l2_bytes = 0;
  bool early_start = false;   // a kernel may start before the one that it follows is over
  gpu::Limits limits;

 private:
  mutable std::mutex mutex_;  // of lost_
  mutable std::string lost_;  // why the context is unusable; empty: it is fine
  mutable std::atomic<bool> is_lost_{false};
};

}  // namespace mb::cuda
