#include "buffer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace mb::cuda {

namespace {

using ull = unsigned long long;

constexpr uint64_t kStagingBytes = 32 << 20;  // of each of the two staging buffers of an upload

class File {
 public:
  explicit File(const std::string &path) : path_(path), descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (descriptor_ < 0) fail(MB_IO, "Cannot open %s: %s.", path.c_str(), strerror(errno));
  }
  ~File() { close(descriptor_); }
  File(const File &) = delete;
  File &operator=(const File &) = delete;

  void check_range(uint64_t offset, uint64_t bytes) const {
    struct stat status;
    if (fstat(descriptor_, &status) != 0) fail(MB_IO, "Cannot read the size of %s: %s.", path_.c_str(), strerror(errno));
    if (!S_ISREG(status.st_mode)) fail(MB_IO, "%s is not a regular file and cannot be mapped.", path_.c_str());
    const auto size = static_cast<uint64_t>(status.st_size);
    if (offset > size || bytes > size - offset) {
      fail(MB_IO, "Bytes %llu + %llu do not lie in %s, which is a file of %llu bytes.", ull(offset), ull(bytes), path_.c_str(),
           ull(size));
    }
  }

  void read(uint64_t offset, uint8_t *to, uint64_t bytes) const {
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

 private:
  const std::string path_;
  const int descriptor_;
};

class Event {
 public:
  Event() { check(driver().cuEventCreate(&handle, kEventDefault), "Making an event"); }
  ~Event() { driver().cuEventDestroy(handle); }
  Event(const Event &) = delete;
  Event &operator=(const Event &) = delete;

  EventHandle handle = nullptr;
};

}  // namespace

Pinned::Pinned(std::shared_ptr<Context> context, uint64_t bytes) : size(bytes), context_(std::move(context)) {
  void *memory = nullptr;
  context_->check(driver().cuMemHostAlloc(&memory, bytes, 0), "Reserving pinned memory of the host");
  data = static_cast<uint8_t *>(memory);
}

Pinned::~Pinned() {
  if (driver().cuCtxSetCurrent(context_->handle) == kSuccess) driver().cuMemFreeHost(data);
}

CudaBuffer::CudaBuffer(std::shared_ptr<Context> context, uint64_t bytes) : context_(std::move(context)) {
  const Result result = driver().cuMemAlloc(&address, bytes);
  if (result == kErrorOutOfMemory) {
    size_t free = 0, total = 0;
    driver().cuMemGetInfo(&free, &total);
    fail(MB_OUT_OF_MEMORY, "The GPU %s gives no buffer of %llu bytes: %llu of its %llu are free.", context_->name.c_str(),
         ull(bytes), ull(free), ull(total));
  }
  context_->check(result, "Allocating a buffer");
  size = bytes;
}

CudaBuffer::~CudaBuffer() {
  if (driver().cuCtxSetCurrent(context_->handle) == kSuccess && address != 0) driver().cuMemFree(address);
}

std::shared_ptr<CudaBuffer> CudaBuffer::create(std::shared_ptr<Context> context, uint64_t bytes) {
  if (bytes == 0) fail(MB_INVALID_ARGUMENT, "A buffer needs at least one byte.");
  context->enter();
  std::shared_ptr<CudaBuffer> created(new CudaBuffer(context, bytes));
  created->writable = true;
  created->fill(0, bytes, 0);
  return created;
}

std::shared_ptr<CudaBuffer> CudaBuffer::upload(std::shared_ptr<Context> context, const std::string &path, uint64_t offset,
                                               uint64_t bytes) {
  if (bytes == 0) fail(MB_INVALID_ARGUMENT, "A file mapping needs at least one byte.");
  const File file(path);
  file.check_range(offset, bytes);
  context->enter();
  std::shared_ptr<CudaBuffer> uploaded(new CudaBuffer(context, bytes));
  // While the GPU copies one staging buffer, the file is read into the other.
  const uint64_t part = std::min(bytes, kStagingBytes);
  Pinned staging[2] = {{context, part}, {context, part}};
  const Event copied[2];
  try {
    for (uint64_t at = 0, turn = 0; at < bytes; at += part, turn++) {
      const uint64_t count = std::min(part, bytes - at);
      Pinned &half = staging[turn % 2];
      if (turn >= 2) context->check(driver().cuEventSynchronize(copied[turn % 2].handle), "Copying a file to the GPU");
      file.read(offset + at, half.data, count);
      context->check(driver().cuMemcpyHtoDAsync(uploaded->address + at, half.data, count, context->stream), "Copying a file to the GPU");
      context->check(driver().cuEventRecord(copied[turn % 2].handle, context->stream), "Copying a file to the GPU");
    }
  } catch (...) {
    driver().cuStreamSynchronize(context->stream);  // the staging buffers are about to go
    throw;
  }
  context->wait("Copying a file to the GPU");
  return uploaded;
}

void CudaBuffer::read(uint64_t offset, void *destination, uint64_t bytes) {
  context_->enter();
  context_->check(driver().cuMemcpyDtoHAsync(destination, address + offset, bytes, context_->stream), "Reading a buffer");
  context_->wait("Reading a buffer");
}

void CudaBuffer::write(uint64_t offset, const void *source, uint64_t bytes) {
  context_->enter();
  context_->check(driver().cuMemcpyHtoDAsync(address + offset, source, bytes, context_->stream), "Writing a buffer");
  context_->wait("Writing a buffer");
}

void CudaBuffer::fill(uint64_t offset, uint64_t bytes, uint8_t value) {
  context_->enter();
  context_->check(driver().cuMemsetD8Async(address + offset, value, bytes, context_->stream), "Filling a buffer");
  context_->wait("Filling a buffer");
}

void CudaBuffer::copy_from(uint64_t offset, Buffer &source, uint64_t source_offset, uint64_t bytes) {
  context_->enter();
  const auto &from = static_cast<CudaBuffer &>(source);
  context_->check(driver().cuMemcpyDtoDAsync(address + offset, from.address + source_offset, bytes, context_->stream),
                  "Copying a buffer");
  context_->wait("Copying a buffer");
}

}  // namespace mb::cuda
