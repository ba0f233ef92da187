#include "graph.h"

#include <algorithm>

#include "../gpu/hazards.h"

namespace mb::cuda {

namespace {

using ull = unsigned long long;

CudaBuffer *find(const Plan &plan, const OwnBuffers &own, uint32_t buffer) {
  if (buffer == gpu::kInputBuffer) return own.input;
  if (buffer == gpu::kScratchBuffer) return own.scratch;
  return buffer < plan.buffers.size() ? static_cast<CudaBuffer *>(plan.buffers[buffer].get()) : nullptr;
}

// A list that does not fit its buffers or kernels is a fault of this library, found here before the GPU runs it.
CudaBuffer &checked(const gpu::Dispatch &dispatch, const gpu::Binding &binding, CudaBuffer *buffer) {
  const char *kernel = dispatch.kernel.c_str();
  if (buffer == nullptr) {
    fail(MB_INTERNAL, "%s binds buffer %u at slot %u, which is not there.", kernel, binding.buffer, binding.slot);
  }
  if (binding.offset > buffer->size || binding.bytes > buffer->size - binding.offset) {
    fail(MB_INTERNAL, "%s binds bytes [%llu, %llu + %llu) of a buffer of %llu at slot %u.", kernel, ull(binding.offset),
         ull(binding.offset), ull(binding.bytes), ull(buffer->size), binding.slot);
  }
  if (binding.writes && !buffer->writable) fail(MB_INTERNAL, "%s writes to a mapped file at slot %u.", kernel, binding.slot);
  return *buffer;
}

void check_threads(const gpu::Dispatch &dispatch, const Kernel &kernel, const Context &context) {
  const char *name = dispatch.kernel.c_str();
  uint64_t threads = 1;
  for (const uint32_t n : dispatch.threads) threads *= n;
  if (threads == 0) fail(MB_INTERNAL, "%s has no threads.", name);
  if (threads > kernel.max_threads) {
    fail(MB_UNSUPPORTED,
         "The kernel %s needs %llu threads a threadgroup; on the GPU %s it takes %u at most. Use device \"cpu\".", name,
         ull(threads), context.name.c_str(), kernel.max_threads);
  }
  const uint64_t bytes = uint64_t{dispatch.threadgroup_bytes} + kernel.threadgroup_bytes;
  if (bytes > context.limits.threadgroup_bytes && bytes <= context.limits.most_threadgroup_bytes) {
    const auto most = static_cast<int>(context.limits.most_threadgroup_bytes - kernel.threadgroup_bytes);
    context.check(driver().cuFuncSetAttribute(kernel.function, kFunctionMostDynamicSharedBytes, most),
                  "Allowing a kernel its threadgroup memory");
  }
  if (bytes > context.limits.most_threadgroup_bytes) {
    fail(MB_UNSUPPORTED,
         "The kernel %s needs %llu bytes of threadgroup memory; the GPU %s has %u. Use device \"cpu\".", name, ull(bytes),
         context.name.c_str(), context.limits.most_threadgroup_bytes);
  }
}

// The addresses in the order of the kernel's arguments; every argument must be there.
void match_arguments(const gpu::Dispatch &dispatch, const Kernel &kernel, const std::vector<std::pair<uint32_t, uint64_t>> &bound,
                     Step &step) {
  const char *name = dispatch.kernel.c_str();
  for (const Kernel::Argument &argument : kernel.arguments) {
    if (argument.kind == Kernel::Argument::kBuffer) {
      const auto found = std::find_if(bound.begin(), bound.end(), [&](const auto &b) { return b.first == argument.slot; });
      if (found == bound.end()) fail(MB_INTERNAL, "%s has nothing bound at slot %u.", name, argument.slot);
      step.addresses.push_back(found->second);
    } else if (argument.kind == Kernel::Argument::kBytes) {
      if (argument.slot != dispatch.params_slot || argument.bytes != dispatch.params.size()) {
        fail(MB_INTERNAL, "%s takes %u bytes of parameters at slot %u, not %zu at slot %u.", name, argument.bytes, argument.slot,
             dispatch.params.size(), dispatch.params_slot);
      }
    } else if (argument.slot != 0) {
      fail(MB_INTERNAL, "%s has threadgroup memory at slot %u; there is one slot, 0.", name, argument.slot);
    }
  }
}

}  // namespace

std::vector<Step> make_steps(const Plan &plan, const std::vector<gpu::Dispatch> &dispatches, const OwnBuffers &own,
                             const Context &context, Kernels &kernels) {
  std::vector<Step> steps;
  gpu::Dependencies dependencies;
  for (const gpu::Dispatch &dispatch : dispatches) {
    if (dispatch.groups[0] == 0 || dispatch.groups[1] == 0 || dispatch.groups[2] == 0) continue;
    const Kernel &kernel = kernels.get({dispatch.family, dispatch.kernel});
    check_threads(dispatch, kernel, context);
    Step step{};
    step.kernel = &kernel;
    std::copy(dispatch.groups, dispatch.groups + 3, step.groups);
    std::copy(dispatch.threads, dispatch.threads + 3, step.threads);
    step.threadgroup_bytes = dispatch.threadgroup_bytes;
    step.params = dispatch.params;
    step.op = dispatch.op;
    std::vector<gpu::Access> accesses;
    std::vector<std::pair<uint32_t, uint64_t>> bound;
    for (const gpu::Binding &binding : dispatch.bindings) {
      CudaBuffer &buffer = checked(dispatch, binding, find(plan, own, binding.buffer));
      bound.emplace_back(binding.slot, buffer.address() + binding.offset);
      // Nothing conflicts over what nobody writes. A buffer may stand for several plan buffers, so addresses tell.
      if (!buffer.writable || binding.buffer == gpu::kInputBuffer) continue;
      accesses.push_back({buffer.address(), binding.offset, binding.offset + binding.bytes, binding.writes});
    }
    match_arguments(dispatch, kernel, bound, step);
    step.after = dependencies.next(accesses);
    steps.push_back(std::move(step));
  }
  return steps;
}

Graph::Graph(std::shared_ptr<Context> context, const std::vector<Step> &steps, size_t begin, size_t end, Order order)
    : context_(std::move(context)), steps_(end - begin) {
  try {
    build(steps, begin, end, order);
  } catch (...) {
    free();
    throw;
  }
}

Graph::~Graph() {
  if (driver().cuCtxSetCurrent(context_->handle) == kSuccess) free();
}

void Graph::free() {
  const Driver &d = driver();
  if (exec_ != nullptr) d.cuGraphExecDestroy(exec_);
  if (graph_ != nullptr) d.cuGraphDestroy(graph_);
  for (const EventHandle event : events_) d.cuEventDestroy(event);
}

EventHandle Graph::new_event() {
  EventHandle event = nullptr;
  context_->check(driver().cuEventCreate(&event, kEventDefault), "Making an event");
  events_.push_back(event);
  return event;
}

void Graph::build(const std::vector<Step> &steps, size_t begin, size_t end, Order order) {
  const bool timed_steps = order == Order::kTimed;
  const Driver &d = driver();
  const char *what = "Building a command graph";
  context_->check(d.cuGraphCreate(&graph_, 0), what);
  // Time stamps are nodes of the graph, so that they hold the GPU's time alone.
  NodeHandle first = nullptr;
  context_->check(d.cuGraphAddEventRecordNode(&first, graph_, nullptr, 0, new_event()), what);
  std::vector<NodeHandle> nodes;
  std::vector<bool> followed(end - begin);
  NodeHandle latest = first;
  for (size_t i = begin; i < end; i++) {
    const Step &step = steps[i];
    std::vector<NodeHandle> after;
    for (const size_t earlier : step.after) {
      if (earlier < begin || timed_steps) continue;
      after.push_back(nodes[earlier - begin]);
      followed[earlier - begin] = true;
    }
    // Whoever waits for the kernel before it has waited for all that came before that, since every kernel waits before it ends.
    // Where it follows several, it starts early behind the latest of them.
    const bool early = order == Order::kEarly && context_->early_start && !after.empty();
    const NodeHandle before = early ? after.back() : nullptr;
    if (early) after.pop_back();
    else if (after.empty()) after.push_back(timed_steps ? latest : first);
    std::vector<void *> arguments;
    uint32_t dynamic_offset = 0;
    size_t next_address = 0;
    for (const Kernel::Argument &argument : step.kernel->arguments) {
      switch (argument.kind) {
        case Kernel::Argument::kBuffer:
          arguments.push_back(const_cast<uint64_t *>(&step.addresses[next_address++]));
          break;
        case Kernel::Argument::kBytes:
          arguments.push_back(const_cast<uint8_t *>(step.params.data()));
          break;
        case Kernel::Argument::kThreadgroup:
          arguments.push_back(&dynamic_offset);
          break;
      }
    }
    KernelNode params{};
    params.function = step.kernel->function;
    std::copy(step.groups, step.groups + 3, params.groups);
    std::copy(step.threads, step.threads + 3, params.threads);
    params.shared_bytes = step.threadgroup_bytes;
    params.arguments = arguments.data();
    NodeHandle node = nullptr;
    context_->check(d.cuGraphAddKernelNode(&node, graph_, after.data(), after.size(), &params), what);
    if (early) context_->check(d.cuGraphAddDependencies(graph_, &before, &node, &kEarlyEdge, 1), what);
    nodes.push_back(node);
    if (timed_steps) context_->check(d.cuGraphAddEventRecordNode(&latest, graph_, &node, 1, new_event()), what);
  }
  if (!timed_steps) {
    std::vector<NodeHandle> last;
    for (size_t i = 0; i < nodes.size(); i++) {
      if (!followed[i]) last.push_back(nodes[i]);
    }
    if (last.empty()) last.push_back(first);
    context_->check(d.cuGraphAddEventRecordNode(&latest, graph_, last.data(), last.size(), new_event()), what);
  }
  context_->check(d.cuGraphInstantiate(&exec_, graph_, 0), "Instantiating a command graph");
}

void Graph::launch() const { context_->check(driver().cuGraphLaunch(exec_, context_->stream), "Starting a run"); }

double Graph::seconds() const {
  float milliseconds = 0;
  context_->check(driver().cuEventElapsedTime(&milliseconds, events_.front(), events_.back()), "Reading the time of a run");
  return static_cast<double>(milliseconds) * 1e-3;
}

std::vector<double> Graph::step_seconds() const {
  std::vector<double> seconds;
  if (events_.size() != steps_ + 1) return seconds;
  for (size_t i = 0; i < steps_; i++) {
    float milliseconds = 0;
    context_->check(driver().cuEventElapsedTime(&milliseconds, events_[i], events_[i + 1]), "Reading the time of a step");
    seconds.push_back(static_cast<double>(milliseconds) * 1e-3);
  }
  return seconds;
}

}  // namespace mb::cuda
