// graph.h: a list of dispatches made ready for the GPU, and the command graph that replays it.
#pragma once
#include <vector>

#include "buffer.h"
#include "kernels.h"

namespace mb::cuda {

// One dispatch with its function, its addresses and the steps that it must follow.
struct Step {
  const Kernel *kernel;
  unsigned groups[3], threads[3];
  unsigned threadgroup_bytes;
  std::vector<uint64_t> addresses;  // one for each buffer argument, in the order of the kernel's arguments
  std::vector<uint8_t> params;
  std::vector<size_t> after;        // earlier steps
  uint32_t op;                      // index in the plan
};

// The buffers that dispatches name by gpu::kInputBuffer and gpu::kScratchBuffer.
struct OwnBuffers {
  CudaBuffer *input, *scratch;  // scratch may be null
};

// Checks each dispatch against its kernel and buffers; throws Error(MB_UNSUPPORTED) where this GPU's kernel allows less than the
// dispatch asks for. Dispatches of no threadgroups are left out.
std::vector<Step> make_steps(const Plan &plan, const std::vector<gpu::Dispatch> &dispatches, const OwnBuffers &own,
                             const Context &context, Kernels &kernels);

// The steps [begin, end) as a graph of the driver, instantiated. Steps that do not depend on each other may run at once. The
// arguments are fixed in it; what the buffers hold is not.
class Graph {
 public:
  enum class Order {
    kAsNeeded,  // a step starts when those that it follows are over
    kEarly,     // a step starts while the latest of those that it follows ends, where GPU and driver can
    kTimed,     // one after another, with a time stamp after each
  };
  Graph(std::shared_ptr<Context> context, const std::vector<Step> &steps, size_t begin, size_t end, Order order);
  ~Graph();
  Graph(const Graph &) = delete;
  Graph &operator=(const Graph &) = delete;

  void launch() const;             // into the context's stream
  // Of the last launch, which must be over.
  double seconds() const;
  std::vector<double> step_seconds() const;  // empty unless they are timed

  size_t size() const { return steps_; }

 private:
  void build(const std::vector<Step> &steps, size_t begin, size_t end, Order order);
  EventHandle new_event();
  void free();

  const std::shared_ptr<Context> context_;
  size_t steps_;
  GraphHandle graph_ = nullptr;
  ExecHandle exec_ = nullptr;
  std::vector<EventHandle> events_;  // at the start, after each step where they are timed, at the end
};

}  // namespace mb::cuda
