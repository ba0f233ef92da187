#include "buffer.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace mb::cuda {

namespace {

using ull = unsigned long long;

constexpr uint64_t kStagingBytes = 32 << 20;  // of each of the two staging buffers of an upload

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

std::shared_ptr<CudaBuffer> CudaBuffer::create(std::shared_ptr<Context> context, uint64_t bytes) {
  if (bytes == 0) fail(MB_INVALID_ARGUMENT, "A buffer needs at least one byte.");
  context->enter();
  std::shared_ptr<CudaBuffer> created(new CudaBuffer(context, bytes));
  created->writable = true;
  created->allocate();
  created->fill(0, bytes, 0);
  return created;
}

std::shared_ptr<CudaBuffer> CudaBuffer::map(std::shared_ptr<Context> context, const std::string &path, uint64_t offset,
                                            uint64_t bytes) {
  if (bytes == 0) fail(MB_INVALID_ARGUMENT, "A file mapping needs at least one byte.");
  std::shared_ptr<CudaBuffer> mapped(new CudaBuffer(context, bytes));
  mapped->file_ = std::make_shared<File>(path);
  mapped->file_->check_range(offset, bytes);
  mapped->file_offset_ = offset;
  return mapped;
}

CudaBuffer::~CudaBuffer() {
  if (address_ != 0 && driver().cuCtxSetCurrent(context_->handle) == kSuccess) driver().cuMemFree(address_);
}

void CudaBuffer::allocate() {
  const Result result = driver().cuMemAlloc(&address_, size);
  if (result == kErrorOutOfMemory) {
    size_t free = 0, total = 0;
    driver().cuMemGetInfo(&free, &total);
    fail(MB_OUT_OF_MEMORY, "The GPU %s gives no buffer of %llu bytes: %llu of its %llu are free.", context_->name.c_str(),
         ull(size), ull(free), ull(total));
  }
  context_->check(result, "Allocating a buffer");
}

DevicePointer CudaBuffer::address() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (file_ == nullptr) return address_;
  context_->enter();
  if (address_ == 0) allocate();
  upload();
  file_.reset();
  return address_;
}

std::shared_ptr<const File> CudaBuffer::file() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return file_;
}

// While the GPU copies one staging buffer, the file is read into the other.
void CudaBuffer::upload() const {
  const char *what = "Copying a file to the GPU";
  const uint64_t part = std::min(size, kStagingBytes);
  Pinned staging[2] = {{context_, part}, {context_, part}};
  const Event copied[2];
  try {
    for (uint64_t at = 0, turn = 0; at < size; at += part, turn++) {
      const uint64_t count = std::min(part, size - at);
      Pinned &half = staging[turn % 2];
      if (turn >= 2) context_->check(driver().cuEventSynchronize(copied[turn % 2].handle), what);
      file_->read(file_offset_ + at, half.data, count);
      context_->check(driver().cuMemcpyHtoDAsync(address_ + at, half.data, count, context_->stream), what);
      context_->check(driver().cuEventRecord(copied[turn % 2].handle, context_->stream), what);
    }
  } catch (...) {
    driver().cuStreamSynchronize(context_->stream);  // the staging buffers are about to go
    throw;
  }
  context_->wait(what);
}

void CudaBuffer::read(uint64_t offset, void *destination, uint64_t bytes) {
  if (const auto file = this->file()) return file->read(file_offset_ + offset, static_cast<uint8_t *>(destination), bytes);
  context_->enter();
  context_->check(driver().cuMemcpyDtoHAsync(destination, address_ + offset, bytes, context_->stream), "Reading a buffer");
  context_->wait("Reading a buffer");
}

void CudaBuffer::write(uint64_t offset, const void *source, uint64_t bytes) {
  context_->enter();
  context_->check(driver().cuMemcpyHtoDAsync(address_ + offset, source, bytes, context_->stream), "Writing a buffer");
  context_->wait("Writing a buffer");
}

void CudaBuffer::fill(uint64_t offset, uint64_t bytes, uint8_t value) {
  context_->enter();
  context_->check(driver().cuMemsetD8Async(address_ + offset, value, bytes, context_->stream), "Filling a buffer");
  context_->wait("Filling a buffer");
}

void CudaBuffer::copy_from(uint64_t offset, Buffer &source, uint64_t source_offset, uint64_t bytes) {
  auto &from = static_cast<CudaBuffer &>(source);
  if (from.file() != nullptr) {
    std::vector<uint8_t> part(std::min(bytes, kStagingBytes));
    for (uint64_t at = 0; at < bytes; at += part.size()) {
      const uint64_t count = std::min<uint64_t>(part.size(), bytes - at);
      from.read(source_offset + at, part.data(), count);
      write(offset + at, part.data(), count);
    }
    return;
  }
  context_->enter();
  context_->check(driver().cuMemcpyDtoDAsync(address_ + offset, from.address_ + source_offset, bytes, context_->stream),
                  "Copying a buffer");
  context_->wait("Copying a buffer");
}

}  // namespace mb::cuda
