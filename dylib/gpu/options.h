// options.h: the options text of mb_device_open and JSON texts, for the GPU devices.
#pragma once
#include <initializer_list>
#include <map>
#include <string>

namespace mb::gpu {

// A flat JSON object of strings and whole numbers (as their digits), or empty text. `known` are the keys that `device`
// takes. Throws Error(MB_INVALID_ARGUMENT) for other keys and for text that is no such object.
std::map<std::string, std::string> read_options(const std::string &text, const char *device,
                                                std::initializer_list<const char *> known);

// A JSON string literal. The text is UTF-8.
std::string json_text(const std::string &text);

}  // namespace mb::gpu
