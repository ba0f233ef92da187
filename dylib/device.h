// device.h: what stands behind the C ABI. abi.cpp turns handles and bytes into these types; each device
// (cpu/, metal/, cuda/) implements Device and Pass.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "input.h"
#include "markbase.h"
#include "plan.h"

namespace mb {

// Thrown inside the library only; abi.cpp turns it into a status and a text.
struct Error {
  mb_status status;
  std::string text;
};

[[noreturn]] void fail(mb_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Bytes on a device. Reference counted through shared_ptr; the C handle holds one reference.
class Buffer {
 public:
  virtual ~Buffer() = default;
  // Ranges are checked by abi.cpp before these are called.
  virtual void read(uint64_t offset, void *destination, uint64_t bytes) = 0;
  virtual void write(uint64_t offset, const void *source, uint64_t bytes) = 0;
  virtual void fill(uint64_t offset, uint64_t bytes, uint8_t value) = 0;
  virtual void copy_from(uint64_t offset, Buffer &source, uint64_t source_offset, uint64_t bytes) = 0;

  uint64_t size = 0;           // bytes
  bool writable = false;       // false: a mapped file
  uint8_t *host = nullptr;     // host address, where the device has one
};

// A decoded tensor: extents checked against its buffer.
struct Tensor {
  Format format;
  uint32_t bits = 0, group = 0;  // quantised formats
  uint32_t buffer = 0;           // index into Plan::buffers
  uint64_t offset = 0;           // bytes
  uint32_t rank = 0;
  int64_t dims[5] = {};             // constants, or -1 - Symbol
  uint64_t max_bytes = 0;           // with every symbol at its maximum
  const Tensor *scales = nullptr;   // [N, K / group]
  const Tensor *biases = nullptr;   // [N, K / group]
  const uint8_t *interleaved = nullptr;  // the CPU device's copy of a weight, see cpu/interleaved.h
};

struct Op {
  OpKind kind;
  uint32_t flags = 0, layer = kNone;
  const Tensor *operands[kMaxOperands] = {};  // null where absent
  uint32_t ints[8] = {};
  float floats[8] = {};
};

// A decoded and checked plan. Owns its tensors; pointers into them stay valid as long as the plan lives.
struct Plan {
  uint32_t flags = 0;
  uint32_t group_count = 0, vocabulary_size = 0;
  uint64_t symbol_max[kSymbolCount] = {};
  std::vector<std::unique_ptr<Tensor>> tensors;
  std::vector<Op> ops;
  std::vector<const Tensor *> outputs;
  std::vector<std::shared_ptr<Buffer>> buffers;  // bound
  std::vector<bool> buffer_writable;             // whether ops may write there
};

// Decodes, checks every record and binds the buffers; throws Error. `weight_alignment` is the device's rule for tensors in
// read-only buffers, in bytes (elements must be aligned to their own size in any case).
std::unique_ptr<Plan> decode_plan(const void *bytes, uint64_t size, std::vector<std::shared_ptr<Buffer>> buffers,
                                  uint64_t weight_alignment);

// A checked input block: views into the caller's bytes.
struct Input {
  InputHeader header;
  const uint32_t *token, *position, *sequence, *row_class, *out_row;
  struct Group {
    const uint32_t *start, *first, *count;  // [sequences]
  };
  std::vector<Group> groups;
  const uint32_t *table;  // all groups' page ids
  const uint32_t *adjustment_start, *adjustment_id;
  const float *adjustment_multiply, *adjustment_add, *temperature;
  const uint32_t *mask_of, *mask;
  const uint32_t *soft_row = nullptr;                              // null where no row has a soft token
  const uint32_t *block_first = nullptr, *block_last = nullptr;    // null where no row is of a block

  uint64_t symbol(uint32_t index) const;  // live value of a Symbol
  // Page id that holds `position` of `sequence` in group `g`, or kNoPage.
  uint32_t page(uint32_t g, uint32_t sequence, uint32_t position) const;
};

// Checks counts against the plan's maxima, tokens, positions, that every page an attention op will read or write
// is present and inside its KV tensor, and that no two rows write one slot; throws Error.
Input check_input(const Plan &plan, const void *bytes, uint64_t size);

// Whether the run copies output i of its plan.
inline bool selected(const Input &input, size_t output) { return (input.header.output_mask >> output & 1) != 0; }

// Bytes of the live rows of an output. Only dimension 0 is a symbol.
inline uint64_t live_bytes(const Plan &plan, const Tensor &output, const Input &input) {
  const auto symbol = static_cast<uint32_t>(-1 - output.dims[0]);
  return output.max_bytes / plan.symbol_max[symbol] * input.symbol(symbol);
}

struct RunStatistics {
  uint64_t wall_ns = 0, device_ns = 0, dispatches = 0, command_buffers = 0, waits = 0;
};

// Bytes, see mb_device_memory. abi.cpp counts mapped, created, buffers and passes for every device (an object counts until
// its last reference goes); a device counts its repacked weights and scratch, and calls note_peak() after adding to one.
// `replaced`: of mapped files, what repacked weights are read instead of.
struct Memory {
  std::atomic<uint64_t> mapped{0}, created{0}, repacked{0}, replaced{0}, scratch{0}, peak{0}, buffers{0}, passes{0};

  void note_peak() {
    const uint64_t now = created + repacked + scratch;
    uint64_t seen = peak;
    while (seen < now && !peak.compare_exchange_weak(seen, now)) {
    }
  }
};

class Pass {
 public:
  virtual ~Pass() = default;
  // Executes every op. The caller holds the device's run lock. Checks `cancelled` between ops.
  virtual RunStatistics run(const Input &input) = 0;
  // The first `bytes` of a selected output of the last run; the caller still holds the run lock.
  virtual void read_output(size_t index, void *to, uint64_t bytes) {
    const Tensor &from = *plan->outputs[index];
    plan->buffers[from.buffer]->read(from.offset, to, bytes);
  }
  virtual std::string info() const = 0;  // JSON of mb_pass_info

  std::unique_ptr<Plan> plan;  // set by compile()
  std::atomic<bool> cancelled{false};  // set by mb_pass_cancel, cleared by mb_pass_resume; run() only reads it

  // Set before a run, on a device that says so: called by run() once its ops are under way.
  std::function<void()> once_begun;
  bool tells_when_begun = false;

  bool may_hold = false;  // set before a run: it began ahead

  // A run that began ahead, until it is asked for or cancelled: a device whose memory the host reads waits before the first op that
  // may write outputs, as those of the run before are still read. Others do not, and let nobody read beyond what is copied out. It
  // has the device meanwhile, so it gives up before long: whoever should ask for it may be waiting for another run.
  void hold() {
    const std::lock_guard<std::mutex> lock(hold_mutex_);
    held_ = true;
    gave_up_ = false;
  }
  // Whether it goes on, or has not got that far; false if it gave up.
  bool let_go() {
    const std::lock_guard<std::mutex> lock(hold_mutex_);
    held_ = false;
    let_go_.notify_all();
    return !gave_up_;
  }

 protected:
  void note_begun() {
    if (once_begun) once_begun();
    once_begun = nullptr;
  }
  // Throws MB_CANCELLED where it gives up.
  void wait_while_held() {
    note_begun();
    if (!may_hold) return;
    std::unique_lock<std::mutex> lock(hold_mutex_);
    if (let_go_.wait_for(lock, std::chrono::milliseconds(100), [&] { return !held_; })) return;
    gave_up_ = true;
    fail(MB_CANCELLED, "Nobody asked for the run.");
  }

 private:
  std::mutex hold_mutex_;
  std::condition_variable let_go_;
  bool held_ = false, gave_up_ = false;
};

class Device {
 public:
  virtual ~Device() = default;
  // Both check `bytes` and throw Error; abi.cpp keeps the device alive as long as a buffer or pass of it.
  virtual std::shared_ptr<Buffer> create_buffer(uint64_t bytes) = 0;
  virtual std::shared_ptr<Buffer> map_file(const std::string &path, uint64_t offset, uint64_t bytes) = 0;
  virtual std::unique_ptr<Pass> compile(std::unique_ptr<Plan> plan) = 0;
  virtual std::string info() const = 0;  // JSON of mb_device_info
  virtual uint64_t weight_alignment() const = 0;

  Memory memory;
};

// Each device's factory; options is the JSON text of mb_device_open. Throws Error(MB_NO_DEVICE) where it cannot run.
std::shared_ptr<Device> open_cpu_device(const std::string &options);
std::shared_ptr<Device> open_metal_device(const std::string &options);
std::shared_ptr<Device> open_cuda_device(const std::string &options);

}  // namespace mb
