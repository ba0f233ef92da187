// The CPU as a device: buffers are host memory or mapped files, passes run on the thread pool.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "../device.h"
#include "../file.h"
#include "../options.h"
#include "features.h"
#include "interleaved.h"
#include "memory.h"
#include "pass.h"
#include "pool.h"

namespace mb {

namespace {

constexpr long kMaxThreads = 256;
// A short context, or few rows, takes only the beginning of a buffer: that is in small pages, so that it costs no more than it holds.
constexpr uint64_t kHugeFrom = 16 << 20;

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
  // 0 threads: all cores; an empty level: MARKBASE_CPU or the best of this CPU.
  CpuDevice(int threads, const std::string &level, bool interleaves)
      : kernels_(kernels_of_level(level)),
        threads_(threads != 0 ? threads : Pool::core_count()),
        interleaves_(interleaves),
        interleaved_(kernels_, threads_, memory),
        scratch_(memory) {}

  std::shared_ptr<Buffer> create_buffer(uint64_t bytes) override {
    if (bytes == 0) fail(MB_INVALID_ARGUMENT, "A buffer needs at least one byte.");
    void *map = map_zeroed(bytes, kHugeFrom);
    return std::make_shared<CpuBuffer>(static_cast<uint8_t *>(map), bytes, true, map, bytes);
  }

  std::shared_ptr<Buffer> map_file(const std::string &path, uint64_t offset, uint64_t bytes) override {
    if (bytes == 0) fail(MB_INVALID_ARGUMENT, "A file mapping needs at least one byte.");
    const File file(path);
    file.check_range(offset, bytes);
    const uint64_t start = offset & ~static_cast<uint64_t>(sysconf(_SC_PAGESIZE) - 1);
    const uint64_t map_bytes = offset - start + bytes;
    void *map = mmap(nullptr, map_bytes, PROT_READ, MAP_SHARED, file.descriptor(), static_cast<off_t>(start));
    if (map == MAP_FAILED) fail(MB_IO, "Cannot map %s: %s.", path.c_str(), strerror(errno));
    return std::make_shared<CpuBuffer>(static_cast<uint8_t *>(map) + (offset - start), bytes, false, map, map_bytes);
  }

  std::unique_ptr<Pass> compile(std::unique_ptr<Plan> plan) override {
    return compile_cpu_pass(std::move(plan), kernels_, threads_, interleaves_ ? &interleaved_ : nullptr, scratch_);
  }

  std::string info() const override {
    char text[512];
    snprintf(text, sizeof text,
             "{\"kind\":\"cpu\",\"name\":%s,\"level\":\"%s\",\"threads\":%d,\"memoryBytes\":%llu,"
             "\"weightAlignment\":%llu,\"maxBufferBytes\":%llu,\"unifiedMemory\":true}",
             json_text(cpu_name()).c_str(), kernels_.level, threads_, static_cast<unsigned long long>(memory_of_machine()),
             static_cast<unsigned long long>(weight_alignment()), 1ull << 47);
    return text;
  }

  uint64_t weight_alignment() const override { return 1; }

 private:
  const Kernels &kernels_;
  const int threads_;
  const bool interleaves_;  // off: weights are multiplied where they lie
  Interleaved interleaved_;
  ScratchRoom scratch_;
};

}  // namespace

std::shared_ptr<Device> open_cpu_device(const std::string &options) {
  auto settings = read_options(options, "cpu", {"threads", "level", "interleave"});
  const std::string threads = settings.count("threads") == 0 ? "0" : settings["threads"];
  if (settings.count("level") != 0 && settings["level"].empty()) {
    fail(MB_INVALID_ARGUMENT, "level is empty; leave it out for the best of this CPU.");
  }
  const std::string interleave = settings.count("interleave") == 0 ? "1" : settings["interleave"];
  return std::make_shared<CpuDevice>(static_cast<int>(whole_number(threads, kMaxThreads, "cpu", "threads")), settings["level"],
                                     whole_number(interleave, 1, "cpu", "interleave") != 0);
}

}  // namespace mb
