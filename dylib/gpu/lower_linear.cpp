// lower_linear.cpp: the fused matrix product (shaders/matvec.h, matvec_tile.h, matmul.h, linear_prologue.metal).
//
// Dispatches. Decode, one row: one; more rows: the prologue, then one. On matrix units one for up to four rows too, and for any
// number of them without norms and residual. Prefill: the prologue, then one. Matrices of different formats take one product
// dispatch for each format. With bounds or SiLU all rows go as prefill rows do, and one more dispatch (clip.metal) makes y of the
// products.
#include <algorithm>
#include <utility>

#include "weight_layout.h"

namespace mb::gpu {
namespace {

#include "../../shaders/clip_params.h"
#include "../../shaders/tower_params.h"

constexpr uint32_t kSimdgroups = 8;         // of a matvec threadgroup,
constexpr uint32_t kWideSimdgroups = 16;    // of a wide one
constexpr uint32_t kDriverBytes = 2048;     // of a core's threadgroup memory, the driver's for a threadgroup, rounded up
constexpr uint32_t kPartialBytes = 768;     // of threadgroup memory for partial sums; the rest holds u
constexpr uint32_t kStagedStride = 17;      // as in matvec.h
constexpr uint32_t kLongRow = 1024;         // columns from which a core without work is felt
constexpr uint32_t kTileSimdgroups = 16;    // of a threadgroup of tiles, as in tile_stream.h
constexpr uint32_t kMostStagedBytes = 112 << 10;  // of u of several rows: beyond, each threadgroup makes too much of it
constexpr uint32_t kSetsOfStaged = 2;       // of a threadgroup, from which on it copies u instead of reading it for each anew
constexpr uint32_t kLongestPlain = 4096;    // columns: of longer rows no threadgroup reads more than 8 as f32
constexpr uint32_t kDefaultCores = 128;     // where the device does not tell
constexpr uint32_t kSimdgroupsOfCore = 16;  // of one-row kernels that a core holds at once

enum Slot : uint32_t { kX, kResidual, kPostNorm, kScalar, kHOut, kPreNorm, kW0, kBias0 = kW0 + 3, kOther = 12, kY = 13 };

// Matrices of one format, whose products one dispatch makes.
struct Part {
  std::vector<const Tensor *> weights, biases;
  std::vector<uint32_t> columns;     // where each one's outputs begin in a row of y
  uint32_t epilogue = kEpilogueNone;
  const Tensor *y = nullptr, *other = nullptr;
  uint32_t y_stride = 0, other_stride = 0, other_column = 0;
  bool y_in_scratch = false, other_in_scratch = false;
  uint64_t y_scratch = 0;            // offset; also of `other`

  const Tensor &first() const { return *weights[0]; }
  bool geglu() const { return epilogue == kEpilogueGeglu; }
  uint32_t n(size_t i) const { return i < weights.size() ? static_cast<uint32_t>(weights[i]->dims[0]) : 0; }
};

// Bytes of threadgroup memory for a block of u.
uint32_t staged_bytes(const WeightLayout &layout) {
  return layout.chunk / 4 * kStagedStride * 16 + (layout.affine ? kBlockChunks * 4 : 0);
}

// Of threadgroup memory for u and partial sums of the one-row kernel: its share of a core's, where one may have that much.
uint32_t staging_bytes(const Limits &limits, uint32_t simdgroups) {
  return std::max(limits.threadgroup_bytes, limits.most_threadgroup_bytes * simdgroups / kSimdgroupsOfCore - kDriverBytes);
}

// Row groups of the matrices of a part, and of the first, and the first two of them: 2 · nr rows, of one matrix or nr each of gate and up.
struct Groups {
  uint32_t first, two, all;
};
Groups groups_of(const Part &part, uint32_t nr) {
  if (part.geglu()) {
    const uint32_t all = divide_up(part.n(0), nr);
    return {all, all, all};
  }
  const uint32_t first = divide_up(part.n(0), 2 * nr), two = first + divide_up(part.n(1), 2 * nr);
  return {first, two, two + divide_up(part.n(2), 2 * nr)};
}

// How decode rows of one part are spread over simdgroups. Part of a row's order of addition, so a function of the op, its
// matrices and the device alone.
struct Split {
  uint32_t blocks, slices, rows_of_half;  // NR of the one-row kernel
  uint32_t depth;                         // D of the one-row kernel
  uint32_t phase_blocks;
  uint32_t resident;                      // threadgroups of the one-row kernel on a core
};

// The cheapest by a model of one row's product: what the busiest core issues, and the waits of a simdgroup, in units of 1.25 ns of an
// H200, fitted to 360 timings of the products of E4B, 26B-A4B and 31B there. It chose from those what took at most 9% longer than the
// best, and 1% on average.
Split split_of(const Part &part, bool norms, uint32_t simdgroups, const Limits &limits) {
  const uint32_t cores = limits.cores != 0 ? limits.cores : kDefaultCores;
  const WeightLayout layout = weight_layout(part.first());
  const uint32_t blocks = layout.blocks;
  const uint32_t fitting = (staging_bytes(limits, simdgroups) - kPartialBytes) / staged_bytes(layout);
  const uint32_t most = kSimdgroupsOfCore / simdgroups;
  // Where kernels start early, one threadgroup of a core leaves room for one of the next kernel.
  const uint32_t fewest = limits.family == "cuda" ? 1 : most;
  Split best{};
  double best_cost = 0;
  for (const auto &[nr, depth] : {std::pair{2u, 2u}, {3u, 2u}, {5u, 1u}}) {
    const uint32_t groups = groups_of(part, nr).all;
    for (const uint32_t slices : {1u, 2u, 4u, 8u}) {
      if (blocks > fitting && depth * slices > fitting) continue;
      const uint32_t blocks_each = divide_up(blocks, slices);
      for (uint32_t resident = fewest; resident <= most; resident++) {
        const uint32_t threadgroups = std::min(groups, resident * cores);
        const uint32_t of_core = threadgroups > cores ? resident : 1;
        const uint32_t turns = divide_up(groups, threadgroups * (simdgroups / slices));
        const double prologue = of_core * simdgroups * (norms ? 80.0 : 6.0 * blocks);
        const double products = of_core * divide_up(groups, threadgroups) * slices * (blocks_each * (nr + 10.0) + 30);
        // From one turn to the next the loads go on, so that of several turns none ends with a wait of its own.
        const double waits = turns > 1 ? static_cast<double>(turns * blocks_each) / depth : divide_up(blocks_each, depth);
        const double cost = prologue + products + 800 * waits;
        if (best_cost != 0 && cost >= best_cost) continue;
        best_cost = cost;
        best = {blocks, slices, nr, depth, blocks <= fitting ? blocks : fitting / (depth * slices) * (depth * slices), resident};
      }
    }
  }
  return best;
}

// How decode rows are spread over threadgroups on matrix units, in sets of `eights` times 8 matrix rows. Part of a row's order of
// addition too.
struct TileSplit {
  uint32_t span, spans;          // columns, and spans of a row
  uint32_t eights;
  uint32_t sets[3], all;         // of each matrix, and of all
  uint32_t threadgroups;
};

// Whether there are kernels on matrix units for a format (shaders/matvec_tile_*.metal), and the device has a use for them.
bool in_tiles(const Tensor &w, const Limits &limits) {
  if (!limits.matrix_units || limits.max_threads < 32 * kTileSimdgroups) return false;
  if (w.format == kAffine) return w.group >= 64 || w.bits == 4 || w.bits == 8;
  return w.format == kQ4_0 || w.format == kQ4K || w.format == kQ8_0;
}

// The larger sets where they leave no core with a tenth more to do than small ones: a set of more rows reads u less often.
TileSplit tile_split_of(const Part &part, const Limits &limits) {
  const uint32_t cores = limits.cores != 0 ? limits.cores : kDefaultCores;
  TileSplit best{};
  double least = 0;
  for (const uint32_t eights : {1u, 3u}) {
    if (eights > 1 && limits.family != "cuda") continue;  // threadgroup memory is too small for their sums
    TileSplit split{};
    split.span = codes_of(part.first()).group == 32 ? 32 : 64;
    split.spans = divide_up(weight_layout(part.first()).k, split.span);
    split.eights = eights;
    for (uint32_t i = 0; i < 3; i++) {
      split.sets[i] = part.geglu() && i > 0 ? 0 : divide_up(part.n(i), (part.geglu() ? 4 : 8) * eights);
      split.all += split.sets[i];
    }
    // A kernel divides places among a threadgroup's spans as floats, see divided() in tile_walk.h.
    const uint32_t fewest = divide_up(kTileSimdgroups * split.all, (1u << 24) / split.spans - kTileSimdgroups);
    split.threadgroups = std::min(split.all, std::max(cores, fewest));
    const double most = divide_up(split.all, split.threadgroups) * eights;
    if (least != 0 && most > 1.1 * least) continue;
    least = most;
    best = split;
  }
  return best;
}

class Linear {
 public:
  Linear(Emitter &e, const Op &op) : e_(e), op_(op), rows_(e.rows_of(*op.operands[kX])) {
    k_ = static_cast<uint32_t>(op.operands[kX]->dims[1]);
    if (finished()) rows_.decode = 0;
    make_parts();
    for (const Part &part : parts_) weight_layout(part.first());  // refuses what has no kernels
  }

  void emit() {
    for (Part &part : parts_) {
      if (part.y_in_scratch) {
        part.y_scratch = e_.scratch(uint64_t{rows_.count} * part.y_stride * 4);
        for (Part &reader : parts_) {
          if (reader.other_in_scratch) reader.y_scratch = part.y_scratch;
        }
      }
    }
    if (rows_.decode > 0) emit_decode();
    if (rows_.prefill() > 0) emit_prefill();
    if (finished() && rows_.count > 0) emit_finish();
  }

 private:
  const Tensor *operand(uint32_t slot) const { return op_.operands[slot]; }
  bool clips() const { return (op_.flags & kClip) != 0; }
  // Whether the products are not yet y: bounds and SiLU are applied to all of them afterwards.
  bool finished() const { return clips() || op_.ints[0] == kEpilogueSilu; }

  void make_parts() {
    const uint32_t epilogue = op_.ints[0];
    std::vector<const Tensor *> weights, biases;
    for (uint32_t i = 0; i < 3; i++) {
      if (operand(kW0 + i) == nullptr) continue;
      weights.push_back(operand(kW0 + i));
      biases.push_back(operand(kBias0 + i));
    }
    const Tensor &y = *operand(kY);
    Part part;
    if (finished()) {
      part.weights = weights, part.biases = biases, part.columns = {0};
      part.y_stride = static_cast<uint32_t>(y.dims[1]);
      part.y_in_scratch = true;
      parts_.push_back(part);
      return;
    }
    part.y = &y;
    part.y_stride = static_cast<uint32_t>(y.dims[1]);
    part.epilogue = epilogue;
    if (epilogue == kEpilogueGeluMul) {
      part.other = operand(kOther);
      part.other_stride = static_cast<uint32_t>(part.other->dims[1]);
      part.other_column = op_.ints[1];
    }
    if (epilogue == kEpilogueGeglu && !same_format(*weights[0], *weights[1])) {
      // up = W1 · u first, then y = gelu(W0 · u) · up.
      Part up;
      up.weights = {weights[1]}, up.biases = {biases[1]}, up.columns = {0};
      up.y_stride = part.y_stride;
      up.y_in_scratch = true;
      parts_.push_back(up);
      part.weights = {weights[0]}, part.biases = {biases[0]}, part.columns = {0};
      part.epilogue = kEpilogueGeluMul;
      part.other_in_scratch = true;
      part.other_stride = part.y_stride;
      parts_.push_back(part);
      return;
    }
    uint32_t column = 0;
    for (size_t i = 0; i < weights.size(); i++) {
      if (i > 0 && !same_format(*weights[i - 1], *weights[i])) {
        parts_.push_back(part);
        part.weights.clear(), part.biases.clear(), part.columns.clear();
      }
      part.weights.push_back(weights[i]);
      part.biases.push_back(biases[i]);
      part.columns.push_back(part.geglu() ? 0 : column);
      column += static_cast<uint32_t>(weights[i]->dims[0]);
    }
    parts_.push_back(part);
  }

  StreamParams stream(bool stores_h) const {
    StreamParams s{};
    s.k = k_;
    s.has_residual = operand(kResidual) != nullptr;
    s.has_post = operand(kPostNorm) != nullptr;
    s.has_scalar = operand(kScalar) != nullptr;
    s.has_pre = operand(kPreNorm) != nullptr;
    s.stores_h = stores_h && operand(kHOut) != nullptr;
    if (s.has_post) s.post_format = scalar_format(*operand(kPostNorm));
    if (s.has_scalar) s.scalar_format = scalar_format(*operand(kScalar));
    if (s.has_pre) s.pre_format = scalar_format(*operand(kPreNorm));
    s.eps = op_.floats[0];
    return s;
  }

  EpilogueParams epilogue(const Part &part) const {
    EpilogueParams p{};
    p.kind = part.epilogue;
    p.y_stride = part.y_stride;
    p.other_stride = part.other_stride;
    p.other_column = part.other_column;
    p.cap = op_.floats[1];
    uint32_t *columns[] = {&p.y_column0, &p.y_column1, &p.y_column2};
    uint32_t *has[] = {&p.has_bias0, &p.has_bias1, &p.has_bias2};
    uint32_t *formats[] = {&p.bias_format0, &p.bias_format1, &p.bias_format2};
    for (size_t i = 0; i < part.weights.size(); i++) {
      *columns[i] = part.columns[i];
      if (part.biases[i] == nullptr) continue;
      *has[i] = 1;
      *formats[i] = scalar_format(*part.biases[i]);
    }
    return p;
  }

  // x, residual, post_norm, scalar, h_out, pre_norm at slots 0 to 5, of rows [first, first + count).
  void bind_stream(Launch &launch, uint32_t first, uint32_t count, bool stores_h) const {
    launch.reads_rows(0, *operand(kX), first, count);
    if (operand(kResidual)) launch.reads_rows(1, *operand(kResidual), first, count);
    else launch.absent(1);
    for (const uint32_t slot : {kPostNorm, kScalar, kPreNorm}) {
      if (operand(slot)) launch.reads(slot, *operand(slot));
      else launch.absent(slot);
    }
    if (stores_h && operand(kHOut)) launch.writes_rows(kHOut, *operand(kHOut), first, count);
    else launch.absent(kHOut);
  }

  // Matrices with scales and biases, output biases, other and y from slot `at` on, of rows [first, first + count).
  void bind_part(Launch &launch, uint32_t at, const Part &part, uint32_t first, uint32_t count) const {
    for (uint32_t i = 0; i < 3; i++) {
      const Tensor *w = i < part.weights.size() ? part.weights[i] : nullptr;
      const Tensor *tensors[] = {w, w ? w->scales : nullptr, w ? w->biases : nullptr};
      for (uint32_t j = 0; j < 3; j++) {
        if (tensors[j]) launch.reads(at + 3 * i + j, *tensors[j]);
        else launch.absent(at + 3 * i + j);
      }
      const Tensor *bias = w ? part.biases[i] : nullptr;
      if (bias) launch.reads(at + 9 + i, *bias);
      else launch.absent(at + 9 + i);
    }
    const uint64_t other_row = uint64_t{part.other_stride} * 4, y_row = uint64_t{part.y_stride} * 4;
    if (part.other) launch.reads_rows(at + 12, *part.other, first, count);
    else if (part.other_in_scratch) launch.reads_scratch(at + 12, part.y_scratch + first * other_row, count * other_row);
    else launch.absent(at + 12);
    if (part.y) launch.writes_rows(at + 13, *part.y, first, count);
    else launch.writes_scratch(at + 13, part.y_scratch + first * y_row, count * y_row);
  }

  MatvecParams matvec_params(const Part &part, const Split &split, uint32_t nr) const {
    const WeightLayout layout = weight_layout(part.first());
    MatvecParams p{};
    p.epilogue = epilogue(part);
    p.n0 = part.n(0), p.n1 = part.n(1), p.n2 = part.n(2);
    const Groups groups = groups_of(part, nr);
    p.groups0 = groups.first, p.groups01 = groups.two, p.groups = groups.all;
    p.row_bytes = layout.row_bytes;
    p.chunks = layout.chunks;
    p.blocks = split.blocks;
    p.whole = layout.whole(layout.chunk);
    p.scale_columns = layout.scale_columns;
    p.group_shift = layout.group_shift;
    p.code_exponent = kCodeExponent;
    p.slices = split.slices;
    p.slice_shift = log2_of(split.slices);
    return p;
  }

  // Threadgroups that are resident at once. Row groups are dealt out to them in turn, or each has several that follow one another.
  // Returns their number.
  static uint32_t deal(MatvecParams &p, uint32_t simdgroups, uint32_t resident) {
    p.threadgroups = std::min(p.groups, resident);
    p.group_stride = p.threadgroups * (simdgroups / p.slices);
    p.iterations = divide_up(p.groups, p.group_stride);
    return p.threadgroups;
  }
  static uint32_t spread(MatvecParams &p, uint32_t resident) {
    const uint32_t wanted = divide_up(p.groups, kSimdgroups / p.slices);
    p.iterations = divide_up(wanted, resident);
    p.threadgroups = divide_up(wanted, p.iterations);
    p.group_stride = p.threadgroups * (kSimdgroups / p.slices);
    return p.threadgroups;
  }

  uint32_t cores() const { return e_.limits.cores != 0 ? e_.limits.cores : kDefaultCores; }
  Split split(const Part &part) const { return split_of(part, operand(kPostNorm) || operand(kPreNorm), row_simdgroups(), e_.limits); }

  // Which of RowPrologue (shaders/matvec.h) makes u of one row.
  const char *row_prologue() const {
    if (k_ % 4 == 0 && no_stream()) return "plain";
    return in_registers(has_wide() ? kWideColumns : kHeldColumns) ? "held" : "long";
  }
  // Whether a row is so long that wide threadgroups make u of it (kWideThreads in shaders/stream.h).
  bool wide() const { return has_wide() && k_ > kHeldColumns && (no_stream() || in_registers(kWideColumns)) && k_ % 4 == 0; }
  bool has_wide() const { return e_.limits.family == "cuda"; }
  uint32_t row_simdgroups() const { return wide() ? kWideSimdgroups : kSimdgroups; }
  // Whether a threadgroup whose registers have room for so many columns makes u of a row there.
  bool in_registers(uint32_t columns) const {
    const auto in_16_bits = [&](uint32_t norm) { return !operand(norm) || scalar_format(*operand(norm)) != kF32; };
    return k_ % 4 == 0 && k_ <= columns && in_16_bits(kPostNorm) && in_16_bits(kPreNorm);
  }

  void emit_one(const Part &part, bool stores_h) {
    const Split split = this->split(part);
    MatvecParams p = matvec_params(part, split, split.rows_of_half);
    p.stream = stream(stores_h);
    p.rows = 1;
    p.phase_blocks = split.phase_blocks;
    const uint32_t threadgroups = deal(p, row_simdgroups(), split.resident * cores());
    const std::string format = weight_format_name(part.first());
    Launch launch("matvec_" + weight_family_name(part.first()),
                  "matvec_" + format + "_" + row_prologue() + (wide() ? "_wide_n" : "_n") + std::to_string(split.rows_of_half));
    bind_stream(launch, 0, 1, stores_h);
    bind_part(launch, 6, part, 0, 1);
    launch.params(20, p)
        .groups(threadgroups)
        .threads(32 * row_simdgroups())
        .threadgroup_bytes(static_cast<uint32_t>(round_up(uint64_t{p.phase_blocks} * staged_bytes(weight_layout(part.first())), 16)));
    e_.emit(launch);
  }

  bool tiled(const Part &part) const { return !e_.exact() && in_tiles(part.first(), e_.limits); }

  void emit_decode() {
    for (const Part &part : parts_) {
      const bool first = &part == &parts_[0];
      if (tiled(part)) {
        if (plain() || !emit_own_tiles(part, first)) emit_ready_tiles(part, first);
      } else if (rows_.decode == 1) {
        emit_one(part, first);
      } else {
        emit_many(part, first);
      }
    }
  }

  MatvecTileParams tile_params_of(const Part &part, const TileSplit &split, bool stores_h) const {
    const WeightLayout layout = weight_layout(part.first());
    MatvecTileParams p{};
    p.stream = stream(stores_h);
    p.epilogue = epilogue(part);
    p.n0 = part.n(0), p.n1 = part.n(1), p.n2 = part.n(2);
    p.sets0 = split.sets[0], p.sets01 = p.sets0 + split.sets[1], p.sets = split.all;
    p.row_bytes = layout.row_bytes;
    p.scale_columns = layout.scale_columns;
    p.scale_shift = layout.group_shift - log2_of(split.span);
    p.spans = split.spans;
    p.each_sets = split.all / split.threadgroups, p.more_sets = split.all % split.threadgroups;
    p.span_share = 1.0f / p.spans;
    p.each_share = 1.0f / (p.each_sets * p.spans), p.more_share = 1.0f / ((p.each_sets + 1) * p.spans);
    p.rows = rows_.decode;
    return p;
  }

  std::string tile_kernel(const Part &part, const TileSplit &split, const std::string &variant) const {
    return "matvec_tile_" + weight_format_name(part.first()) + "_s" + std::to_string(split.span) + "_" + variant + "_n" +
           std::to_string(split.eights);
  }

  // Threadgroup memory beside u: rings of steps and sums of sets (matvec_tile.h).
  uint32_t tile_bytes(const Part &part, const TileSplit &split, uint32_t rows) const {
    const uint32_t eights = split.eights;
    const uint32_t step = 4 * split.span * codes_of(part.first()).bits / 8;
    const bool copies = e_.limits.family == "cuda";
    return kTileSimdgroups * 8 * eights * ((copies ? 2 * step : 0) + (copies ? 1 : 2) * rows * 4);
  }
  // And what kernels have of it that is not asked for: sums of norms, and matrices that go through memory.
  uint32_t fixed_bytes(uint32_t rows) const { return kTileSimdgroups * ((e_.limits.family == "cuda" ? 0 : 512) + 8 * rows) + 64; }

  // The product with its prologue, where there are few rows and threadgroup memory holds u of all of them.
  bool emit_own_tiles(const Part &part, bool stores_h) {
    if (rows_.decode > kTileOwnRows) return false;
    const uint32_t staged = rows_.decode == 1 ? 1 : kTileOwnRows;
    if (!in_registers(staged == 1 ? kTileHeldColumns : kTileOwnColumns)) return false;
    const TileSplit split = tile_split_of(part, e_.limits);
    const uint32_t u = split.spans * (split.span * 4 + 8) * staged;
    const uint32_t bytes = static_cast<uint32_t>(round_up(u + tile_bytes(part, split, staged), 16));
    if (bytes + fixed_bytes(staged) > e_.limits.most_threadgroup_bytes) return false;
    if (rows_.decode > 1 && u > kMostStagedBytes) return false;
    const MatvecTileParams p = tile_params_of(part, split, stores_h);
    Launch launch("matvec_tile_" + weight_family_name(part.first()), tile_kernel(part, split, staged == 1 ? "own1" : "own4"));
    bind_stream(launch, 0, rows_.decode, stores_h);
    bind_part(launch, 6, part, 0, rows_.decode);
    launch.params(20, p).groups(split.threadgroups).threads(32 * kTileSimdgroups).threadgroup_bytes(bytes);
    e_.emit(launch);
    return true;
  }

  // Whether products are made from x as it is: every threadgroup makes halves of all of it.
  bool plain() const { return (rows_.decode <= 8 || k_ <= kLongestPlain) && no_stream(); }
  bool no_stream() const {
    return !operand(kResidual) && !operand(kPostNorm) && !operand(kScalar) && !operand(kPreNorm) && !operand(kHOut);
  }

  // Parts whose codes and spans are alike share a prologue; the op's first part stores h.
  void emit_ready_tiles(const Part &part, bool stores_h) {
    const TileSplit split = tile_split_of(part, e_.limits);
    const Codes codes = codes_of(part.first());
    const uint32_t together = rows_.decode > 8 ? 16 : 8, blocks = divide_up(rows_.decode, together);
    const uint32_t block_bytes = split.spans * split.span * 32, block_factor_bytes = split.spans * together * 8;
    TilesOfU &u = tiles_of_u_;
    if (!plain() && (u.bits != codes.bits || u.span != split.span)) {
      u.bits = codes.bits, u.span = split.span;
      u.bytes = uint64_t{blocks} * block_bytes, u.factor_bytes = uint64_t{blocks} * block_factor_bytes;
      u.at = e_.scratch(u.bytes), u.factors = e_.scratch(u.factor_bytes);
      const TilePrologueParams p{stream(stores_h), u.bits, u.span, together, rows_.decode};
      Launch launch("linear_prologue", in_registers(kTileHeldColumns) ? "linear_prologue_tile_held" : "linear_prologue_tile_long");
      bind_stream(launch, 0, rows_.decode, p.stream.stores_h);
      launch.writes_scratch(6, u.at, u.bytes)
          .params(7, p)
          .writes_scratch(8, u.factors, u.factor_bytes)
          .groups(rows_.decode)
          .threads(32 * kTileSimdgroups);
      e_.emit(launch);
    }
    MatvecTileParams p = tile_params_of(part, split, false);
    const uint32_t bytes = tile_bytes(part, split, together);
    const uint32_t with_u = bytes + block_bytes + block_factor_bytes;
    p.staged = !plain() && p.each_sets >= kSetsOfStaged && with_u + fixed_bytes(0) <= e_.limits.most_threadgroup_bytes;
    const std::string variant = (plain() ? "plain" : "r") + std::to_string(together);
    Launch launch("matvec_tile_" + weight_family_name(part.first()), tile_kernel(part, split, variant));
    if (plain()) launch.reads_rows(0, *operand(kX), 0, rows_.decode);
    else launch.reads_scratch(0, u.at, u.bytes).reads_scratch(1, u.factors, u.factor_bytes);
    bind_part(launch, 6, part, 0, rows_.decode);
    launch.params(20, p)
        .groups(blocks, split.threadgroups)
        .threads(32 * kTileSimdgroups)
        .threadgroup_bytes(p.staged ? with_u : bytes);
    e_.emit(launch);
  }

  // Parts whose chunks and codes are alike share a prologue; the op's first part stores h.
  void emit_many(const Part &part, bool stores_h) {
    const Tensor &w = part.first();
    const Split split = this->split(part);
    const WeightLayout layout = weight_layout(w);
    LanesOfU &u = lanes_of_u_;
    if (u.chunk != layout.chunk || u.bits != layout.code_bits) {
      PrologueParams p{};
      p.stream = stream(stores_h);
      u.chunk = layout.chunk, u.bits = layout.code_bits;
      p.columns = split.blocks * kBlockChunks * u.chunk;
      u.row_floats = p.row_floats = p.columns + kBlockChunks * split.blocks * (u.chunk >= 16);  // affine: chunk sums
      p.chunk_shift = log2_of(u.chunk);
      p.code_bits = u.bits;
      u.bytes = uint64_t{rows_.decode} * u.row_floats * 4;
      u.at = e_.scratch(u.bytes);
      Launch launch("linear_prologue", wide() ? "linear_prologue_chunked_wide" : "linear_prologue_chunked");
      bind_stream(launch, 0, rows_.decode, p.stream.stores_h);
      launch.writes_scratch(6, u.at, u.bytes).params(7, p).groups(rows_.decode).threads(32 * row_simdgroups());
      e_.emit(launch);
    }
    const uint32_t r = rows_.decode > 4 ? 8 : rows_.decode > 2 ? 4 : 2;
    MatvecParams p = matvec_params(part, split, 4);
    p.rows = rows_.decode;
    p.row_floats = u.row_floats;
    p.stream.k = k_;
    const uint32_t threadgroups = r == 2 ? deal(p, kSimdgroups, 2 * cores()) : spread(p, cores());
    Launch launch("matvec_" + weight_family_name(w), "matvec_" + weight_format_name(w) + "_r" + std::to_string(r));
    launch.reads_scratch(0, u.at, u.bytes);
    bind_part(launch, 6, part, 0, rows_.decode);
    launch.params(20, p)
        .groups(divide_up(rows_.decode, r), threadgroups)
        .threads(32 * kSimdgroups);
    e_.emit(launch);
  }

  // Rows of u in a tile of products. The largest tiles read threadgroup memory least for a product; smaller ones leave no core without
  // work. A row's bits are the same in all.
  uint32_t tile_rows(const Part &part, uint32_t rows) const {
    if (rows <= 16) return 16;
    if (e_.exact()) return 64;
    uint64_t outputs = 0;
    for (size_t i = 0; i < part.weights.size(); i++) outputs += part.n(i);
    const uint64_t columns = divide_up(outputs, 64);
    if (divide_up(rows, 128) * columns >= 4 * cores()) return 128;
    return k_ < kLongRow || divide_up(rows, 64) * columns >= cores() ? 64 : 16;
  }

  void emit_prefill() {
    const uint32_t first = rows_.decode, count = rows_.prefill();
    const bool exact = e_.exact();
    PrologueParams prologue{};
    prologue.stream = stream(true);
    prologue.columns = static_cast<uint32_t>(round_up(k_, step_columns(exact)));
    const uint64_t bytes = uint64_t{count} * prologue.columns * (exact ? 4 : 2);
    const uint64_t u = e_.scratch(bytes), scale = e_.scratch(uint64_t{count} * 4);
    Launch launch(clips() ? "clip" : "linear_prologue",
                  clips() ? std::string("clip_prologue_") + (exact ? "f32" : "f16")
                          : prompt_prologue(exact, k_, no_stream(), in_registers(k_)));
    bind_stream(launch, first, count, true);
    launch.writes_scratch(6, u, bytes);
    if (clips()) launch.params(7, ClipPrologueParams{prologue.stream, prologue.columns, op_.floats[2], op_.floats[3]});
    else launch.params(7, prologue);
    launch.writes_scratch(8, scale, uint64_t{count} * 4)
        .groups(count)
        .threads(256);
    e_.emit(launch);

    for (const Part &part : parts_) {
      const Tensor &w = part.first();
      const WeightLayout layout = weight_layout(w);
      const uint32_t m = tile_rows(part, count);
      const uint32_t tile = m == 16 && !exact ? 32 : 64;  // matrix rows
      const uint32_t n = part.geglu() ? tile / 2 : tile;
      MatmulParams p{};
      p.epilogue = epilogue(part);
      p.tile = tile_params(layout, prologue.columns, exact);
      p.n0 = part.n(0), p.n1 = part.n(1), p.n2 = part.n(2);
      p.tiles0 = divide_up(p.n0, n);
      p.tiles01 = p.tiles0 + (part.geglu() ? 0 : divide_up(p.n1, n));
      const uint32_t tiles = p.tiles01 + divide_up(p.n2, n);
      p.rows = count;
      p.columns = prologue.columns;
      p.row_bytes = layout.row_bytes;
      p.scale_columns = layout.scale_columns;
      Launch product("matmul_" + weight_family_name(w), "matmul_" + weight_format_name(w) + (exact ? "_f32" : "_f16") +
                                                            "_m" + std::to_string(m));
      product.reads_scratch(0, u, bytes).reads_scratch(1, scale, uint64_t{count} * 4);
      bind_part(product, 2, part, first, count);
      product.params(16, p).groups(divide_up(count, m), tiles).threads(128);
      e_.emit(product);
    }
  }

  void emit_finish() {
    const Part &part = parts_[0];
    const Tensor &y = *operand(kY), *other = operand(kOther);
    ClipFinishParams p{};
    p.width = part.y_stride;
    p.count = rows_.count * p.width;
    p.clips = clips();
    p.least = op_.floats[4], p.largest = op_.floats[5];
    p.kind = op_.ints[0];
    if (other != nullptr) {
      p.other_stride = static_cast<uint32_t>(other->dims[1]);
      p.other_column = op_.ints[1];
    }
    if (p.kind == kEpilogueSoftcap) {
      fail(MB_UNSUPPORTED, "The GPU devices have no kernel for a linear with both bounds and a softcap; use device \"cpu\".");
    }
    Launch launch("clip", "clip_finish");
    launch.reads_scratch(0, part.y_scratch, uint64_t{p.count} * 4);
    if (other != nullptr) launch.reads_rows(1, *other, 0, rows_.count);
    else launch.absent(1);
    launch.writes_rows(2, y, 0, rows_.count).params(3, p).groups(divide_up(p.count, 256)).threads(256);
    e_.emit(launch);
  }

  // Where u of decode rows lies in scratch, made for the parts before.
  struct LanesOfU {
    uint32_t chunk, bits, row_floats;
    uint64_t at, bytes;
  };
  struct TilesOfU {
    uint32_t bits, span;
    uint64_t at, bytes, factors, factor_bytes;
  };

  Emitter &e_;
  const Op &op_;
  Emitter::Rows rows_;
  uint32_t k_ = 0;
  std::vector<Part> parts_;
  LanesOfU lanes_of_u_{};
  TilesOfU tiles_of_u_{};
};

}  // namespace

const char *prompt_prologue(bool exact, uint32_t k, bool plain, bool in_quads) {
  if (exact) return "linear_prologue_f32";
  if (!in_quads) return "linear_prologue_f16_long";
  if (plain && k <= kShortPlainColumns) return "linear_prologue_f16_plain4";
  if (plain && k <= kLongPlainColumns) return "linear_prologue_f16_plain12";
  return k <= kHeldColumns ? "linear_prologue_f16_held" : "linear_prologue_f16_long";
}

void lower_linear(Emitter &e, const Op &op) { Linear(e, op).emit(); }

}  // namespace mb::gpu
