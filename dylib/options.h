// options.h: the options text of mb_device_open and JSON texts.
#pragma once
#include <initializer_list>
#include <map>
#include <string>

namespace mb {

// A flat JSON object of strings and whole numbers (as their digits), or empty text. `known` are the keys that `device`
// takes. Throws Error(MB_INVALID_ARGUMENT) for other keys and for text that is no such object.
std::map<std::string, std::string> read_options(const std::string &text, const char *device,
                                                std::initializer_list<const char *> known);

// An option's digits as a number. Throws Error(MB_INVALID_ARGUMENT) for others and above `most`.
long whole_number(const std::string &text, long most, const char *device, const char *name);

// A JSON string literal. The text is UTF-8.
std::string json_text(const std::string &text);

}  // namespace mb
