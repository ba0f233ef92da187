// weight_layout.h: how the kernels see a weight's storage, for lowering functions that name its numbers in their arguments.
#pragma once
#include "lower.h"

namespace mb::gpu {

#include "../../shaders/row_products_params.h"

constexpr uint32_t kBlockChunks = 16;  // chunks of a block: half a simdgroup, see shaders/weights.h

// Rows of k columns, of a matrix [n, k] or of experts [E, n, k].
struct WeightLayout {
  uint32_t k;
  uint32_t row_bytes;
  uint32_t chunk;          // columns that a lane takes at once, as chunk_columns() in weights.h
  uint32_t chunks, blocks; // of a row
  uint32_t scale_columns, group_shift;
  uint32_t code_bits;      // of codes that are multiplied as they lie; 0: of a plain format, or of codes with a book
  bool affine;             // codes with scales

  bool whole(uint32_t columns) const { return k % columns == 0; }
  uint32_t columns() const { return blocks * kBlockChunks * chunk; }  // of a row of u in chunked order
};

inline uint32_t log2_of(uint32_t value) {
  uint32_t shift = 0;
  while (value >> (shift + 1) != 0) shift++;
  return shift;
}

// Codes of a format as the kernels read them, blocks of GGUF after they are repacked. group 0: a plain format.
struct Codes {
  uint32_t bits, group;
  bool book;  // they stand for the numbers of a book
};

inline Codes codes_of(const Tensor &w) {
  switch (w.format) {
    case kAffine: return {w.bits, w.group, false};
    case kQ4_0:
    case kQ4K: return {4, 32, false};
    case kQ5_0:
    case kQ5K: return {5, 32, false};
    case kQ8_0: return {8, 32, false};
    case kQ2K: return {2, 16, false};
    case kQ3K: return {3, 16, false};
    case kQ6K: return {6, 16, false};
    case kIq4Nl:
    case kIq4Xs:
    case kMxfp4: return {4, 32, true};
    case kNvfp4: return {4, 16, true};
    case kMxfp8: return {8, 32, true};
    default: return {0, 0, false};
  }
}

// Throws Error(MB_UNSUPPORTED) for formats without kernels.
inline WeightLayout weight_layout(const Tensor &w) {
  weight_format_name(w);
  WeightLayout l{};
  l.k = static_cast<uint32_t>(w.dims[w.rank - 1]);
  if (w.format == kAffine) {
    const bool bits = w.bits == 2 || w.bits == 3 || w.bits == 4 || w.bits == 5 || w.bits == 6 || w.bits == 8;
    if (!bits || (w.group != 32 && w.group != 64 && w.group != 128)) {
      fail(MB_UNSUPPORTED,
           "The GPU kernels read affine weights of 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128, not %u bits in groups "
           "of %u. Use device \"cpu\".",
           w.bits, w.group);
    }
  }
  const Codes codes = codes_of(w);
  l.affine = codes.group != 0;
  l.code_bits = codes.book ? 0 : codes.bits;
  if (l.affine) {
    l.scale_columns = l.k / codes.group;
    l.group_shift = log2_of(codes.group);
  }
  const uint64_t bits = l.affine ? codes.bits : w.format == kF32 ? 32 : 16;
  l.row_bytes = static_cast<uint32_t>(l.k * bits / 8);
  l.chunk = l.affine ? (codes.bits == 8 || codes.group == 16 ? 16 : 32) : w.format == kF32 ? 4 : 8;
  l.chunks = divide_up(l.k, l.chunk);
  l.blocks = divide_up(l.chunks, kBlockChunks);
  return l;
}

inline RowParams row_params(const WeightLayout &l) {
  RowParams p{};
  p.k = l.k;
  p.row_bytes = l.row_bytes;
  p.chunks = l.chunks;
  p.blocks = l.blocks;
  p.whole = l.whole(l.chunk);
  p.scale_columns = l.scale_columns;
  p.group_shift = l.group_shift;
  p.code_exponent = kCodeExponent;
  p.row_floats = l.columns() + (l.affine ? kBlockChunks * l.blocks : 0);  // the sums of its chunks follow
  return p;
}

// Columns of a step of a tile of prefill rows, as tile_columns() in matmul_tile.h.
inline uint32_t step_columns(bool exact) { return exact ? 32 : 64; }

// `columns`: of u.
inline TileParams tile_params(const WeightLayout &l, uint32_t columns, bool exact) {
  TileParams p{};
  p.k = l.k;
  p.steps = columns / step_columns(exact);
  p.whole = l.whole(32);
  p.group_shift = l.group_shift;
  p.code_exponent = kCodeExponent;
  return p;
}

inline bool same_format(const Tensor &a, const Tensor &b) {
  return a.format == b.format && a.bits == b.bits && a.group == b.group &&
         (a.format != kAffine || a.scales->format == b.scales->format);
}

// A weight with its scales and biases at three slots from `slot` on; absent ones get the first binding's bytes.
inline void bind_weight(Launch &launch, uint32_t slot, const Tensor *w) {
  const Tensor *tensors[] = {w, w ? w->scales : nullptr, w ? w->biases : nullptr};
  for (uint32_t i = 0; i < 3; i++) {
    if (tensors[i]) launch.reads(slot + i, *tensors[i]);
    else launch.absent(slot + i);
  }
}

}  // namespace mb::gpu
