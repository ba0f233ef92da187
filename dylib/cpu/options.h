// options.h: the options text of mb_device_open("cpu").
#pragma once
#include <string>

namespace mb {

struct CpuOptions {
  int threads = 0;    // 0: all cores
  std::string level;  // empty: MARKBASE_CPU or the best of this CPU
};

// A flat JSON object with the keys "threads" and "level", or empty text. Throws Error(MB_INVALID_ARGUMENT).
CpuOptions parse_cpu_options(const std::string &text);

// A JSON string literal.
std::string json_text(const std::string &text);

}  // namespace mb
