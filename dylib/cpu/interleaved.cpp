#include "interleaved.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>

#include "../plan_check.h"
#include "band_form.h"
#include "context.h"
#include "memory.h"

namespace mb {

namespace {

std::atomic<uint64_t> bytes_of_process{0};  // of all copies, whichever device's

// Bytes that copies take of the memory of this process. Throws Error(MB_OUT_OF_MEMORY) where all would take more than half of it.
class Share {
 public:
  explicit Share(uint64_t bytes) : bytes_(bytes) {
    const uint64_t most = memory_of_process() / 2;
    uint64_t taken = bytes_of_process;
    do {
      if (bytes > most || taken > most - bytes) fail(MB_OUT_OF_MEMORY, "Interleaved weights would take more than half of the memory.");
    } while (!bytes_of_process.compare_exchange_weak(taken, taken + bytes));
  }
  ~Share() { bytes_of_process -= bytes_; }
  Share(const Share &) = delete;
  Share &operator=(const Share &) = delete;

 private:
  const uint64_t bytes_;
};

}  // namespace

// Copies that are made together lie in one mapping, since only a large one gets huge pages.
struct Interleaved::Mapping {
  explicit Mapping(uint64_t byte_count)
      : share(byte_count), data(static_cast<uint8_t *>(map_zeroed(byte_count, 0))), bytes(byte_count) {}
  ~Mapping() { munmap(data, bytes); }
  Mapping(const Mapping &) = delete;
  Mapping &operator=(const Mapping &) = delete;

  const Share share;
  uint8_t *const data;
  const uint64_t bytes;
};

struct Interleaved::Copy {
  Copy(std::shared_ptr<Mapping> the_mapping, uint64_t offset, uint64_t byte_count, uint64_t replaced_bytes, Memory &the_memory)
      : mapping(std::move(the_mapping)), data(mapping->data + offset), bytes(byte_count), replaced(replaced_bytes), memory(the_memory) {
    memory.repacked += bytes;
    memory.replaced += replaced;
    memory.note_peak();
  }
  ~Copy() {
    memory.repacked -= bytes;
    memory.replaced -= replaced;
  }
  Copy(const Copy &) = delete;
  Copy &operator=(const Copy &) = delete;

  const std::shared_ptr<Mapping> mapping;
  uint8_t *const data;
  const uint64_t bytes, replaced;  // replaced: of a mapped file
  Memory &memory;
};

namespace {

constexpr int64_t kChunkBytes = 4 << 20;  // of a weight, interleaved by one thread at a time

uint64_t bytes_of(const Weight &w) { return static_cast<uint64_t>(w.rows / kBandRows * band_form(w).band_bytes(w.columns)); }

// Whether the tensor is a weight of a linear op.
bool is_multiplied(const Plan &plan, const Tensor &tensor) {
  return std::any_of(plan.ops.begin(), plan.ops.end(), [&](const Op &op) {
    return op.kind == kLinear && (op.operands[6] == &tensor || op.operands[7] == &tensor || op.operands[8] == &tensor);
  });
}

// Whether the plan leaves the tensor, its scales and its biases as they are.
bool is_constant(const Plan &plan, const Tensor &tensor) {
  for (const Tensor *t : {&tensor, tensor.scales, tensor.biases}) if (t && plan.buffer_writable[t->buffer]) return false;
  return true;
}

bool is_mapped(const Plan &plan, const Tensor &t) { return !plan.buffers[t.buffer]->writable; }

uint64_t mapped_bytes(const Plan &plan, const Tensor &t) {
  uint64_t bytes = is_mapped(plan, t) ? t.max_bytes : 0;
  for (const Tensor *part : {t.scales, t.biases}) bytes += part && is_mapped(plan, *part) ? part->max_bytes : 0;
  return bytes;
}

}  // namespace

std::shared_ptr<Interleaved::Copy> Interleaved::find(const Weight &w) {
  for (const Entry &e : entries_) {
    const Weight &o = e.weight;
    if (o.data != w.data || o.scales != w.scales || o.biases != w.biases || o.rows != w.rows || o.columns != w.columns ||
        o.format != w.format || o.bits != w.bits || o.group != w.group || o.scale_format != w.scale_format) {
      continue;
    }
    if (std::shared_ptr<Copy> copy = e.copy.lock()) return copy;
  }
  return nullptr;
}

void Interleaved::fill(const Plan &plan, const Tensor &tensor, const Weight &w, uint8_t *to) {
  const int64_t band_bytes = band_form(w).band_bytes(w.columns), bands = w.rows / kBandRows;
  const int64_t step = std::max<int64_t>(1, kChunkBytes / band_bytes);
  Pool::shared().run(threads_, (bands + step - 1) / step, [&](int64_t chunk, int) {
    const int64_t first = chunk * step, last = std::min(first + step, bands);
    kernels_.interleave(w, first, last, to + first * band_bytes);
    // Pages of a file that nobody will read again would count as this process's own.
    const auto leave = [&](const Tensor &t, const uint8_t *rows, int64_t row_bytes) {
      if (!is_mapped(plan, t)) return;
      leave_pages(rows + first * kBandRows * row_bytes, static_cast<uint64_t>((last - first) * kBandRows * row_bytes));
    };
    leave(tensor, w.data, w.row_bytes);
    if (tensor.scales) leave(*tensor.scales, w.scales, w.scale_row_bytes);
    if (tensor.biases) leave(*tensor.biases, w.biases, w.scale_row_bytes);
  });
}

std::vector<std::shared_ptr<Interleaved::Copy>> Interleaved::interleave(Plan &plan) {
  std::vector<std::shared_ptr<Copy>> copies;
  if (plan.flags & (kPlanExact | kPlanInPlace)) return copies;
  const std::lock_guard<std::mutex> lock(mutex_);
  entries_.erase(std::remove_if(entries_.begin(), entries_.end(), [](const Entry &e) { return e.copy.expired(); }), entries_.end());
  copies = make_missing(plan);
  // Ops that read single rows of such a weight read the copy too: pages of the file would else come into memory beside it.
  for (const std::unique_ptr<Tensor> &tensor : plan.tensors) {
    if (!has_codes(tensor->format) || !is_constant(plan, *tensor)) continue;
    if (std::shared_ptr<Copy> copy = find(weight_of(plan, tensor.get()))) {
      tensor->interleaved = copy->data;
      copies.push_back(std::move(copy));
    }
  }
  std::sort(copies.begin(), copies.end());
  copies.erase(std::unique(copies.begin(), copies.end()), copies.end());
  return copies;
}

// Copies of the weights of the plan's linear ops that have none yet.
std::vector<std::shared_ptr<Interleaved::Copy>> Interleaved::make_missing(const Plan &plan) {
  std::vector<const Tensor *> missing;
  uint64_t bytes = 0;
  for (const std::unique_ptr<Tensor> &tensor : plan.tensors) {
    if (!has_codes(tensor->format) || !is_constant(plan, *tensor) || !is_multiplied(plan, *tensor)) continue;
    const Weight w = weight_of(plan, tensor.get());
    if (band_form(w).bits == 0 || find(w)) continue;
    missing.push_back(tensor.get());
    bytes += bytes_of(w);
  }
  std::vector<std::shared_ptr<Copy>> copies;
  if (bytes == 0) return copies;
  std::shared_ptr<Mapping> mapping;
  try {
    mapping = std::make_shared<Mapping>(bytes);
  } catch (const Error &) {
    return copies;  // they would take too much, or the process has a limit of its own
  }
  uint64_t offset = 0;
  for (const Tensor *tensor : missing) {
    const Weight w = weight_of(plan, tensor);
    if (find(w)) continue;  // another tensor of the plan is the same weight
    fill(plan, *tensor, w, mapping->data + offset);
    copies.push_back(std::make_shared<Copy>(mapping, offset, bytes_of(w), mapped_bytes(plan, *tensor), memory_));
    entries_.push_back({w, copies.back()});
    offset += copies.back()->bytes;
  }
  return copies;
}

uint64_t interleaved_bytes(const std::vector<std::shared_ptr<Interleaved::Copy>> &copies) {
  uint64_t bytes = 0;
  for (const auto &copy : copies) bytes += copy->bytes;
  return bytes;
}

}  // namespace mb
