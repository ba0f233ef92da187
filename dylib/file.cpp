#include "file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "device.h"

namespace mb {

namespace {

using ull = unsigned long long;

}  // namespace

// Without O_NONBLOCK a pipe by that name would be waited for.
File::File(const std::string &path) : path_(path), descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_ < 0) fail(MB_IO, "Cannot open %s: %s.", path.c_str(), strerror(errno));
}

File::~File() { close(descriptor_); }

uint64_t File::check_range(uint64_t offset, uint64_t bytes) const {
  struct stat status;
  if (fstat(descriptor_, &status) != 0) fail(MB_IO, "Cannot read the size of %s: %s.", path_.c_str(), strerror(errno));
  if (!S_ISREG(status.st_mode)) fail(MB_IO, "%s is not a regular file and cannot be mapped.", path_.c_str());
  const auto size = static_cast<uint64_t>(status.st_size);
  if (offset > size || bytes > size - offset) {
    fail(MB_IO, "Bytes %llu + %llu do not lie in %s, which is a file of %llu bytes.", ull(offset), ull(bytes),
         path_.c_str(), ull(size));
  }
  return size;
}

void File::read(uint64_t offset, uint8_t *to, uint64_t bytes) const {
  while (bytes > 0) {
    const ssize_t got = pread(descriptor_, to, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(MB_IO, "Cannot read %s: %s.", path_.c_str(), strerror(errno));
    if (got == 0) fail(MB_IO, "%s became shorter while it was read.", path_.c_str());
    to += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<uint64_t>(got);
  }
}

}  // namespace mb
