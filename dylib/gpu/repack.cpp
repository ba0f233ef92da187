#include "repack.h"

#include <algorithm>
#include <cstring>

#include "../cpu/features.h"
#include "../iq4.h"
#include "../plan_check.h"
#include "lower.h"
#include "parallel.h"

namespace mb::gpu {

namespace {

constexpr uint64_t kAlignment = 256;          // of the parts of a repacked weight
constexpr uint64_t kSliceBytes = 4ull << 20;  // of a weight that a thread takes at a time
constexpr unsigned kMostThreads = 16;

// What becomes of a block, in order of columns.
struct Form {
  uint32_t bits;        // of a code
  uint32_t group;       // columns of a scale
  uint32_t scale_bytes; // of one
  uint32_t bias_columns, bias_bytes;  // columns that one bias, or half of 256 columns, belongs to; 0: there is none
};

Form form_of(Format format) {
  switch (format) {
    case kQ4_0:
    case kIq4Nl: return {4, 32, 2, 0, 0};
    case kQ5_0: return {5, 32, 2, 0, 0};
    case kQ8_0: return {8, 32, 2, 0, 0};
    case kQ4_1: return {4, 32, 2, 32, 2};
    case kQ5_1: return {5, 32, 2, 32, 2};
    case kQ2K: return {2, 16, 2, 256, 4};
    case kQ3K: return {3, 16, 1, 256, 2};
    case kQ4K: return {4, 32, 2, 256, 4};
    case kQ5K: return {5, 32, 2, 256, 4};
    case kQ6K: return {6, 16, 1, 256, 2};
    default: return {4, 32, 1, 256, 2};  // kIq4Xs
  }
}

// The parts of a repacked weight [rows, columns].
struct Places {
  uint64_t rows = 1, columns;
  uint64_t code_bytes, scale_bytes, bias_bytes;  // of a row
  uint64_t scales, biases, end;                  // offsets; codes are at 0

  explicit Places(const Tensor &t) : columns(static_cast<uint64_t>(t.dims[t.rank - 1])) {
    const Form form = form_of(t.format);
    for (uint32_t i = 0; i + 1 < t.rank; i++) rows *= static_cast<uint64_t>(t.dims[i]);
    code_bytes = columns * form.bits / 8;
    scale_bytes = columns / form.group * form.scale_bytes;
    bias_bytes = form.bias_columns == 0 ? 0 : columns / form.bias_columns * form.bias_bytes;
    scales = round_up(rows * code_bytes, kAlignment);
    biases = scales + round_up(rows * scale_bytes, kAlignment);
    end = biases + round_up(rows * bias_bytes, kAlignment);
  }
};

// Scales and biases of one block.
void copy_scales(Format format, const uint8_t *b, uint8_t *scales, uint8_t *biases) {
  switch (format) {
    case kQ4_1:
    case kQ5_1:
      memcpy(scales, b, 2);
      memcpy(biases, b + 2, 2);
      return;
    case kQ2K:
      for (int j = 0; j < 16; j++) scales[2 * j] = b[j] & 15, scales[2 * j + 1] = b[j] >> 4;
      memcpy(biases, b + 80, 4);
      return;
    case kQ3K:
      for (int j = 0; j < 16; j++) {
        const int low = j < 8 ? b[96 + j] & 15 : b[88 + j] >> 4, high = b[104 + j % 4] >> 2 * (j / 4) & 3;
        scales[j] = static_cast<uint8_t>((low | high << 4) - 32);
      }
      memcpy(biases, b + 108, 2);
      return;
    case kQ4K:
    case kQ5K:
      for (int j = 0; j < 4; j++) {
        const uint8_t *packed = b + 4;
        scales[2 * j] = packed[j] & 63;
        scales[2 * j + 1] = packed[j + 4] & 63;
        scales[2 * j + 8] = static_cast<uint8_t>((packed[j + 8] & 15) | packed[j] >> 6 << 4);
        scales[2 * j + 9] = static_cast<uint8_t>(packed[j + 8] >> 4 | packed[j + 4] >> 6 << 4);
      }
      memcpy(biases, b, 4);
      return;
    case kQ6K:
      memcpy(scales, b + 192, 16);
      memcpy(biases, b + 208, 2);
      return;
    case kIq4Xs:
      for (int j = 0; j < 8; j++) {
        const int low = b[4 + j / 2] >> 4 * (j % 2) & 15, high = (b[2] | b[3] << 8) >> 2 * j & 3;
        scales[j] = static_cast<uint8_t>((low | high << 4) - 32);
      }
      memcpy(biases, b, 2);
      return;
    default: memcpy(scales, b, 2);
  }
}

// Codes of `bits` bits each as a little-endian bit stream; eight fill whole bytes.
void pack(const uint8_t *codes, uint64_t count, uint32_t bits, uint8_t *to) {
  for (uint64_t i = 0; i < count; i += 8, to += bits) {
    uint64_t word = 0;
    for (uint32_t j = 0; j < 8; j++) word |= uint64_t{codes[i + j]} << bits * j;
    memcpy(to, &word, bits);  // as many bytes as a code has bits
  }
}

// Place of each value of the CPU device's codes of iq4_nl and iq4_xs in their book.
struct Iq4Places {
  uint8_t of[256] = {};
  Iq4Places() {
    for (uint8_t i = 0; i < 16; i++) of[kIq4Codes[i]] = i;
  }
};

void repack_row(const Kernels &kernels, const Weight &w, int64_t row, uint8_t *codes, uint8_t *scales, uint8_t *biases) {
  static const Iq4Places iq4;
  constexpr int64_t kRun = 256;
  const Form form = form_of(w.format);
  const FormatTraits &traits = *format_traits(w.format);
  uint8_t bytes[kRun];
  float unused[2][kRun / 16];
  for (int64_t k = 0; k < w.columns; k += kRun) {
    const int64_t n = std::min(kRun, w.columns - k);
    kernels.unpack_run(w, row, k, n, bytes, unused[0], unused[1]);
    if (w.format == kIq4Nl || w.format == kIq4Xs) {
      for (int64_t i = 0; i < n; i++) bytes[i] = iq4.of[bytes[i]];
    }
    pack(bytes, static_cast<uint64_t>(n), form.bits, codes + k * form.bits / 8);
  }
  const uint8_t *block = w.row(row);
  for (int64_t k = 0; k < w.columns; k += traits.block, block += traits.block_bytes) {
    uint8_t *bias = form.bias_columns == 0 ? nullptr : biases + k / form.bias_columns * form.bias_bytes;
    copy_scales(w.format, block, scales + k / form.group * form.scale_bytes, bias);
  }
}

void repack_weight(Buffer &source, const Tensor &tensor, const Places &places, Buffer &result) {
  const Kernels &kernels = kernels_of_level("");
  const FormatTraits &traits = *format_traits(tensor.format);
  const uint64_t row_bytes = places.columns / traits.block * traits.block_bytes;
  const uint64_t slice = std::max<uint64_t>(1, kSliceBytes / row_bytes);
  std::mutex transfers;  // to a device whose memory the host does not see
  in_parallel(static_cast<size_t>((places.rows + slice - 1) / slice), kMostThreads, [&](size_t i) {
    const uint64_t first = i * slice, count = std::min(slice, places.rows - first);
    std::vector<uint8_t> from, to;
    Weight w{};
    w.format = tensor.format;
    w.columns = static_cast<int64_t>(places.columns);
    w.rows = static_cast<int64_t>(count);
    w.row_bytes = static_cast<int64_t>(row_bytes);
    const uint64_t offset = tensor.offset + first * row_bytes;
    if (source.host != nullptr) {
      w.data = source.host + offset;
    } else {
      from.resize(count * row_bytes);
      source.read(offset, from.data(), from.size());
      w.data = from.data();
    }
    const uint64_t sizes[] = {places.code_bytes, places.scale_bytes, places.bias_bytes};
    const uint64_t starts[] = {0, places.scales, places.biases};
    uint8_t *parts[3];
    if (result.host == nullptr) to.resize(count * (sizes[0] + sizes[1] + sizes[2]));
    uint8_t *next = to.data();
    for (int part = 0; part < 3; part++) {
      parts[part] = result.host != nullptr ? result.host + starts[part] + first * sizes[part] : next;
      next += count * sizes[part];
    }
    for (uint64_t row = 0; row < count; row++) {
      repack_row(kernels, w, static_cast<int64_t>(row), parts[0] + row * sizes[0], parts[1] + row * sizes[1],
                 parts[2] + row * sizes[2]);
    }
    if (result.host != nullptr) return;
    const std::lock_guard<std::mutex> lock(transfers);
    for (int part = 0; part < 3; part++) {
      if (sizes[part] > 0) result.write(starts[part] + first * sizes[part], parts[part], count * sizes[part]);
    }
  });
}

}  // namespace

std::shared_ptr<Buffer> Repacked::result_of(const Plan &plan, const Tensor &tensor, uint64_t bytes, const Fill &fill) {
  const std::lock_guard<std::mutex> lock(mutex_);
  entries_.erase(std::remove_if(entries_.begin(), entries_.end(), [](const Entry &e) { return e.result.expired(); }),
                 entries_.end());
  const std::shared_ptr<Buffer> &source = plan.buffers[tensor.buffer];
  for (const Entry &entry : entries_) {
    if (entry.offset != tensor.offset || entry.format != tensor.format || entry.source.lock() != source) continue;
    const std::shared_ptr<Buffer> result = entry.result.lock();
    if (result && result->size == bytes) return result;
  }
  std::shared_ptr<Buffer> created = create_(bytes);
  fill(*source, *created);
  Memory &memory = memory_;
  memory.repacked += created->size;
  memory.note_peak();
  std::shared_ptr<Buffer> result(created.get(), [created, &memory](Buffer *) mutable {
    memory.repacked -= created->size;
    created.reset();
  });
  entries_.push_back({source, result, tensor.offset, tensor.format});
  return result;
}

uint64_t Repacked::repack(Plan &plan) {
  uint64_t bytes = 0;
  const auto move_to = [&](Tensor &tensor, const std::shared_ptr<Buffer> &result, uint64_t size) {
    tensor.buffer = static_cast<uint32_t>(plan.buffers.size());
    tensor.offset = 0;
    tensor.max_bytes = size;
    bytes += result->size;
    plan.buffers.push_back(result);
    plan.buffer_writable.push_back(false);
  };
  const size_t count = plan.tensors.size();
  std::vector<bool> given_up(plan.buffers.size());  // mapped files with such weights
  for (size_t i = 0; i < count; i++) {
    const Tensor &tensor = *plan.tensors[i];
    if (is_gguf(tensor.format) && !plan.buffers[tensor.buffer]->writable) given_up[tensor.buffer] = true;
  }
  for (size_t i = 0; i < count; i++) {
    Tensor &tensor = *plan.tensors[i];
    if (!is_gguf(tensor.format)) {
      if (!given_up[tensor.buffer]) continue;
      const auto copy = [&](Buffer &from, Buffer &to) { to.copy_from(0, from, tensor.offset, tensor.max_bytes); };
      move_to(tensor, result_of(plan, tensor, tensor.max_bytes, copy), tensor.max_bytes);
      continue;
    }
    const Places places(tensor);
    const auto fill = [&](Buffer &from, Buffer &to) { repack_weight(from, tensor, places, to); };
    const std::shared_ptr<Buffer> result = result_of(plan, tensor, places.end, fill);
    const auto part = [&](uint64_t offset, uint64_t size, Format format) {
      auto added = std::make_unique<Tensor>();
      added->format = format;
      added->buffer = static_cast<uint32_t>(plan.buffers.size());
      added->offset = offset;
      added->max_bytes = size;
      plan.tensors.push_back(std::move(added));
      return plan.tensors.back().get();
    };
    const bool affine = tensor.format == kQ4_1 || tensor.format == kQ5_1;
    const Form form = form_of(tensor.format);
    tensor.scales = part(places.scales, places.rows * places.scale_bytes, affine ? kF16 : kI8);
    if (places.bias_bytes > 0) tensor.biases = part(places.biases, places.rows * places.bias_bytes, affine ? kF16 : kI8);
    move_to(tensor, result, places.rows * places.code_bytes);
    if (affine) {
      tensor.format = kAffine;
      tensor.bits = form.bits;
      tensor.group = form.group;
    }
  }
  return bytes;
}

}  // namespace mb::gpu
