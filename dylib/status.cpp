#include "status.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace mb {

namespace {

// The largest length up to `limit` (less than the text's own) at which no character of the text is cut in two.
uint64_t whole_characters(const char *text, uint64_t limit) {
  while (limit > 0 && (static_cast<uint8_t>(text[limit]) & 0xc0) == 0x80) limit--;
  return limit;
}

}  // namespace

void fail(mb_status status, const char *format, ...) {
  char text[2048];
  va_list arguments;
  va_start(arguments, format);
  const int length = vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (length >= static_cast<int>(sizeof text)) text[whole_characters(text, sizeof text - 2)] = 0;
  throw Error{status, text};
}

void put_error(char *err, uint64_t err_cap, const std::string &text) noexcept {
  if (err == nullptr || err_cap == 0) return;
  uint64_t length = text.size();
  if (length >= err_cap) length = whole_characters(text.data(), err_cap - 1);
  memcpy(err, text.data(), length);
  err[length] = 0;
}

}  // namespace mb
