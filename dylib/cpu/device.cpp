// The CPU as a device: buffers are host memory or mapped files, passes run on the thread pool.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "../device.h"
#include "features.h"
#include "memory.h"
#include "options.h"
#include "pass.h"
#include "pool.h"

namespace mb {

namespace {

class CpuBuffer final : public Buffer {
 public:
  CpuBuffer(uint8_t *bytes, uint64_t count, bool is_writable, void *map, uint64_t map_bytes)
      : map_(map), map_bytes_(map_bytes) {
    host = bytes;
    size = count;
    writable = is_writable;
  }
  ~CpuBuffer() override { munmap(map_, map_bytes_); }
  CpuBuffer(const CpuBuffer &) = delete;
  CpuBuffer &operator=(const CpuBuffer &) = delete;

  void read(uint64_t offset, void *destination, uint64_t bytes) override { memcpy(destination, host + offset, bytes); }
  void write(uint64_t offset, const void *source, uint64_t bytes) override { memcpy(host + offset, source, bytes); }
  void fill(uint64_t offset, uint64_t bytes, uint8_t value) override { memset(host + offset, value, bytes); }
  void copy_from(uint64_t offset, Buffer &source, uint64_t source_offset, uint64_t bytes) override {
    memcpy(host + offset, source.host + source_offset, bytes);
  }

 private:
  void *map_;  // what to unmap: starts at a page, where the buffer's bytes need not
  uint64_t map_bytes_;
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const CpuOptions &options)
      : kernels_(kernels_of_level(options.level)), threads_(options.threads ? options.threads : Pool::core_count()) {}

  std::shared_ptr<Buffer> create_buffer(uint64_t bytes) override {
    if (bytes == 0) fail(MB_INVALID_ARGUMENT, "A buffer needs at least one byte.");
    void *map = map_zeroed(bytes);
    return std::make_shared<CpuBuffer>(static_cast<uint8_t *>(map), bytes, true, map, bytes);
  }

  std::shared_ptr<Buffer> map_file(const std::string &path, uint64_t offset, uint64_t bytes) override {
    if (bytes == 0) fail(MB_INVALID_ARGUMENT, "A file mapping needs at least one byte.");
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) fail(MB_IO, "Cannot open %s: %s.", path.c_str(), strerror(errno));
    struct stat status;
    if (fstat(file, &status) != 0) {
      const int reason = errno;
      close(file);
      fail(MB_IO, "Cannot read the size of %s: %s.", path.c_str(), strerror(reason));
    }
    const uint64_t size = static_cast<uint64_t>(status.st_size);
    if (!S_ISREG(status.st_mode) || offset > size || bytes > size - offset) {
      close(file);
      fail(MB_IO, "Bytes %llu + %llu do not lie in %s, which is a %s of %llu bytes.",
           static_cast<unsigned long long>(offset), static_cast<unsigned long long>(bytes), path.c_str(),
           S_ISREG(status.st_mode) ? "file" : "special file", static_cast<unsigned long long>(size));
    }
    const uint64_t start = offset & ~static_cast<uint64_t>(sysconf(_SC_PAGESIZE) - 1);
    const uint64_t map_bytes = offset - start + bytes;
    void *map = mmap(nullptr, map_bytes, PROT_READ, MAP_SHARED, file, static_cast<off_t>(start));
    const int reason = errno;
    close(file);
    if (map == MAP_FAILED) fail(MB_IO, "Cannot map %s: %s.", path.c_str(), strerror(reason));
    return std::make_shared<CpuBuffer>(static_cast<uint8_t *>(map) + (offset - start), bytes, false, map, map_bytes);
  }

  std::unique_ptr<Pass> compile(std::unique_ptr<Plan> plan) override {
    return compile_cpu_pass(std::move(plan), kernels_, threads_, memory);
  }

  std::string info() const override {
    const uint64_t physical = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    char text[512];
    snprintf(text, sizeof text,
             "{\"kind\":\"cpu\",\"name\":%s,\"level\":\"%s\",\"threads\":%d,\"memoryBytes\":%llu,"
             "\"weightAlignment\":%llu,\"maxBufferBytes\":%llu,\"unifiedMemory\":true}",
             json_text(cpu_name()).c_str(), kernels_.level, threads_, static_cast<unsigned long long>(physical),
             static_cast<unsigned long long>(weight_alignment()), 1ull << 47);
    return text;
  }

  uint64_t weight_alignment() const override { return 1; }

 private:
  const Kernels &kernels_;
  const int threads_;
};

}  // namespace

std::shared_ptr<Device> open_cpu_device(const std::string &options) {
  return std::make_shared<CpuDevice>(parse_cpu_options(options));
}

}  // namespace mb
