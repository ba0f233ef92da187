// pipelines.h: from a kernel's name to a pipeline. One library per family from the embedded sources, compiled when first asked
// for; pipelines are made in parallel.
#pragma once
#include <atomic>
#include <map>
#include <vector>

#include "archive.h"

namespace mb::metal {

using gpu::KernelName;

struct Pipeline {
  NS::SharedPtr<MTL::ComputePipelineState> state;
  uint32_t max_threads = 0;  // per threadgroup
};

class Pipelines {
 public:
  // `cache`: folder of the archives, empty for none.
  Pipelines(std::shared_ptr<Context> context, std::string cache);

  // Makes the kernels ready, each once, on several threads. Throws the first failure; the others stay ready.
  void prepare(const std::vector<KernelName> &kernels);

  // Makes it ready if it is not. The pipeline lives as long as this object.
  const Pipeline &get(const KernelName &kernel);

  // JSON: how many pipelines were asked for and are ready (to be watched while a plan is compiled), and how they were made.
  std::string info() const;

 private:
  struct Family {
    std::mutex mutex;
    NS::SharedPtr<MTL::Library> library;
    std::unique_ptr<Archive> archive;
    std::atomic<Archive *> shown{nullptr};  // the archive, for info(), which does not wait for a compiler
  };

  Family &family(const std::string &name);
  void load(Family &family, const std::string &name);
  std::unique_ptr<Pipeline> make(const KernelName &kernel);

  const std::shared_ptr<Context> context_;
  const std::string cache_;
  std::mutex preparing_;      // one prepare() at a time
  mutable std::mutex mutex_;  // of the maps
  std::map<std::string, std::unique_ptr<Family>> families_;
  std::map<KernelName, std::unique_ptr<Pipeline>> pipelines_;
  std::atomic<uint64_t> wanted_{0}, from_archive_{0}, libraries_{0}, nanoseconds_{0};
};

}  // namespace mb::metal
