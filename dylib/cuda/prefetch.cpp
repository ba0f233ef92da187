#include "prefetch.h"

#include <algorithm>

namespace mb::cuda {

namespace {

constexpr uint64_t kLeastPortion = 1 << 20;
constexpr unsigned kThreads = 32;
constexpr uint64_t kPiece = 8192;  // bytes that a thread asks for
constexpr size_t kRanges = 16;     // of a node

// No .metal source: Metal has no such request, and nothing to test but that it is made. Thread i of row y of the grid asks for
// piece i of range y.
constexpr const char *kPtx = R"(// kernel prefetch threads 32 arguments p0:256
.version 8.0
.target sm_90
.address_size 64
.visible .entry prefetch(.param .align 8 .b8 ranges[256])
.maxntid 32, 1, 1
{
  .reg .pred %none;
  .reg .b32 %thread, %group, %row, %size;
  .reg .b64 %range, %address, %bytes, %offset, %at;
  mov.u32 %row, %ctaid.y;
  mul.wide.u32 %offset, %row, 16;
  mov.u64 %range, ranges;
  add.u64 %range, %range, %offset;
  ld.param.u64 %address, [%range];
  ld.param.u64 %bytes, [%range + 8];
  mov.u32 %thread, %tid.x;
  mov.u32 %group, %ctaid.x;
  mad.lo.u32 %thread, %group, 32, %thread;
  mul.wide.u32 %offset, %thread, 8192;
  setp.ge.u64 %none, %offset, %bytes;
  @%none ret;
  sub.u64 %bytes, %bytes, %offset;
  min.u64 %bytes, %bytes, 8192;
  cvt.u32.u64 %size, %bytes;
  add.u64 %at, %address, %offset;
  cp.async.bulk.prefetch.L2.global [%at], %size;
  ret;
}
)";

struct Ranges {
  Range range[kRanges];
};
static_assert(sizeof(Ranges) == 256, "as in the kernel");

}  // namespace

void Window::reads(const Range &range) {
  const uint64_t begin = (range.address + 15) / 16 * 16, end = (range.address + range.bytes) / 16 * 16;
  if (end > begin) ahead_.push_back({begin, end - begin});
}

std::vector<Range> Window::next() {
  std::vector<Range> portion;
  if (room_ < kLeastPortion) return portion;
  while (first_ < ahead_.size() && room_ >= 16) {
    Range &range = ahead_[first_];
    const uint64_t bytes = std::min(range.bytes, room_ / 16 * 16);
    portion.push_back({range.address, bytes});
    range = {range.address + bytes, range.bytes - bytes};
    room_ -= bytes;
    if (range.bytes == 0) first_++;
  }
  return portion;
}

Prefetcher::Prefetcher(std::shared_ptr<Context> context) : context_(std::move(context)) {
  context_->check(driver().cuModuleLoadDataEx(&module_, kPtx, 0, nullptr, nullptr), "Loading the kernel that fetches weights ahead");
  context_->check(driver().cuModuleGetFunction(&function_, module_, "prefetch"), "Finding the kernel that fetches weights ahead");
}

Prefetcher::~Prefetcher() {
  if (driver().cuCtxSetCurrent(context_->handle) == kSuccess) driver().cuModuleUnload(module_);
}

void Prefetcher::add(GraphHandle graph, NodeHandle after, const std::vector<Range> &ranges) const {
  for (size_t first = 0; first < ranges.size(); first += kRanges) {
    const size_t count = std::min(kRanges, ranges.size() - first);
    Ranges argument{};
    uint64_t largest = 0;
    for (size_t i = 0; i < count; i++) {
      argument.range[i] = ranges[first + i];
      largest = std::max(largest, ranges[first + i].bytes);
    }
    void *arguments[] = {&argument};
    KernelNode params{};
    params.function = function_;
    params.groups[0] = static_cast<unsigned>((largest + kThreads * kPiece - 1) / (kThreads * kPiece));
    params.groups[1] = static_cast<unsigned>(count);
    params.groups[2] = 1;
    params.threads[0] = kThreads, params.threads[1] = params.threads[2] = 1;
    params.arguments = arguments;
    NodeHandle node = nullptr;
    context_->check(driver().cuGraphAddKernelNode(&node, graph, &after, 1, &params), "Building a command graph");
  }
}

}  // namespace mb::cuda
