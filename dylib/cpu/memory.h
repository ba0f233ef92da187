// memory.h: anonymous memory from the system.
#pragma once
#include <cstdint>

namespace mb {

// Zero-filled pages, committed when first touched, huge ones where they help. Throws Error(MB_OUT_OF_MEMORY).
// Free with munmap(pointer, bytes).
void *map_zeroed(uint64_t bytes);

}  // namespace mb
