#include "options.h"

#include <cstdio>
#include <cstdlib>

#include "../device.h"

namespace mb {

namespace {

constexpr long kMaxThreads = 256;

// Reads the few tokens that a flat object of strings and whole numbers is made of.
class Reader {
 public:
  explicit Reader(const std::string &text) : text_(text) {}

  bool take(char c) {
    blank();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    at_++;
    return true;
  }
  void expect(char c) {
    if (!take(c)) bad();
  }
  bool end() {
    blank();
    return at_ == text_.size();
  }
  std::string string() {
    expect('"');
    std::string value;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (text_[at_] == '\\' || static_cast<unsigned char>(text_[at_]) < 0x20) bad();  // no option needs an escape
      value += text_[at_++];
    }
    expect('"');
    return value;
  }
  long number() {
    blank();
    const size_t start = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') at_++;
    if (at_ == start || at_ - start > 9) bad();
    return strtol(text_.c_str() + start, nullptr, 10);
  }
  [[noreturn]] void bad() {
    fail(MB_INVALID_ARGUMENT, "The options of the cpu device are not a JSON object of \"threads\" and \"level\": %.80s",
         text_.c_str());
  }

 private:
  void blank() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) at_++;
  }
  const std::string &text_;
  size_t at_ = 0;
};

}  // namespace

CpuOptions parse_cpu_options(const std::string &text) {
  CpuOptions options;
  Reader reader(text);
  if (reader.end()) return options;
  reader.expect('{');
  if (!reader.take('}')) {
    do {
      const std::string key = reader.string();
      reader.expect(':');
      if (key == "threads") {
        const long threads = reader.number();
        if (threads > kMaxThreads) {
          fail(MB_INVALID_ARGUMENT, "threads is %ld; the cpu device takes at most %ld.", threads, kMaxThreads);
        }
        options.threads = static_cast<int>(threads);
      } else if (key == "level") {
        options.level = reader.string();
        if (options.level.empty()) fail(MB_INVALID_ARGUMENT, "level is empty; leave it out for the best of this CPU.");
      } else {
        fail(MB_INVALID_ARGUMENT, "The cpu device has no option \"%.40s\"; it knows threads and level.", key.c_str());
      }
    } while (reader.take(','));
    reader.expect('}');
  }
  if (!reader.end()) reader.bad();
  return options;
}

std::string json_text(const std::string &text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out + '"';
}

}  // namespace mb
