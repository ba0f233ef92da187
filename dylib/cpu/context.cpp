#include "context.h"

#include <cmath>

#include "../plan_check.h"

namespace mb {

int64_t max_rows(const Plan &plan, const Tensor *t) {
  return t->dims[0] < 0 ? static_cast<int64_t>(plan.symbol_max[-1 - t->dims[0]]) : t->dims[0];
}

int64_t columns_of(const Tensor *t) { return t->dims[t->rank - 1]; }

namespace {

// Bits of the codes that unpack_run() makes: the middle of their range stands for zero where a format has no minimum.
uint32_t code_bits(Format format) {
  switch (format) {
    case kQ2K: return 2;
    case kQ3K: return 3;
    case kQ4_0:
    case kQ4_1:
    case kQ4K: return 4;
    case kQ5_0:
    case kQ5_1:
    case kQ5K:
    case kMxfp4:
    case kNvfp4: return 5;  // -12 … 12, from 16 on
    case kQ6K: return 6;
    case kQ8_0:
    case kIq4Nl:
    case kIq4Xs: return 8;
    default: return 0;
  }
}

}  // namespace

Weight weight_of(const Plan &plan, const Tensor *t) {
  Weight w{};
  w.format = t->format;
  w.bits = t->bits;
  w.group = t->group;
  w.columns = columns_of(t);
  w.rows = 1;
  for (uint32_t i = 0; i + 1 < t->rank; i++) w.rows *= t->dims[i];
  w.data = plan.buffers[t->buffer]->host + t->offset;
  w.interleaved = t->interleaved;
  if (is_plain(t->format)) {
    w.row_bytes = w.columns * bytes_of_format(t->format);
    return w;
  }
  if (is_gguf(t->format)) {
    const FormatTraits &traits = *format_traits(t->format);
    w.row_bytes = w.columns / traits.block * traits.block_bytes;
    w.bits = code_bits(t->format);
    w.group = t->format == kQ2K || t->format == kQ3K || t->format == kQ6K ? 16 : 32;
    return w;
  }
  w.row_bytes = t->format == kAffine ? w.columns * w.bits / 8 : t->format == kMxfp8 ? w.columns : w.columns / 2;
  if (t->format != kAffine) w.bits = code_bits(t->format);
  w.scale_format = t->scales->format;
  w.scale_row_bytes = w.columns / w.group * bytes_of_format(w.scale_format);
  w.scales = plan.buffers[t->scales->buffer]->host + t->scales->offset;
  if (t->biases) w.biases = plan.buffers[t->biases->buffer]->host + t->biases->offset;
  return w;
}

void need_vector(ScratchNeed &need, const Tensor *t) {
  if (t && t->format != kF32) need.add_shared(static_cast<uint64_t>(columns_of(t)) * 4);
}

const float *Context::vector(const Tensor *t) {
  if (!t) return nullptr;
  if (t->format == kF32) return f32(t);
  const Weight w = weight_of(plan, t);
  float *copy = shared.take<float>(static_cast<uint64_t>(w.columns));
  kernels.dequantize(w, 0, 0, w.columns, copy);
  return copy;
}

const RopeTable &Context::rope_table(float theta, float position_scale, float position_offset, uint32_t head_dim,
                                     uint32_t pairs) {
  const auto [entry, is_new] = rope_tables.try_emplace({theta, position_scale, position_offset, head_dim, pairs});
  RopeTable &table = entry->second;
  if (!is_new) return table;
  const int64_t rows = input->header.rows;
  table.cosines.resize(static_cast<size_t>(rows) * pairs);
  table.sines.resize(table.cosines.size());
  std::vector<double> frequencies(pairs);
  for (uint32_t i = 0; i < pairs; i++) {
    frequencies[i] = static_cast<double>(position_scale) * std::pow(static_cast<double>(theta), -2.0 * i / head_dim);
  }
  parallel_ranges(rows, 4, [&](int64_t first, int64_t last, int) {
    for (int64_t r = first; r < last; r++) {
      for (uint32_t i = 0; i < pairs; i++) {
        const double angle = (input->position[r] + static_cast<double>(position_offset)) * frequencies[i];
        table.cosines[static_cast<size_t>(r) * pairs + i] = static_cast<float>(std::cos(angle));
        table.sines[static_cast<size_t>(r) * pairs + i] = static_cast<float>(std::sin(angle));
      }
    }
  });
  return table;
}

}  // namespace mb
