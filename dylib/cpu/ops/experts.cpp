// Products with the weights of chosen experts. Pairs of a row and one of its experts are grouped by expert first, so that each
// expert's weights are streamed once for all rows that chose it.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "../quantized.h"

namespace mb {

namespace {

constexpr int64_t kPairBlock = 32;           // pairs whose products with a tile are held at once
constexpr int64_t kTileFloats = 64 * 1024;   // widened weights of a tile
constexpr int64_t kMaxTile = 64;             // weight rows of a tile
constexpr int64_t kStreamBytes = 32 * 1024;  // weight bytes that a thread takes at a time for decode rows
constexpr int64_t kSumBytes = 4 << 20;       // products of all pairs with a tile of expert_down

bool is_int8(const Tensor *w, bool exact) { return has_codes(w->format) && !exact; }

// Pair q is slot q % slots of row q / slots. Pairs of one expert lie side by side, those of prefill rows first.
struct Groups {
  struct Group {
    int64_t expert;
    int64_t first, middle, last;  // places; decode rows from `middle` on
  };
  std::vector<Group> groups;
  std::vector<int64_t> pair;   // at each place
  std::vector<int64_t> place;  // of each pair; -1: its expert does not exist
  bool any_prefill = false;
};

Groups group_pairs(const Context &c, const Tensor *experts, int64_t count) {
  const int64_t rows = c.rows(experts), slots = columns_of(experts);
  const uint32_t *ids = reinterpret_cast<const uint32_t *>(c.bytes(experts));
  std::vector<int64_t> start(static_cast<size_t>(2 * count + 1));
  const auto key = [&](int64_t q) {
    const int64_t decode = c.input->row_class[c.input_row(experts, q / slots)];
    return static_cast<size_t>(2 * static_cast<int64_t>(ids[q]) + decode);
  };
  Groups g;
  g.place.assign(static_cast<size_t>(rows * slots), -1);
  for (int64_t q = 0; q < rows * slots; q++) if (ids[q] < count) start[key(q) + 1]++;
  for (size_t i = 1; i < start.size(); i++) start[i] += start[i - 1];
  g.pair.resize(static_cast<size_t>(start.back()));
  for (int64_t e = 0; e < count; e++) {
    const int64_t *s = start.data() + 2 * e;
    if (s[2] > s[0]) g.groups.push_back({e, s[0], s[1], s[2]});
    if (s[1] > s[0]) g.any_prefill = true;
  }
  for (int64_t q = 0; q < rows * slots; q++) {
    if (ids[q] >= count) continue;
    const int64_t place = start[key(q)]++;
    g.pair[static_cast<size_t>(place)] = q;
    g.place[static_cast<size_t>(q)] = place;
  }
  return g;
}

// Activation rows that pairs meet the weights with: `shared_by` pairs that follow each other have the same one.
struct Source {
  const float *base;
  int64_t columns, count, shared_by;
  int64_t of(int64_t pair) const { return pair / shared_by; }
  const float *row(int64_t pair) const { return base + of(pair) * columns; }
};

class ExpertProducts {
 public:
  // `experts` are those of the rows; `weights` [E, rows, columns], up to two.
  ExpertProducts(Context &c, const Tensor *experts, std::vector<const Tensor *> weights)
      : c_(c), k_(c.kernels), experts_(experts), groups(group_pairs(c, experts, weights[0]->dims[0])) {
    for (const Tensor *w : weights) {
      weights_.push_back(weight_of(c.plan, w));
      int8_.push_back(is_int8(w, c.exact));
    }
  }

  void set_source(const Source &source) {
    source_ = source;
    for (size_t i = 0; i < weights_.size(); i++) {
      if (int8_[i]) quantize(weights_[i].group, weights_[i].order());
    }
  }

  // Weight rows that are taken together of `rows` in each group. Every choice gives the same bits.
  int64_t tile_rows(int64_t rows, int64_t chunks_beside) const {
    int64_t tile = kMaxTile;
    for (size_t i = 0; i < weights_.size(); i++) {
      const Weight &w = weights_[i];
      if (int8_[i] && groups.any_prefill) {
        tile = std::min<int64_t>(tile, k_.tile_columns);
        continue;
      }
      const int64_t most = int8_[i] ? kStreamBytes / w.row_bytes : kTileFloats / w.columns;
      tile = std::min<int64_t>(tile, std::clamp<int64_t>(most, 4, kMaxTile) & ~3ll);
    }
    while (tile > 8 && rows * chunks_beside < tile * 2 * c_.threads) tile = (tile / 2 + 3) & ~3ll;
    return tile;
  }

  // out[(p - begin) * stride + n - first] = row n of weight i (of all experts' rows) times the activations of place p, for
  // weight rows [first, last) and places [begin, end) of one group, kPairBlock of them at most.
  struct Tile {
    size_t weight;
    int64_t first, last;
    const void *numbers;
    Format format;
    const uint8_t *packed;
  };

  Tile load_tile(size_t i, int64_t first, int64_t last, const Groups::Group &g, Scratch &scratch) const {
    const Weight &w = weights_[i];
    Tile tile{i, first, last, w.row(first), w.format, nullptr};
    if (int8_[i]) {
      if (g.middle > g.first) {
        uint8_t *packed = scratch.take<uint8_t>(static_cast<uint64_t>(k_.tile_bytes(w)));
        k_.pack_tile(w, first, last, packed);
        tile.packed = packed;
      }
      return tile;
    }
    // A plain weight is used where it lies, unless enough rows share the cost of widening it.
    if (w.format == kF32 || (is_plain(w.format) && g.last - g.first <= 4)) return tile;
    float *numbers = scratch.take<float>(static_cast<uint64_t>((last - first) * w.columns));
    for (int64_t n = first; n < last; n++) k_.dequantize(w, n, 0, w.columns, numbers + (n - first) * w.columns);
    tile.numbers = numbers;
    tile.format = kF32;
    return tile;
  }

  void multiply(const Tile &tile, const Groups::Group &g, int64_t begin, int64_t end, float *gathered, float *out,
                int64_t stride) const {
    const Weight &w = weights_[tile.weight];
    if (!int8_[tile.weight]) {
      const float *rows = gathered;
      if (end - begin == 1) rows = source_.row(groups.pair[static_cast<size_t>(begin)]);
      else gather(begin, end, gathered);
      k_.matmul(rows, w.columns, end - begin, tile.numbers, tile.format, w.columns, tile.last - tile.first, w.columns, out,
                stride);
      return;
    }
    const QuantizedRow *rows = find_quantized(w.group, w.order())->rows.data();
    const int64_t middle = std::clamp(g.middle, begin, end);
    if (middle > begin) k_.product_tile(w, tile.packed, tile.last - tile.first, rows + begin, middle - begin, out, stride);
    if (end > middle) {
      k_.product_rows(w, tile.first, tile.last, rows + middle, end - middle, out + (middle - begin) * stride, stride);
    }
  }

  static void need_shared(ScratchNeed &need, const Kernels &k, const Plan &plan, const std::vector<const Tensor *> &weights,
                          uint64_t rows, bool exact) {
    std::vector<std::pair<uint32_t, Order>> encodings;
    for (const Tensor *tensor : weights) {
      const Weight w = weight_of(plan, tensor);
      const std::pair<uint32_t, Order> encoding{w.group, w.order()};
      if (!is_int8(tensor, exact) || std::find(encodings.begin(), encodings.end(), encoding) != encodings.end()) continue;
      encodings.push_back(encoding);
      need_quantized(need, k, static_cast<int64_t>(rows), w.columns, w.group);
    }
  }

  static void need_tile(ScratchNeed &need, const Kernels &k, const Plan &plan, const Tensor *tensor, bool exact) {
    const Weight w = weight_of(plan, tensor);
    if (is_int8(tensor, exact)) {
      need.add_thread(static_cast<uint64_t>(k.tile_bytes(w)));
    } else {
      need.add_thread(static_cast<uint64_t>(std::max(kTileFloats, 4 * w.columns)) * 4);
    }
  }

  const Weight &weight(size_t i) const { return weights_[i]; }

 private:
  void gather(int64_t begin, int64_t end, float *to) const {
    for (int64_t p = begin; p < end; p++, to += source_.columns) {
      memcpy(to, source_.row(groups.pair[static_cast<size_t>(p)]), static_cast<size_t>(source_.columns) * sizeof(float));
    }
  }

  const Quantized *find_quantized(int64_t group, Order order) const {
    for (const Quantized &q : quantized_) if (q.group == group && q.order == order) return &q;
    return nullptr;
  }

  void quantize(int64_t group, Order order) {
    if (find_quantized(group, order)) return;
    const int64_t rows_each = columns_of(experts_) / source_.shared_by;  // of the source, for one row of the op
    const Quantized each = take_quantized(c_, source_.count, source_.columns, group, order);
    c_.parallel_ranges(source_.count, 4, [&](int64_t first, int64_t last, int) {
      for (int64_t i = first; i < last; i++) {
        const bool decode = c_.input->row_class[c_.input_row(experts_, i / rows_each)] == 1;
        const auto quantize = decode ? k_.quantize_for_rows : k_.quantize_for_tile;
        quantize(source_.base + i * source_.columns, source_.columns, group, order, each.rows[static_cast<size_t>(i)]);
      }
    });
    Quantized placed{group, order, {}};
    for (const int64_t pair : groups.pair) placed.rows.push_back(each.rows[static_cast<size_t>(source_.of(pair))]);
    quantized_.push_back(std::move(placed));
  }

  Context &c_;
  const Kernels &k_;
  const Tensor *experts_;
  std::vector<Weight> weights_;
  std::vector<bool> int8_;
  Source source_{};
  std::vector<Quantized> quantized_;

 public:
  const Groups groups;
};

// Products of each pair to its own part of y: gelu_tanh(w0 u) * (w1 u), or w0 u alone. Part p of expert e are rows
// e * each + first[p] … + width of its weight.
struct Part {
  size_t weight;
  int64_t each, first;
};

void run_products(Context &c, const ExpertProducts &products, const std::vector<Part> &parts, int64_t width, const Tensor *y) {
  const Kernels &k = c.kernels;
  const Groups &g = products.groups;
  for (size_t q = 0; q < g.place.size(); q++) {
    if (g.place[q] < 0) memset(c.f32(y) + static_cast<int64_t>(q) * width, 0, static_cast<size_t>(width) * sizeof(float));
  }
  const int64_t tile = products.tile_rows(width, static_cast<int64_t>(g.groups.size()));
  const int64_t tiles = (width + tile - 1) / tile;
  c.parallel(static_cast<int64_t>(g.groups.size()) * tiles, [&](int64_t chunk, int thread) {
    Scratch scratch = c.thread_scratch[static_cast<size_t>(thread)];
    const Groups::Group &group = g.groups[static_cast<size_t>(chunk / tiles)];
    const int64_t first = chunk % tiles * tile, last = std::min(first + tile, width), n = last - first;
    float *gathered = scratch.take<float>(static_cast<uint64_t>(kPairBlock * products.weight(0).columns));
    float *out[2] = {scratch.take<float>(kPairBlock * kMaxTile), scratch.take<float>(kPairBlock * kMaxTile)};
    std::vector<ExpertProducts::Tile> loaded;
    for (const Part &part : parts) {
      const int64_t from = group.expert * part.each + part.first;
      loaded.push_back(products.load_tile(part.weight, from + first, from + last, group, scratch));
    }
    for (int64_t p = group.first; p < group.last; p += kPairBlock) {
      const int64_t end = std::min(p + kPairBlock, group.last);
      for (size_t i = 0; i < parts.size(); i++) products.multiply(loaded[i], group, p, end, gathered, out[i], n);
      for (int64_t q = p; q < end; q++) {
        float *to = c.f32(y) + g.pair[static_cast<size_t>(q)] * width + first;
        const int64_t at = (q - p) * n;
        if (parts.size() == 2) k.gelu_mul(to, out[0] + at, out[1] + at, n);
        else memcpy(to, out[0] + at, static_cast<size_t>(n) * sizeof(float));
      }
    }
  });
}

}  // namespace

void run_expert_gate_up(Context &c, const Op &op) {
  const auto &o = op.operands;
  const Tensor *x = o[0], *experts = o[2], *y = o[5];
  const int64_t rows = c.rows(x), n = columns_of(x), slots = columns_of(experts);
  const float *norm = c.vector(o[1]), *u = c.f32(x);
  if (norm) {
    float *normed = c.shared.take<float>(static_cast<uint64_t>(rows * n));
    c.parallel_ranges(rows, 4, [&](int64_t first, int64_t last, int) {
      for (int64_t r = first; r < last; r++) {
        const float *from = c.f32(x) + r * n;
        const float mean = c.kernels.sum_of_squares(from, n) / static_cast<float>(n);
        c.kernels.scale_row(normed + r * n, from, 1.0f / std::sqrt(mean + op.floats[0]), norm, n);
      }
    });
    u = normed;
  }
  const int64_t width = columns_of(y) / slots;
  std::vector<const Tensor *> weights{o[3]};
  std::vector<Part> parts{{0, 2 * width, 0}, {0, 2 * width, width}};
  if (o[4]) {
    weights.push_back(o[4]);
    parts = {{0, width, 0}, {1, width, 0}};
  }
  ExpertProducts products(c, experts, weights);
  products.set_source({u, n, rows, slots});
  run_products(c, products, parts, width, y);
}

void run_expert_linear(Context &c, const Op &op) {
  const Tensor *x = op.operands[0], *experts = op.operands[1], *w = op.operands[2], *y = op.operands[3];
  const int64_t rows = c.rows(x), n = columns_of(w), slots = columns_of(experts);
  const bool each_slot = columns_of(x) == slots * n;
  ExpertProducts products(c, experts, {w});
  products.set_source({c.f32(x), n, each_slot ? rows * slots : rows, each_slot ? 1 : slots});
  run_products(c, products, {{0, w->dims[1], static_cast<int64_t>(op.ints[0])}}, columns_of(y) / slots, y);
}

ScratchNeed need_expert_products(const Kernels &k, const Plan &plan, const Op &op, bool exact) {
  const auto &o = op.operands;
  const bool gate_up = op.kind == kExpertGateUp;
  const Tensor *x = o[0];
  const uint64_t rows = static_cast<uint64_t>(max_rows(plan, x));
  std::vector<const Tensor *> weights{gate_up ? o[3] : o[2]};
  if (gate_up && o[4]) weights.push_back(o[4]);
  const uint64_t n = static_cast<uint64_t>(columns_of(weights[0]));
  ScratchNeed need;
  if (gate_up) need_vector(need, o[1]);
  if (gate_up && o[1]) need.add_shared(rows * n * 4);
  ExpertProducts::need_shared(need, k, plan, weights, rows * (static_cast<uint64_t>(columns_of(x)) / n), exact);
  need.add_thread(kPairBlock * n * 4);
  for (int i = 0; i < 2; i++) need.add_thread(kPairBlock * kMaxTile * 4);
  for (int i = 0; i < (gate_up ? 2 : 1); i++) {
    ExpertProducts::need_tile(need, k, plan, weights[weights.size() == 2 ? static_cast<size_t>(i) : 0], exact);
  }
  return need;
}

namespace {
// Output columns that expert_down takes together: products of all pairs with them are held.
int64_t sum_tile(int64_t tile, int64_t pairs) {
  return std::max<int64_t>(4, std::min<int64_t>(tile, kSumBytes / 4 / std::max<int64_t>(pairs, 1) & ~3ll));
}
}  // namespace

void run_expert_down(Context &c, const Op &op) {
  const Tensor *x = op.operands[0], *experts = op.operands[1], *shares = op.operands[2], *w = op.operands[3], *y = op.operands[4];
  const Kernels &k = c.kernels;
  const int64_t rows = c.rows(x), n = columns_of(w), slots = columns_of(experts), width = columns_of(y);
  ExpertProducts products(c, experts, {w});
  products.set_source({c.f32(x), n, rows * slots, 1});
  const Groups &g = products.groups;
  const int64_t tile = sum_tile(products.tile_rows(width, 1), rows * slots);
  c.parallel((width + tile - 1) / tile, [&](int64_t chunk, int thread) {
    const int64_t first = chunk * tile, last = std::min(first + tile, width), count = last - first;
    Scratch kept = c.thread_scratch[static_cast<size_t>(thread)];
    float *gathered = kept.take<float>(static_cast<uint64_t>(kPairBlock * n));
    float *out = kept.take<float>(static_cast<uint64_t>(rows * slots * tile));
    for (const Groups::Group &group : g.groups) {
      Scratch scratch = kept;
      const int64_t from = group.expert * width;
      const auto loaded = products.load_tile(0, from + first, from + last, group, scratch);
      for (int64_t p = group.first; p < group.last; p += kPairBlock) {
        products.multiply(loaded, group, p, std::min(p + kPairBlock, group.last), gathered, out + p * count, count);
      }
    }
    for (int64_t r = 0; r < rows; r++) {
      float *to = c.f32(y) + r * width + first;
      const float *share = c.f32(shares) + r * slots;
      memset(to, 0, static_cast<size_t>(count) * sizeof(float));
      for (int64_t s = 0; s < slots; s++) {
        const int64_t place = g.place[static_cast<size_t>(r * slots + s)];
        if (place >= 0) k.blend(to, 1.0f, out + place * count, share[s], count);
      }
    }
  });
}

ScratchNeed need_expert_down(const Kernels &k, const Plan &plan, const Op &op, bool exact) {
  const Tensor *x = op.operands[0], *w = op.operands[3];
  const int64_t pairs = max_rows(plan, x) * columns_of(op.operands[1]);
  ScratchNeed need;
  ExpertProducts::need_shared(need, k, plan, {w}, static_cast<uint64_t>(pairs), exact);
  need.add_thread(kPairBlock * static_cast<uint64_t>(columns_of(w)) * 4);
  // The tile of a run with fewer pairs may be wider, but never so that the products exceed this.
  const int64_t products = std::min(std::max(kSumBytes, pairs * 16), pairs * kMaxTile * 4);
  need.add_thread(static_cast<uint64_t>(products));
  ExpertProducts::need_tile(need, k, plan, w, exact);
  return need;
}

}  // namespace mb
