// file.h: an open file of weights.
#pragma once
#include <cstdint>
#include <string>

namespace mb {

class File {
 public:
  explicit File(const std::string &path);  // throws Error(MB_IO)
  ~File();
  File(const File &) = delete;
  File &operator=(const File &) = delete;

  // Throws Error(MB_IO) unless it is a regular file that holds these bytes. Returns its size.
  uint64_t check_range(uint64_t offset, uint64_t bytes) const;
  void read(uint64_t offset, uint8_t *to, uint64_t bytes) const;  // throws Error(MB_IO)

  int descriptor() const { return descriptor_; }

 private:
  const std::string path_;
  const int descriptor_;
};

}  // namespace mb
