// prefetch.h: weights on their way into the GPU's L2 cache before the kernels that read them. A token is a chain of small kernels
// whose waits leave the memory idle; meanwhile the weights of the kernels to come are fetched, as far ahead as the cache holds.
// Nothing depends on whether, or when, that happens.
#pragma once
#include <vector>

#include "context.h"

namespace mb::cuda {

// Bytes of the GPU's memory: a multiple of 16 at a multiple of 16.
struct Range {
  uint64_t address, bytes;
};

// Cuts the weights of a chain of steps into portions: which bytes to fetch when step i is over, so that `window` bytes of what is
// still to be read are fetched or on their way at any time. Portions of less than 1 MiB wait for more.
class Window {
 public:
  explicit Window(uint64_t window) : room_(window) {}

  // Weights that the next step reads, in the order in which the steps come.
  void reads(const Range &range);
  // Of what was said to be read so far, `bytes` have been.
  void read(uint64_t bytes) { room_ += bytes; }
  // What to fetch now.
  std::vector<Range> next();

 private:
  std::vector<Range> ahead_;
  size_t first_ = 0;    // of ahead_, not yet fetched
  uint64_t room_;
};

class Prefetcher {
 public:
  explicit Prefetcher(std::shared_ptr<Context> context);
  ~Prefetcher();
  Prefetcher(const Prefetcher &) = delete;
  Prefetcher &operator=(const Prefetcher &) = delete;

  // Adds nodes to the graph that fetch the ranges once `after` is over.
  void add(GraphHandle graph, NodeHandle after, const std::vector<Range> &ranges) const;

 private:
  const std::shared_ptr<Context> context_;
  ModuleHandle module_ = nullptr;
  FunctionHandle function_ = nullptr;
};

}  // namespace mb::cuda
