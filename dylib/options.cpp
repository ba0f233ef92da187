#include "options.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device.h"

namespace mb {

namespace {

void put_utf8(std::string &out, uint32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xc0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xe0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3f));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  }
}

class Reader {
 public:
  Reader(const std::string &text, const char *device) : text_(text), device_(device) {}

  bool end() {
    while (at_ < text_.size() && strchr(" \n\t\r", text_[at_]) != nullptr) at_++;
    return at_ == text_.size();
  }
  bool take(char c) {
    if (end() || text_[at_] != c) return false;
    at_++;
    return true;
  }
  void expect(char c) {
    if (!take(c)) bad();
  }

  std::string string() {
    expect('"');
    std::string value;
    for (;;) {
      const char c = next();
      if (c == '"') return value;
      if (static_cast<unsigned char>(c) < 0x20) bad();
      if (c == '\\') {
        escape(value);
      } else {
        value += c;
      }
    }
  }

  std::string number() {
    if (end()) bad();
    const size_t start = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') at_++;
    if (at_ == start || at_ - start > 18) bad();
    return text_.substr(start, at_ - start);
  }

  std::string value() { return !end() && text_[at_] == '"' ? string() : number(); }

  [[noreturn]] void bad() {
    fail(MB_INVALID_ARGUMENT, "The options of the %s device are not a JSON object of strings and whole numbers: %.200s",
         device_, text_.c_str());
  }

 private:
  char next() {
    if (at_ >= text_.size()) bad();
    return text_[at_++];
  }

  uint32_t unit() {
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) {
      const char c = next();
      const char *digits = "0123456789abcdef";
      const char *digit = strchr(digits, c >= 'A' && c <= 'F' ? c - 'A' + 'a' : c);
      if (digit == nullptr || *digit == 0) bad();
      value = value << 4 | static_cast<uint32_t>(digit - digits);
    }
    return value;
  }

  void escape(std::string &out) {
    const char c = next();
    const char *from = "\"\\/bfnrt";
    const char *found = strchr(from, c);
    if (c != 0 && found != nullptr) {
      out += "\"\\/\b\f\n\r\t"[found - from];
      return;
    }
    if (c != 'u') bad();
    const uint32_t first = unit();
    if (first < 0xd800 || first > 0xdfff) return put_utf8(out, first);
    if (first > 0xdbff || next() != '\\' || next() != 'u') bad();
    const uint32_t second = unit();
    if (second < 0xdc00 || second > 0xdfff) bad();
    put_utf8(out, 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00));
  }

  const std::string &text_;
  const char *device_;
  size_t at_ = 0;
};

}  // namespace

std::map<std::string, std::string> read_options(const std::string &text, const char *device,
                                                std::initializer_list<const char *> known) {
  std::map<std::string, std::string> options;
  Reader reader(text, device);
  if (reader.end()) return options;
  reader.expect('{');
  if (!reader.take('}')) {
    do {
      const std::string key = reader.string();
      std::string names;
      bool found = false;
      for (const char *name : known) {
        found = found || key == name;
        names += std::string(names.empty() ? "" : ", ") + name;
      }
      if (!found) {
        fail(MB_INVALID_ARGUMENT, "The %s device has no option \"%.40s\"; it knows: %s.", device, key.c_str(),
             names.c_str());
      }
      reader.expect(':');
      options[key] = reader.value();
    } while (reader.take(','));
    reader.expect('}');
  }
  if (!reader.end()) reader.bad();
  return options;
}

long whole_number(const std::string &text, long most, const char *device, const char *name) {
  const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  const long value = digits && text.size() <= 9 ? strtol(text.c_str(), nullptr, 10) : most + 1;
  if (value > most) {
    fail(MB_INVALID_ARGUMENT, "The %s device's option %s is \"%.40s\"; it must be a whole number up to %ld.", device,
         name, text.c_str(), most);
  }
  return value;
}

std::string json_text(const std::string &text) {
  std::string out = "\"";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      snprintf(escaped, sizeof escaped, "\\u%04x", c);
      out += escaped;
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

}  // namespace mb
