// The fused matrix product: prologue per row, weights streamed once by tiles of their rows, epilogue per tile.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "../../plan_check.h"
#include "../band_form.h"
#include "../quantized.h"

namespace mb {

namespace {

constexpr int64_t kRowBlock = 64;           // rows whose products with a tile are held before the epilogue
constexpr int64_t kTileFloats = 64 * 1024;  // dequantised weights of a tile: a quarter of the usual L2 cache
constexpr int64_t kMaxTile = 64;            // weight rows of a tile
// Weight bytes that a thread takes at a time for decode rows: interleaved ones are done with sooner, and each claim costs the same.
constexpr int64_t kStreamBytes = 32 * 1024, kInterleavedBytes = 80 * 1024;

// How a weight meets the activations.
enum class Path { kF32, kInt8 };

Path path_of(const Tensor *w, bool exact) { return has_codes(w->format) && !exact ? Path::kInt8 : Path::kF32; }

enum Slot { kX, kResidual, kPostNorm, kScalar, kHOut, kPreNorm, kW0, kW1, kW2, kBias0, kBias1, kBias2, kOther, kY };

bool needs_u(const Op &op) {
  const auto &o = op.operands;
  return o[kPreNorm] || (op.flags & kClip) || ((o[kResidual] || o[kPostNorm] || o[kScalar]) && !o[kHOut]);
}

std::vector<Weight> weights_of(const Plan &plan, const Op &op) {
  std::vector<Weight> weights;
  for (int slot = kW0; slot <= kW2 && op.operands[slot]; slot++) weights.push_back(weight_of(plan, op.operands[slot]));
  return weights;
}

// Weight rows that are taken together come in multiples of this, for all weights of an op, as GeGLU takes the same rows of two.
int64_t unit_of(const std::vector<Weight> &weights) {
  return std::any_of(weights.begin(), weights.end(), [](const Weight &w) { return w.interleaved != nullptr; }) ? kBandRows : 4;
}

// Weight rows that are taken together. Every choice gives the same bits.
int64_t tile_rows(const Kernels &k, const Weight &w, Path path, int64_t unit, int64_t rows, bool prefill, int threads) {
  if (path == Path::kInt8) {
    if (prefill) return k.tile_columns;
    const int64_t bytes = w.interleaved ? kInterleavedBytes : kStreamBytes;
    int64_t tile = std::clamp<int64_t>(bytes / w.row_bytes, unit, kMaxTile) & ~(unit - 1);
    while (tile > std::max<int64_t>(unit, 8) && w.rows < tile * 2 * threads) tile = (tile / 2 + unit - 1) & ~(unit - 1);
    return tile;
  }
  const int64_t most = std::clamp<int64_t>(kTileFloats / w.columns, unit, kMaxTile) & ~(unit - 1);
  const int64_t worthwhile = 32 * 1024 / (rows * w.columns) + 1;  // products that are worth a claim
  const int64_t fair = (w.rows + 4 * threads - 1) / (4 * threads);
  return std::min<int64_t>(most, (std::max(worthwhile, fair) + unit - 1) & ~(unit - 1));
}

class Linear {
 public:
  Linear(Context &context, const Op &op)
      : c_(context), k_(context.kernels), op_(op), weights_(weights_of(context.plan, op)), unit_(unit_of(weights_)) {
    const auto &o = op.operands;
    columns_ = columns_of(o[kX]);
    rows_ = c_.rows(o[kX]);
    for (size_t i = 0; i < weights_.size(); i++) paths_.push_back(path_of(o[kW0 + i], c_.exact));
    post_norm_ = c_.vector(o[kPostNorm]);
    pre_norm_ = c_.vector(o[kPreNorm]);
    scalar_ = o[kScalar] ? *c_.vector(o[kScalar]) : 1.0f;
    u_ = needs_u(op) ? c_.shared.take<float>(static_cast<uint64_t>(rows_ * columns_)) : nullptr;
    if (!u_) u_ = o[kHOut] ? c_.f32(o[kHOut]) : c_.f32(o[kX]);
    order_rows();
    for (size_t i = 0; i < weights_.size(); i++) {
      const Order order = weights_[i].order();
      if (paths_[i] != Path::kInt8 || find_quantized(weights_[i].group, order)) continue;
      quantized_.push_back(take_quantized(c_, rows_, columns_, weights_[i].group, order));
    }
  }

  void run() {
    if (rows_ == 0) return;
    // One row's prologue takes less time than waking a thread for it.
    c_.parallel_ranges(rows_, 4, [&](int64_t first, int64_t last, int thread) {
      Scratch scratch = c_.thread_scratch[static_cast<size_t>(thread)];
      float *h = scratch.take<float>(static_cast<uint64_t>(columns_));
      for (int64_t place = first; place < last; place++) prepare(place, h);
    });
    struct Range {
      size_t weight;
      int64_t tile, chunks;
    };
    std::vector<Range> ranges;
    int64_t chunks = 0;
    const bool paired = op_.ints[0] == kEpilogueGeglu;
    for (size_t i = 0; i < (paired ? 1 : weights_.size()); i++) {
      const auto rows_of = [&](size_t j) {
        return tile_rows(k_, weights_[j], paths_[j], unit_, rows_, prefill_ > 0, c_.threads);
      };
      const int64_t tile = paired ? std::min(rows_of(0), rows_of(1)) : rows_of(i);
      ranges.push_back({i, tile, (weights_[i].rows + tile - 1) / tile});
      chunks += ranges.back().chunks;
    }
    c_.parallel(chunks, [&](int64_t chunk, int thread) {
      size_t i = 0;
      while (chunk >= ranges[i].chunks) chunk -= ranges[i++].chunks;
      const int64_t first = chunk * ranges[i].tile, last = std::min(first + ranges[i].tile, weights_[i].rows);
      products(ranges[i].weight, first, last, c_.thread_scratch[static_cast<size_t>(thread)]);
    });
  }

 private:
  // Prefill rows come first and decode rows after them, as int8 kernels differ by class. In exact mode there is no such
  // difference and no reordering.
  void order_rows() {
    order_.resize(static_cast<size_t>(rows_));
    const bool by_class = std::count(paths_.begin(), paths_.end(), Path::kInt8) > 0;
    int64_t place = 0;
    for (uint32_t row_class = 0; row_class < 2; row_class++) {
      for (int64_t r = 0; r < rows_; r++) {
        if (by_class && c_.input->row_class[c_.input_row(op_.operands[kX], r)] != row_class) continue;
        if (!by_class && row_class == 1) continue;
        order_[static_cast<size_t>(place++)] = r;
      }
      if (row_class == 0) prefill_ = place;
    }
  }

  const Quantized *find_quantized(int64_t group, Order order) const {
    for (const Quantized &q : quantized_) if (q.group == group && q.order == order) return &q;
    return nullptr;
  }

  // h, u and the quantised activations of the row at `place`; h_scratch [columns].
  void prepare(int64_t place, float *h_scratch) {
    const auto &o = op_.operands;
    const int64_t r = order_[static_cast<size_t>(place)], n = columns_;
    const float eps = op_.floats[0];
    const float *h = c_.f32(o[kX]) + r * n;
    if (o[kResidual] || o[kPostNorm] || o[kScalar] || o[kHOut]) {
      float *out = o[kHOut] ? c_.f32(o[kHOut]) + r * n : h_scratch;
      if (o[kPostNorm]) {
        k_.scale_row(out, h, 1.0f / std::sqrt(k_.sum_of_squares(h, n) / static_cast<float>(n) + eps), post_norm_, n);
        h = out;
      }
      k_.add_rows(out, h, 1.0f, o[kResidual] ? c_.f32(o[kResidual]) + r * n : nullptr, 1.0f, scalar_, n);
      h = out;
    }
    float *u = u_ + r * n;
    if (o[kPreNorm]) {
      k_.scale_row(u, h, 1.0f / std::sqrt(k_.sum_of_squares(h, n) / static_cast<float>(n) + eps), pre_norm_, n);
    } else if (u != h) {
      memcpy(u, h, static_cast<size_t>(n) * sizeof(float));
    }
    if (op_.flags & kClip) k_.clamp(u, u, op_.floats[2], op_.floats[3], n);
    for (const Quantized &q : quantized_) {
      const auto quantize = place < prefill_ ? k_.quantize_for_tile : k_.quantize_for_rows;
      quantize(u, n, q.group, q.order, q.rows[static_cast<size_t>(place)]);
    }
  }

  // Rows [first, last) of a weight (and, with GeGLU, of the next one) for all activation rows, to y.
  void products(size_t i, int64_t first, int64_t last, Scratch scratch) {
    const bool paired = op_.ints[0] == kEpilogueGeglu;
    const int64_t n = last - first;
    float *out[2] = {scratch.take<float>(kRowBlock * kMaxTile), scratch.take<float>(kRowBlock * kMaxTile)};
    float *bias[2] = {};
    Tile tiles[2];
    for (int part = 0; part < (paired ? 2 : 1); part++) {
      tiles[part] = load_tile(i + static_cast<size_t>(part), first, last, scratch);
      const Tensor *b = op_.operands[kBias0 + i + static_cast<size_t>(part)];
      if (!b) continue;
      bias[part] = scratch.take<float>(kMaxTile);
      k_.dequantize(weight_of(c_.plan, b), 0, first, n, bias[part]);
    }
    for (int64_t p = 0; p < rows_; p += kRowBlock) {
      const int64_t end = std::min(p + kRowBlock, rows_);
      for (int part = 0; part < (paired ? 2 : 1); part++) {
        multiply(tiles[part], p, end, out[part], n);
        if (!bias[part]) continue;
        for (int64_t q = p; q < end; q++) {
          float *row = out[part] + (q - p) * n;
          k_.add_rows(row, row, 1.0f, bias[part], 1.0f, 1.0f, n);
        }
      }
      if (op_.flags & kClip) k_.clamp(out[0], out[0], op_.floats[4], op_.floats[5], (end - p) * n);
      for (int64_t q = p; q < end; q++) {
        finish(i, first, n, order_[static_cast<size_t>(q)], out[0] + (q - p) * n, out[1] + (q - p) * n);
      }
    }
  }

  // Rows [first, last) of a weight, ready for products.
  struct Tile {
    size_t weight;
    int64_t first, last;
    const void *numbers;   // f32 path: [last - first, columns]
    Format format;         // of numbers
    const uint8_t *packed; // int8 path, for prefill rows
  };

  Tile load_tile(size_t i, int64_t first, int64_t last, Scratch &scratch) {
    const Weight &w = weights_[i];
    Tile tile{i, first, last, nullptr, w.format, nullptr};
    if (paths_[i] == Path::kInt8) {
      if (prefill_ > 0) {
        uint8_t *packed = scratch.take<uint8_t>(static_cast<uint64_t>(k_.tile_bytes(w)));
        k_.pack_tile(w, first, last, packed);
        tile.packed = packed;
      }
      return tile;
    }
    // A plain weight is used where it lies, unless enough rows share the cost of widening it.
    const bool plain = w.format == kF32 || (is_plain(w.format) && rows_ <= 4);
    if (plain) {
      tile.numbers = w.row(first);
      return tile;
    }
    float *numbers = scratch.take<float>(static_cast<uint64_t>((last - first) * w.columns));
    for (int64_t n = first; n < last; n++) k_.dequantize(w, n, 0, w.columns, numbers + (n - first) * w.columns);
    tile.numbers = numbers;
    tile.format = kF32;
    return tile;
  }

  // out[(p - begin) * stride + n - first] for the places [begin, end).
  void multiply(const Tile &tile, int64_t begin, int64_t end, float *out, int64_t stride) {
    const Weight &w = weights_[tile.weight];
    if (paths_[tile.weight] == Path::kF32) {
      for (int64_t p = begin; p < end;) {  // by runs of rows that follow each other in memory
        const int64_t r = order_[static_cast<size_t>(p)];
        int64_t q = p + 1;
        while (q < end && order_[static_cast<size_t>(q)] == r + q - p) q++;
        k_.matmul(u_ + r * columns_, columns_, q - p, tile.numbers, tile.format, columns_, tile.last - tile.first, columns_,
                  out + (p - begin) * stride, stride);
        p = q;
      }
      return;
    }
    const QuantizedRow *rows = find_quantized(w.group, w.order())->rows.data();
    const int64_t middle = std::clamp(prefill_, begin, end);
    if (middle > begin) {
      k_.product_tile(w, tile.packed, tile.last - tile.first, rows + begin, middle - begin, out, stride);
    }
    if (end > middle) {
      k_.product_rows(w, tile.first, tile.last, rows + middle, end - middle, out + (middle - begin) * stride, stride);
    }
  }

  // The epilogue of n products of row r, from column `first` of weight i.
  void finish(size_t i, int64_t first, int64_t n, int64_t r, const float *a, const float *b) {
    const auto &o = op_.operands;
    const int64_t width = columns_of(o[kY]);
    int64_t column = first;
    for (size_t before = 0; before < i; before++) column += weights_[before].rows;
    float *y = c_.f32(o[kY]) + r * width + column;
    switch (op_.ints[0]) {
      case kEpilogueGeglu: return k_.gelu_mul(y, a, b, n);
      case kEpilogueGeluMul:
        return k_.gelu_mul(y, a, c_.f32(o[kOther]) + r * columns_of(o[kOther]) + op_.ints[1] + first, n);
      case kEpilogueSilu: return k_.silu(y, a, n);
      case kEpilogueSoftcap: return k_.softcap(y, a, op_.floats[1], n);
      default: memcpy(y, a, static_cast<size_t>(n) * sizeof(float));
    }
  }

  Context &c_;
  const Kernels &k_;
  const Op &op_;
  const std::vector<Weight> weights_;
  const int64_t unit_;  // unit_of(weights_)
  int64_t columns_, rows_;
  std::vector<Path> paths_;
  const float *post_norm_, *pre_norm_;
  float scalar_;
  float *u_;                    // [rows, columns]; x itself where the op has no prologue
  std::vector<int64_t> order_;  // row at each place
  int64_t prefill_ = 0;         // places below this hold prefill rows
  std::vector<Quantized> quantized_;
};

}  // namespace

void run_linear(Context &c, const Op &op) { Linear(c, op).run(); }

ScratchNeed need_linear(const Kernels &k, const Plan &plan, const Op &op, bool exact) {
  const auto &o = op.operands;
  const int64_t rows = max_rows(plan, o[kX]), columns = columns_of(o[kX]);
  ScratchNeed need;
  for (int slot : {kPostNorm, kPreNorm, kScalar}) need_vector(need, o[slot]);
  if (needs_u(op)) need.add_shared(static_cast<uint64_t>(rows * columns) * 4);
  std::vector<std::pair<int64_t, Order>> encodings;
  uint64_t prologue = ScratchNeed::rounded(static_cast<uint64_t>(columns) * 4);
  ScratchNeed tiles;
  for (int i = 0; i < 2; i++) {
    tiles.add_thread(kRowBlock * kMaxTile * 4);
    tiles.add_thread(kMaxTile * 4);
  }
  uint64_t largest = 0, all = 0;
  const std::vector<Weight> weights = weights_of(plan, op);
  for (size_t i = 0; i < weights.size(); i++) {
    const Weight &w = weights[i];
    uint64_t bytes;
    if (path_of(o[kW0 + i], exact) == Path::kInt8) {
      bytes = ScratchNeed::rounded(static_cast<uint64_t>(k.tile_bytes(w)));
      const std::pair<int64_t, Order> encoding{w.group, w.order()};
      if (std::find(encodings.begin(), encodings.end(), encoding) == encodings.end()) encodings.push_back(encoding);
    } else {
      bytes = ScratchNeed::rounded(static_cast<uint64_t>(std::max(kTileFloats, unit_of(weights) * columns)) * 4);
    }
    largest = std::max(largest, bytes);
    all += bytes;
  }
  tiles.thread += op.ints[0] == kEpilogueGeglu ? all : largest;
  need.thread = std::max(prologue, tiles.thread);
  for (const auto &encoding : encodings) need_quantized(need, k, rows, columns, encoding.first);
  return need;
}

std::string name_linear(const Plan &plan, const Op &op, bool exact) {
  std::string name = "linear";
  const std::vector<Weight> weights = weights_of(plan, op);
  for (size_t i = 0; i < weights.size(); i++) {
    const Weight &w = weights[i];
    const Tensor *t = op.operands[kW0 + i];
    name += w.format == kAffine ? "_q" + std::to_string(w.bits) : std::string("_") + format_traits(w.format)->name;
    name += path_of(t, exact) == Path::kF32 ? "_f32" : w.interleaved ? "_int8_interleaved" : "_int8";
  }
  return name;
}

}  // namespace mb
