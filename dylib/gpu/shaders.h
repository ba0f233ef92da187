// shaders.h: the kernel sources inside the library. The build writes embedded_shaders.cpp from shaders/*.metal, each file
// flattened with the headers that it includes (dylib/embed_shaders.ts).
#pragma once
#include <cstddef>
#include <string>

namespace mb::gpu {

struct EmbeddedShader {
  const char *family;        // shaders/<family>.metal
  const char *const *lines;  // NUL-terminated, each with its newline
  size_t line_count;
};
extern const EmbeddedShader kShaders[];
extern const size_t kShaderCount;

// The source of a family, one self-contained text; empty where the library has none of that name.
inline std::string shader_source(const std::string &family) {
  std::string source;
  for (size_t i = 0; i < kShaderCount; i++) {
    if (family != kShaders[i].family) continue;
    for (size_t line = 0; line < kShaders[i].line_count; line++) source += kShaders[i].lines[line];
  }
  return source;
}

}  // namespace mb::gpu
