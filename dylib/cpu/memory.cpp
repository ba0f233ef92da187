#include "memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "../device.h"

namespace mb {

void *map_zeroed(uint64_t bytes) {
  constexpr uint64_t huge_page = 2 << 20;
  if (bytes >= 1ull << 47) {
    fail(MB_OUT_OF_MEMORY, "%llu bytes are more than an address space holds.", static_cast<unsigned long long>(bytes));
  }
  void *map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) {
    fail(MB_OUT_OF_MEMORY, "The system gives no %llu bytes: %s.", static_cast<unsigned long long>(bytes), strerror(errno));
  }
#ifdef MADV_HUGEPAGE
  // A large buffer is walked from end to end; with small pages the address translation costs a third of the bandwidth.
  if (bytes >= 4 * huge_page) madvise(map, bytes, MADV_HUGEPAGE);
#endif
  return map;
}

}  // namespace mb
