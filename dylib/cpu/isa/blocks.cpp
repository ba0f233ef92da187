// Rows of blocks decode to codes, scales and biases, and to f32.
// isa: scalar avx2 avx512 neon neon_dotprod
#include "blocks.h"

namespace mb {
namespace MB_ISA {

void unpack_run(const Weight &w, int64_t row, int64_t first, int64_t count, uint8_t *codes, float *scales, float *biases) {
  with_blocks(w.format, [&](auto blocks) {
    using B = decltype(blocks);
    RunBytes bytes;
    const uint8_t *run = bytes.template find<B>(w.row(row), first, w.columns);
    const int groups = static_cast<int>(count / B::kGroup);
    B::scales(run, w.scales ? w.scale_row(row) + first / B::kGroup : nullptr, groups, scales, biases);
    if constexpr (!B::kMinimums) {
      for (int g = 0; g < groups; g++) biases[g] = -B::kMiddle * scales[g];
    }
    for (int64_t c = 0; c < count; c += kCodeBytes) store_bytes(codes + c, B::codes(run, static_cast<int>(c)));
  });
}

void dequantize_mxfp8(const Weight &w, int64_t row, int64_t first, int64_t count, float *y) {
  const uint8_t *codes = w.row(row) + first, *scales = w.scale_row(row) + first / w.group;
  for (int64_t i = 0; i < count; i++) y[i] = e4m3(codes[i]) * e8m0(scales[i / w.group]);
}

}  // namespace MB_ISA
}  // namespace mb
