#include "quantized.h"

namespace mb {

namespace {

int64_t padded(const Kernels &k, int64_t columns) { return (columns + k.code_padding - 1) / k.code_padding * k.code_padding; }
int64_t segments_of(int64_t columns) { return columns / kSegment; }
// Decode rows take a vector of sums at a time, which may reach beyond the last group.
int64_t sums_of(int64_t columns, int64_t group) { return columns / group + sums_padding; }

}  // namespace

Quantized take_quantized(Context &c, int64_t rows, int64_t columns, int64_t group, Order order) {
  const int64_t width = padded(c.kernels, columns), groups = columns / group, segments = segments_of(columns);
  int8_t *codes = c.shared.take<int8_t>(static_cast<uint64_t>(2 * rows * width));
  const int64_t sum_count = sums_of(columns, group);
  float *scales = c.shared.take<float>(static_cast<uint64_t>(rows * segments));
  float *sums = c.shared.take<float>(static_cast<uint64_t>(rows * sum_count));
  float *rounded_sums = c.shared.take<float>(static_cast<uint64_t>(rows * groups));
  int32_t *rough = c.shared.take<int32_t>(static_cast<uint64_t>(rows * (segments + 1)));
  Quantized q{group, order, {}};
  for (int64_t i = 0; i < rows; i++) {
    int8_t *high = codes + 2 * i * width;
    q.rows.push_back({high, high + width, scales + i * segments, sums + i * sum_count, rounded_sums + i * groups,
                      rough + i * (segments + 1)});
  }
  return q;
}

void need_quantized(ScratchNeed &need, const Kernels &k, int64_t rows, int64_t columns, int64_t group) {
  const int64_t segments = segments_of(columns);
  need.add_shared(static_cast<uint64_t>(2 * rows * padded(k, columns)));
  need.add_shared(static_cast<uint64_t>(rows * segments) * 4);
  need.add_shared(static_cast<uint64_t>(rows * sums_of(columns, group)) * 4);
  need.add_shared(static_cast<uint64_t>(rows * (columns / group)) * 4);
  need.add_shared(static_cast<uint64_t>(rows * (segments + 1)) * 4);
}

}  // namespace mb
