// iq4.h: the book of GGUF's iq4_nl and iq4_xs.
#pragma once
#include <cstdint>

namespace mb {

// What each of the sixteen codes stands for, and 128, the middle of the range of bytes.
alignas(16) constexpr uint8_t kIq4Codes[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

}  // namespace mb
