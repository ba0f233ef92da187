#include "status.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace mb {

void fail(mb_status status, const char *format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  throw Error{status, text};
}

void put_error(char *err, uint64_t err_cap, const std::string &text) noexcept {
  if (err == nullptr || err_cap == 0) return;
  uint64_t length = text.size();
  if (length >= err_cap) {
    length = err_cap - 1;
    while (length > 0 && (static_cast<uint8_t>(text[length]) & 0xc0) == 0x80) length--;  // inside a character
  }
  memcpy(err, text.data(), length);
  err[length] = 0;
}

}  // namespace mb
