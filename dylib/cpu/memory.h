// memory.h: memory from the system, and what it is told about it.
#pragma once
#include <cstdint>
#include <vector>

namespace mb {

constexpr uint64_t kNoHugePages = UINT64_MAX;

// Zero-filled pages, committed when first touched; from byte `huge_from` on huge ones are asked for, if that is some megabytes. Throws
// Error(MB_OUT_OF_MEMORY). Free with munmap(pointer, bytes).
void *map_zeroed(uint64_t bytes, uint64_t huge_from);

struct AddressRange {
  uintptr_t first, last;  // `last` is behind the end
};

// Asks for huge pages where `ranges` of one mapped file lie, small gaps between them included. A file that is read from the disk after
// this is cached in such pages if its file system can; one that is cached already stays as it is. Contents do not change.
void advise_streamed(std::vector<AddressRange> ranges);

// Gives up the pages of a mapped file that lie within; who reads there gets them again.
void leave_pages(const uint8_t *first, uint64_t bytes);

uint64_t memory_of_machine();  // bytes

// Bytes of memory that this process may have at most: the machine's, or what its control group allows.
uint64_t memory_of_process();

}  // namespace mb
