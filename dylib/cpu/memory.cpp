#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "../device.h"

namespace mb {

namespace {
constexpr uint64_t huge_page = 2 << 20;
}

void *map_zeroed(uint64_t bytes, uint64_t huge_from) {
  if (bytes >= 1ull << 47) {
    fail(MB_OUT_OF_MEMORY, "%llu bytes are more than an address space holds.", static_cast<unsigned long long>(bytes));
  }
  void *map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) {
    fail(MB_OUT_OF_MEMORY, "The system gives no %llu bytes: %s.", static_cast<unsigned long long>(bytes), strerror(errno));
  }
#ifdef MADV_HUGEPAGE
  // Where many megabytes are walked from end to end, small pages cost a third of the bandwidth in address translation.
  if (huge_from < bytes && bytes - huge_from >= 4 * huge_page) {
    madvise(static_cast<uint8_t *>(map) + huge_from, bytes - huge_from, MADV_HUGEPAGE);
  }
#else
  (void)huge_from;
#endif
  return map;
}

void advise_streamed(std::vector<AddressRange> ranges) {
#ifdef MADV_HUGEPAGE
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  std::sort(ranges.begin(), ranges.end(), [](const AddressRange &a, const AddressRange &b) { return a.first < b.first; });
  for (size_t i = 0; i < ranges.size();) {
    AddressRange all = ranges[i++];
    for (; i < ranges.size() && ranges[i].first < all.last + huge_page; i++) all.last = std::max(all.last, ranges[i].last);
    const uintptr_t first = all.first & ~(page - 1), last = all.last & ~(page - 1);
    if (last - first >= huge_page) madvise(reinterpret_cast<void *>(first), last - first, MADV_HUGEPAGE);  // a wish only
  }
#else
  (void)ranges;
#endif
}

void leave_pages(const uint8_t *first, uint64_t bytes) {
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), start = reinterpret_cast<uintptr_t>(first);
  const uintptr_t from = (start + page - 1) & ~(page - 1), to = (start + bytes) & ~(page - 1);
  if (to > from) madvise(reinterpret_cast<void *>(from), to - from, MADV_DONTNEED);  // a wish only
}

uint64_t memory_of_machine() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

uint64_t memory_of_process() {
  uint64_t most = memory_of_machine();
  if (FILE *file = fopen("/sys/fs/cgroup/memory.max", "r")) {
    unsigned long long limit;  // "max" is no number
    if (fscanf(file, "%llu", &limit) == 1 && limit < most) most = limit;
    fclose(file);
  }
  return most;
}

}  // namespace mb
