// buffer.h: bytes in the GPU's memory.
#pragma once
#include "../file.h"
#include "context.h"

namespace mb::cuda {

// Memory of the host that the GPU copies from and to without help of the CPU.
class Pinned {
 public:
  Pinned(std::shared_ptr<Context> context, uint64_t bytes);
  ~Pinned();
  Pinned(const Pinned &) = delete;
  Pinned &operator=(const Pinned &) = delete;

  uint8_t *data = nullptr;
  const uint64_t size;

 private:
  const std::shared_ptr<Context> context_;
};

// A mapped file is copied into the GPU's memory as a whole when a kernel first reads it there. One whose weights are all repacked
// is only read on the host.
class CudaBuffer final : public Buffer {
 public:
  static std::shared_ptr<CudaBuffer> create(std::shared_ptr<Context> context, uint64_t bytes);
  static std::shared_ptr<CudaBuffer> map(std::shared_ptr<Context> context, const std::string &path, uint64_t offset,
                                         uint64_t bytes);
  ~CudaBuffer() override;
  CudaBuffer(const CudaBuffer &) = delete;
  CudaBuffer &operator=(const CudaBuffer &) = delete;

  void read(uint64_t offset, void *destination, uint64_t bytes) override;
  void write(uint64_t offset, const void *source, uint64_t bytes) override;
  void fill(uint64_t offset, uint64_t bytes, uint8_t value) override;
  void copy_from(uint64_t offset, Buffer &source, uint64_t source_offset, uint64_t bytes) override;

  // On the GPU, 256-byte aligned. Throws Error(MB_OUT_OF_MEMORY, MB_IO) where a file cannot be copied there.
  DevicePointer address();

 private:
  CudaBuffer(std::shared_ptr<Context> context, uint64_t bytes) : context_(std::move(context)) { size = bytes; }

  void allocate();
  void upload() const;
  std::shared_ptr<const File> file();

  const std::shared_ptr<Context> context_;
  uint64_t file_offset_ = 0;
  std::mutex mutex_;  // of what follows, once the object is shared
  DevicePointer address_ = 0;
  std::shared_ptr<const File> file_;  // of a mapped one that is not on the GPU yet
};

}  // namespace mb::cuda
