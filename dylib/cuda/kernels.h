// kernels.h: from a kernel's name to a function of the driver. Each kernel is a module of its own: a PTX text of the folder that
// dylib/ptx/build.ts wrote, which the driver compiles for the GPU and keeps in its disk cache.
#pragma once
#include <atomic>
#include <map>
#include <vector>

#include "context.h"

namespace mb::cuda {

using gpu::KernelName;

struct Kernel {
  // One parameter, in the order in which the function takes them.
  struct Argument {
    enum Kind { kBuffer, kBytes, kThreadgroup } kind;  // an address, the value itself, an offset into dynamic memory
    uint32_t slot, bytes;
  };
  ModuleHandle module = nullptr;
  FunctionHandle function = nullptr;
  std::vector<Argument> arguments;
  uint32_t max_threads = 0;        // per threadgroup
  uint32_t threadgroup_bytes = 0;  // that the kernel declares itself
  uint32_t registers = 0, local_bytes = 0;  // per thread
};

class Kernels {
 public:
  // `folder` holds <architecture>/<kernel>.ptx; empty: there are none.
  Kernels(std::shared_ptr<Context> context, std::string folder);
  ~Kernels();
  Kernels(const Kernels &) = delete;
  Kernels &operator=(const Kernels &) = delete;

  // Makes the kernels ready, each once, on several threads. Throws the first failure; the others stay ready.
  void prepare(const std::vector<KernelName> &names);

  // Makes it ready if it is not. The kernel lives as long as this object.
  const Kernel &get(const KernelName &name);

  // JSON: how many kernels were asked for and are ready (to be watched while a plan is compiled), and how long that took.
  std::string info() const;

 private:
  std::unique_ptr<Kernel> load(const KernelName &name) const;

  const std::shared_ptr<Context> context_;
  const std::string folder_;
  std::mutex preparing_;      // one prepare() at a time
  mutable std::mutex mutex_;  // of kernels_
  std::map<KernelName, std::unique_ptr<Kernel>> kernels_;
  std::atomic<uint64_t> wanted_{0}, nanoseconds_{0};
};

}  // namespace mb::cuda
