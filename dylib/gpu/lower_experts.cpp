// lower_experts.cpp: routed experts (shaders/experts.h, experts.metal, best.metal). The chosen ids stay on the device.
//
//   route              the linear of the router, in f32 for all rows, then best
//   expert_gate_up     decode: expert_gated                           prefill: linear_prologue, expert_order, expert_matmul
//   expert_linear      decode: linear_prologue, expert_matvec         prefill: the same
//   expert_down        decode: expert_summed                          prefill: the same three, then expert_sum
//   top_k, expert_sum, add_norms   one each
//
// Rows that expert_gated and expert_summed do not take go through linear_prologue, then expert_matvec or expert_down. Gate and
// up of different formats take two products, and two prologues where lanes read them in chunks of different sizes.
#include <algorithm>

#include "weight_layout.h"

namespace mb::gpu {
namespace {

#include "../../shaders/experts_params.h"

constexpr uint32_t kThreads = 256, kSimdgroups = 8;
constexpr uint32_t kHalfRows = 2;                // kExpertHalfRows in experts.h
constexpr uint32_t kTilePairs = 32;              // kExpertTileRows
constexpr uint32_t kTileOutputs = 64;            // matrix rows of a tile of expert_matmul
constexpr uint32_t kSplitBlocks = 4;             // from here on two simdgroups share the blocks of a row
constexpr uint64_t kSummandBytes = 64ull << 20;  // products of prefill rows that expert_down keeps; further rows take turns
constexpr uint32_t kStagedStride = 17;           // as in matvec.h
constexpr uint32_t kSummedBytes = 31 << 10;      // of threadgroup memory for the input of expert_summed, at most
constexpr uint32_t kResident = 2;                // threadgroups of decode rows that a core holds at once
constexpr uint32_t kDefaultCores = 128;          // where the device does not tell

uint32_t width_of(const Tensor &t) { return static_cast<uint32_t>(t.dims[1]); }

std::string family(const Tensor &w) { return "experts_" + weight_family_name(w); }

void emit_best(Emitter &e, const Tensor &logits, float factor, const Tensor &scale, const Tensor &ids, const Tensor &y) {
  BestParams p{};
  p.rows = e.rows_of(ids).count;
  p.count = width_of(logits);
  p.slots = width_of(ids);
  p.has_shares = 1;
  p.scale_format = scalar_format(scale);
  p.factor = factor;
  const bool few = p.count <= kFewLogits && p.slots <= kFewSlots;
  Launch launch("best", few ? "best_few" : "best");
  launch.reads_rows(0, logits, 0, p.rows)
      .reads(1, scale)
      .writes_rows(2, ids, 0, p.rows)
      .writes_rows(3, y, 0, p.rows)
      .params(4, p)
      .groups(few ? p.rows : divide_up(p.rows, kSimdgroups))
      .threads(kThreads);
  e.emit(launch);
}

// Bytes of threadgroup memory for a block of u in chunked order, and the sums of its chunks.
uint32_t staged_bytes(const WeightLayout &layout) {
  return layout.chunk / 4 * kStagedStride * 16 + (layout.affine ? kBlockChunks * 4 : 0);
}
// For the rows of all slots, one behind the other.
uint32_t summed_bytes(const WeightLayout &layout, uint32_t slots) {
  return divide_up(uint64_t{layout.chunks} * slots, kBlockChunks) * staged_bytes(layout);
}

// Products of one format with the experts of rows [first, first + count).
struct Products {
  const Tensor *ids = nullptr;
  const Tensor *w0 = nullptr, *w1 = nullptr;  // w1: geglu
  ExpertParams expert{};
  uint32_t n = 0;          // outputs of a pair
  uint32_t epilogue = kEpilogueNone;
  bool y_in_scratch = false, other_in_scratch = false;
  const Tensor *y = nullptr;
  uint64_t y_scratch = 0;  // offset; also of `other`

  uint64_t pair_bytes() const { return uint64_t{n} * 4; }
};

// Rows of an op, of one class.
struct Range {
  uint32_t first, count;
};

// Where a prologue has put u.
struct Source {
  uint64_t offset, bytes, scale;
  uint32_t rows;
};

class Experts {
 public:
  // x [rows, parts · k]: a row of u for each part.
  Experts(Emitter &e, const Tensor &x, const Tensor *pre_norm, float eps, uint32_t parts)
      : e_(e), x_(x), pre_norm_(pre_norm), eps_(eps), parts_(parts) {}

  // u in chunked order.
  Source chunked(Range range, const WeightLayout &layout) {
    PrologueParams p = prologue(layout.k);
    p.columns = layout.columns();
    p.row_floats = row_params(layout).row_floats;
    p.chunk_shift = log2_of(layout.chunk);
    p.code_bits = layout.code_bits;
    Source u{};
    u.rows = range.count * parts_;
    u.bytes = uint64_t{u.rows} * p.row_floats * 4;
    u.offset = e_.scratch(u.bytes);
    Launch launch("linear_prologue", "linear_prologue_chunked");
    bind_stream(launch, range);
    launch.writes_scratch(6, u.offset, u.bytes).params(7, p).groups(u.rows).threads(kThreads);
    e_.emit(launch);
    return u;
  }

  // u in rows of whole tiles, f16 with a scale for each row, or f32 in exact mode.
  Source tiled(Range range, uint32_t k) {
    const bool exact = e_.exact();
    PrologueParams p = prologue(k);
    p.columns = static_cast<uint32_t>(round_up(k, step_columns(exact)));
    Source u{};
    u.rows = range.count * parts_;
    u.bytes = uint64_t{u.rows} * p.columns * (exact ? 4 : 2);
    u.offset = e_.scratch(u.bytes);
    u.scale = e_.scratch(uint64_t{u.rows} * 4);
    const bool in_quads = k % 4 == 0 && (pre_norm_ == nullptr || scalar_format(*pre_norm_) != kF32);
    Launch launch("linear_prologue", prompt_prologue(exact, k, pre_norm_ == nullptr, in_quads));
    bind_stream(launch, range);
    launch.writes_scratch(6, u.offset, u.bytes)
        .params(7, p)
        .writes_scratch(8, u.scale, uint64_t{u.rows} * 4)
        .groups(u.rows)
        .threads(kThreads);
    e_.emit(launch);
    return u;
  }

  // Pairs by expert, at scratch offset `order`, and where each expert's begin, at `starts`.
  void order(Range range, const Products &products, uint64_t &order, uint64_t &starts) {
    const uint32_t slots = products.expert.slots, experts = products.expert.experts;
    const ExpertOrderParams p{range.count * slots, experts};
    order = e_.scratch(uint64_t{p.pairs} * 4);
    starts = e_.scratch((uint64_t{experts} + 1) * 4);
    Launch launch("experts", "expert_order");
    launch.reads_rows(0, *products.ids, range.first, range.count)
        .writes_scratch(1, order, uint64_t{p.pairs} * 4)
        .writes_scratch(2, starts, (uint64_t{experts} + 1) * 4)
        .params(3, p)
        .groups(experts + 1)
        .threads(kThreads);
    e_.emit(launch);
  }

  void matvec(Range range, const Source &u, const Products &products) {
    ExpertMatvecParams p = matvec_params(products);
    p.slices = p.row.blocks >= kSplitBlocks ? 2 : 1;
    const uint32_t outputs = kHalfRows * (products.epilogue == kEpilogueGeglu ? 1 : 2) * kSimdgroups / p.slices;
    Launch launch(family(*products.w0), "expert_matvec_" + weight_format_name(*products.w0));
    launch.reads_scratch(0, u.offset, u.bytes).reads_rows(1, *products.ids, range.first, range.count);
    bind_weight(launch, 2, products.w0);
    bind_weight(launch, 5, products.w1);
    bind_outputs(launch, 8, range, products);
    launch.params(10, p).groups(range.count * p.expert.slots, divide_up(p.n, outputs)).threads(kThreads);
    e_.emit(launch);
  }

  // gate and up with their input, and the sum of the slots with theirs, where takes_gated() and takes_summed() say so.
  void gated(Range range, const Products &products) {
    const Tensor &w = *products.w0;
    const WeightLayout layout = weight_layout(w);
    ExpertGatedParams p{};
    p.row = row_params(layout);
    p.expert = expert_params(products);
    p.n = products.n;
    p.has_norm = pre_norm_ != nullptr;
    if (pre_norm_ != nullptr) p.norm_format = scalar_format(*pre_norm_);
    p.eps = eps_;
    p.slot_groups = divide_up(p.n, kExpertRows);
    p.groups = p.slot_groups * p.expert.slots;
    deal(p, range, 1);
    Launch launch(family(w), "expert_gated_" + weight_format_name(w));
    launch.reads_rows(0, x_, range.first, range.count);
    if (pre_norm_ != nullptr) launch.reads(1, *pre_norm_);
    else launch.absent(1);
    launch.reads_rows(2, *products.ids, range.first, range.count);
    bind_weight(launch, 3, products.w0);
    bind_weight(launch, 6, products.w1);
    launch.writes_rows(9, *products.y, range.first, range.count)
        .params(10, p)
        .groups(range.count, p.threadgroups)
        .threads(kThreads)
        .threadgroup_bytes(layout.blocks * staged_bytes(layout));
    e_.emit(launch);
  }

  void summed(Range range, const Products &products, const Tensor &shares, const Tensor &y, bool ids_ready) {
    const Tensor &w = *products.w0;
    const WeightLayout layout = weight_layout(w);
    ExpertSummedParams p{};
    p.row = row_params(layout);
    p.expert = expert_params(products);
    p.n = products.n;
    p.chunks = layout.chunks * p.expert.slots;
    p.blocks = divide_up(p.chunks, kBlockChunks);
    p.chunks_share = 1.0f / layout.chunks;
    p.ids_ready = ids_ready;
    p.groups = divide_up(p.n, 2 * kExpertRows);
    // Part of the order of addition, so a function of the matrices and the device alone: of one row, as many simdgroups share
    // a row group as leave each a single one.
    p.slices = 1;
    while (p.slices < std::min(kSimdgroups, p.blocks) && 2 * p.slices * p.groups <= kResident * kSimdgroups * cores()) {
      p.slices *= 2;
    }
    p.slice_shift = log2_of(p.slices);
    deal(p, range, p.slices);
    Launch launch(family(w), "expert_summed_" + weight_format_name(w));
    launch.reads_rows(0, x_, range.first, range.count).reads_rows(1, *products.ids, range.first, range.count);
    bind_weight(launch, 2, products.w0);
    launch.reads_rows(5, shares, range.first, range.count)
        .writes_rows(6, y, range.first, range.count)
        .params(7, p)
        .groups(range.count, p.threadgroups)
        .threads(kThreads)
        .threadgroup_bytes(summed_bytes(layout, p.expert.slots));
    e_.emit(launch);
  }

  void down(Range range, const Source &u, const Products &products, const Tensor &shares, const Tensor &y) {
    const ExpertMatvecParams p = matvec_params(products);
    Launch launch(family(*products.w0), "expert_down_" + weight_format_name(*products.w0));
    launch.reads_scratch(0, u.offset, u.bytes).reads_rows(1, *products.ids, range.first, range.count);
    bind_weight(launch, 2, products.w0);
    launch.reads_rows(5, shares, range.first, range.count)
        .writes_rows(6, y, range.first, range.count)
        .params(7, p)
        .groups(range.count, divide_up(p.n, 2 * kHalfRows))
        .threads(kThreads);
    e_.emit(launch);
  }

  void matmul(Range range, const Source &u, const Products &products, uint64_t order, uint64_t starts) {
    const WeightLayout layout = weight_layout(*products.w0);
    const bool geglu = products.epilogue == kEpilogueGeglu;
    ExpertMatmulParams p{};
    p.expert = expert_params(products);
    MatmulParams &m = p.matmul;
    m.epilogue = epilogue(products.n, products.epilogue);
    m.n0 = products.n;
    m.rows = range.count * p.expert.slots;
    m.columns = static_cast<uint32_t>(round_up(layout.k, step_columns(e_.exact())));
    m.tile = tile_params(layout, m.columns, e_.exact());
    m.row_bytes = layout.row_bytes;
    m.scale_columns = layout.scale_columns;
    // As many tiles as the pairs can take however they fall; the last tile of each expert may be short.
    const uint32_t tiles = m.rows / kTilePairs + std::min(p.expert.experts + 1, m.rows);
    Launch launch(family(*products.w0),
                  "expert_matmul_" + weight_format_name(*products.w0) + (e_.exact() ? "_f32" : "_f16"));
    launch.reads_scratch(0, u.offset, u.bytes)
        .reads_scratch(1, u.scale, uint64_t{u.rows} * 4)
        .reads_scratch(2, order, uint64_t{m.rows} * 4)
        .reads_scratch(3, starts, (uint64_t{p.expert.experts} + 1) * 4);
    bind_weight(launch, 4, products.w0);
    bind_weight(launch, 7, products.w1);
    bind_outputs(launch, 10, range, products);
    launch.params(12, p).groups(tiles, divide_up(products.n, geglu ? kTileOutputs / 2 : kTileOutputs)).threads(128);
    e_.emit(launch);
  }

 private:
  // Row groups of each row in turn to the threadgroups that are resident when all rows have as many of them.
  template <class Params>
  void deal(Params &p, Range range, uint32_t slices) const {
    p.threadgroups = std::min(p.groups, std::max(kResident * cores() / range.count, 1u));
    p.group_stride = p.threadgroups * (kSimdgroups / slices);
    p.iterations = divide_up(p.groups, p.group_stride);
  }

  uint32_t cores() const { return e_.limits.cores != 0 ? e_.limits.cores : kDefaultCores; }

  PrologueParams prologue(uint32_t k) const {
    PrologueParams p{};
    p.stream.k = k;
    p.stream.has_pre = pre_norm_ != nullptr;
    if (pre_norm_ != nullptr) p.stream.pre_format = scalar_format(*pre_norm_);
    p.stream.eps = eps_;
    return p;
  }

  // x and pre_norm at slots 0 and 5; residual, post_norm, scalar and h_out are absent.
  void bind_stream(Launch &launch, Range range) const {
    launch.reads_rows(0, x_, range.first, range.count);
    for (const uint32_t slot : {1u, 2u, 3u, 4u}) launch.absent(slot);
    if (pre_norm_ != nullptr) launch.reads(5, *pre_norm_);
    else launch.absent(5);
  }

  ExpertParams expert_params(const Products &products) const {
    ExpertParams p = products.expert;
    p.shared_by = parts_ == 1 ? p.slots : 1;
    return p;
  }

  static EpilogueParams epilogue(uint32_t n, uint32_t kind) {
    EpilogueParams p{};
    p.kind = kind;
    p.y_stride = p.other_stride = n;
    return p;
  }

  ExpertMatvecParams matvec_params(const Products &products) const {
    ExpertMatvecParams p{};
    p.row = row_params(weight_layout(*products.w0));
    p.epilogue = epilogue(products.n, products.epilogue);
    p.expert = expert_params(products);
    p.n = products.n;
    p.slices = 1;
    return p;
  }

  // other and y [pairs, n].
  static void bind_outputs(Launch &launch, uint32_t slot, Range range, const Products &products) {
    const uint64_t bytes = uint64_t{range.count} * products.expert.slots * products.pair_bytes();
    if (products.other_in_scratch) launch.reads_scratch(slot, products.y_scratch, bytes);
    else launch.absent(slot);
    if (products.y_in_scratch) launch.writes_scratch(slot + 1, products.y_scratch, bytes);
    else launch.writes_rows(slot + 1, *products.y, range.first, range.count);
  }

  Emitter &e_;
  const Tensor &x_;
  const Tensor *pre_norm_;
  float eps_;
  uint32_t parts_;
};

// Products to y, or to scratch where another reads them, of all rows.
void emit_products(Emitter &e, Experts &experts, std::vector<Products> parts, bool gated = false) {
  const Emitter::Rows rows = e.rows_of(*parts[0].ids);
  for (Products &part : parts) {
    if (!part.y_in_scratch) continue;
    part.y_scratch = e.scratch(uint64_t{rows.count} * part.expert.slots * part.pair_bytes());
    for (Products &reader : parts) {
      if (reader.other_in_scratch) reader.y_scratch = part.y_scratch;
    }
  }
  if (rows.decode > 0 && gated) {
    experts.gated({0, rows.decode}, parts[0]);
  } else if (rows.decode > 0) {
    const Range range{0, rows.decode};
    Source u{};
    uint32_t chunk = 0, bits = 0;
    for (const Products &part : parts) {
      const WeightLayout layout = weight_layout(*part.w0);
      if (chunk != layout.chunk || bits != layout.code_bits) u = experts.chunked(range, layout);
      chunk = layout.chunk, bits = layout.code_bits;
      experts.matvec(range, u, part);
    }
  }
  if (rows.prefill() > 0) {
    const Range range{rows.decode, rows.prefill()};
    const Source u = experts.tiled(range, weight_layout(*parts[0].w0).k);
    uint64_t order = 0, starts = 0;
    experts.order(range, parts[0], order, starts);
    for (Products part : parts) {
      // What is in scratch belongs to all rows; these begin behind the decode rows.
      part.y_scratch += uint64_t{range.first} * part.expert.slots * part.pair_bytes();
      experts.matmul(range, u, part, order, starts);
    }
  }
}

ExpertParams experts_of(const Tensor &w, const Tensor &ids) {
  ExpertParams p{};
  p.experts = static_cast<uint32_t>(w.dims[0]);
  p.slots = width_of(ids);
  p.height = static_cast<uint32_t>(w.dims[1]);
  return p;
}

// Whether decode rows of expert_gate_up, or of expert_down, go to the kernel that makes its input itself.
bool takes_gated(const Op &op) {
  const Tensor &x = *op.operands[0], *norm = op.operands[1], &ids = *op.operands[2], &w0 = *op.operands[3];
  const Tensor *w1 = op.operands[4];
  if (w1 != nullptr && !same_format(w0, *w1)) return false;
  const uint32_t k = width_of(x);
  return width_of(ids) <= kExpertSlots && k % 4 == 0 && k <= kHeldColumns &&
         (norm == nullptr || scalar_format(*norm) != kF32);
}
bool takes_summed(const Op &op) {
  const uint32_t slots = width_of(*op.operands[1]);
  return slots <= kExpertSlots && summed_bytes(weight_layout(*op.operands[3]), slots) <= kSummedBytes;
}

// Whether the op before is the expert_gate_up of the same ids, whose kernel lets the next one start when the ids are written.
bool follows_gated(const Emitter &e, const Op &op) {
  if (e.op() == 0) return false;
  const Op &before = e.plan.ops[e.op() - 1];
  return before.kind == kExpertGateUp && before.operands[2] == op.operands[1] && takes_gated(before);
}

}  // namespace

void lower_route(Emitter &e, const Op &op) {
  const Tensor &x = *op.operands[0], &projection = *op.operands[2], &ids = *op.operands[4];
  const uint32_t rows = e.rows_of(x).count;
  if (rows == 0) return;
  // logits = projection · (rms_norm(x) · scale), as a linear; in_scale is left to `best`.
  Tensor logits{};
  logits.format = kF32;
  logits.buffer = kScratchBuffer;
  logits.rank = 2;
  logits.dims[0] = x.dims[0];
  logits.dims[1] = projection.dims[0];
  logits.offset = e.scratch(uint64_t{rows} * static_cast<uint64_t>(logits.dims[1]) * 4);
  Op linear{};
  linear.kind = kLinear;
  linear.layer = op.layer;
  linear.operands[0] = &x;           // x, residual, post_norm, scalar, h_out, pre_norm, w0, …, y at 13
  linear.operands[5] = op.operands[1];
  linear.operands[6] = &projection;
  linear.operands[13] = &logits;
  linear.ints[0] = kEpilogueNone;
  linear.floats[0] = op.floats[0];
  // Decode kernels multiply f32 activations: a choice must not flip with the precision.
  e.treat_as_decode(true);
  lower_linear(e, linear);
  e.treat_as_decode(false);
  emit_best(e, logits, op.floats[1], *op.operands[3], ids, *op.operands[5]);
}

void lower_top_k(Emitter &e, const Op &op) {
  if (e.rows_of(*op.operands[0]).count == 0) return;
  emit_best(e, *op.operands[0], 1.0f, *op.operands[1], *op.operands[2], *op.operands[3]);
}

void lower_expert_gate_up(Emitter &e, const Op &op) {
  const Tensor &x = *op.operands[0], &ids = *op.operands[2], &w0 = *op.operands[3], &y = *op.operands[5];
  const Tensor *w1 = op.operands[4];
  if (e.rows_of(x).count == 0) return;
  Experts experts(e, x, op.operands[1], op.floats[0], 1);
  Products gate;
  gate.ids = &ids;
  gate.w0 = &w0;
  gate.w1 = w1 != nullptr ? w1 : &w0;
  gate.expert = experts_of(w0, ids);
  gate.n = w1 != nullptr ? gate.expert.height : gate.expert.height / 2;
  gate.expert.first1 = w1 != nullptr ? 0 : gate.n;
  gate.epilogue = kEpilogueGeglu;
  gate.y = &y;
  if (w1 == nullptr || same_format(w0, *w1)) return emit_products(e, experts, {gate}, takes_gated(op));
  // up = W1 · u first, then y = gelu(W0 · u) · up.
  Products up = gate;
  up.w0 = w1;
  up.w1 = gate.w1 = nullptr;
  up.epilogue = kEpilogueNone;
  up.y_in_scratch = true;
  gate.epilogue = kEpilogueGeluMul;
  gate.other_in_scratch = true;
  emit_products(e, experts, {up, gate});
}

void lower_expert_linear(Emitter &e, const Op &op) {
  const Tensor &x = *op.operands[0], &ids = *op.operands[1], &w = *op.operands[2], &y = *op.operands[3];
  if (e.rows_of(x).count == 0) return;
  Products products;
  products.ids = &ids;
  products.w0 = &w;
  products.expert = experts_of(w, ids);
  products.expert.first0 = op.ints[0];
  products.n = width_of(y) / products.expert.slots;
  products.y = &y;
  Experts experts(e, x, nullptr, 0, width_of(x) / static_cast<uint32_t>(w.dims[2]));
  emit_products(e, experts, {products});
}

namespace {

void emit_sum(Emitter &e, uint64_t scratch, const Tensor *x, const Tensor &shares, const Tensor &y, Range range) {
  const ExpertSumParams p{width_of(y), width_of(shares)};
  Launch launch("experts", "expert_sum");
  if (x != nullptr) launch.reads_rows(0, *x, range.first, range.count);
  else launch.reads_scratch(0, scratch, uint64_t{range.count} * p.slots * p.width * 4);
  launch.reads_rows(1, shares, range.first, range.count)
      .writes_rows(2, y, range.first, range.count)
      .params(3, p)
      .groups(range.count, divide_up(p.width, kThreads))
      .threads(kThreads);
  e.emit(launch);
}

}  // namespace

void lower_expert_down(Emitter &e, const Op &op) {
  const Tensor &x = *op.operands[0], &ids = *op.operands[1], &shares = *op.operands[2], &w = *op.operands[3];
  const Tensor &y = *op.operands[4];
  const Emitter::Rows rows = e.rows_of(x);
  Products products;
  products.ids = &ids;
  products.w0 = &w;
  products.expert = experts_of(w, ids);
  products.n = products.expert.height;
  const uint32_t slots = products.expert.slots;
  Experts experts(e, x, nullptr, 0, slots);
  if (rows.decode > 0) {
    const Range range{0, rows.decode};
    if (takes_summed(op)) experts.summed(range, products, shares, y, follows_gated(e, op));
    else experts.down(range, experts.chunked(range, weight_layout(w)), products, shares, y);
  }
  const uint64_t row_bytes = slots * products.pair_bytes();
  const auto turn = static_cast<uint32_t>(std::clamp<uint64_t>(kSummandBytes / row_bytes, 1, UINT32_MAX));
  for (uint32_t first = rows.decode; first < rows.count; first += std::min(turn, rows.count - first)) {
    e.begin(e.op());  // each turn may use the scratch bytes of the one before
    const Range range{first, std::min(turn, rows.count - first)};
    products.y_in_scratch = true;
    products.y_scratch = e.scratch(range.count * row_bytes);
    const Source u = experts.tiled(range, weight_layout(w).k);
    uint64_t order = 0, starts = 0;
    experts.order(range, products, order, starts);
    experts.matmul(range, u, products, order, starts);
    emit_sum(e, products.y_scratch, nullptr, shares, y, range);
  }
}

void lower_expert_sum(Emitter &e, const Op &op) {
  const uint32_t rows = e.rows_of(*op.operands[0]).count;
  if (rows == 0) return;
  emit_sum(e, 0, op.operands[0], *op.operands[1], *op.operands[2], {0, rows});
}

void lower_add_norms(Emitter &e, const Op &op) {
  const Tensor &a = *op.operands[0], &a_norm = *op.operands[1], &b = *op.operands[2], &b_norm = *op.operands[3];
  const Tensor &y = *op.operands[4];
  const uint32_t rows = e.rows_of(y).count;
  if (rows == 0) return;
  const AddNormsParams p{width_of(y), scalar_format(a_norm), scalar_format(b_norm), op.floats[0]};
  Launch launch("experts", "add_norms");
  launch.reads_rows(0, a, 0, rows)
      .reads(1, a_norm)
      .reads_rows(2, b, 0, rows)
      .reads(3, b_norm)
      .writes_rows(4, y, 0, rows)
      .params(5, p)
      .groups(rows)
      .threads(kThreads);
  e.emit(launch);
}

}  // namespace mb::gpu
