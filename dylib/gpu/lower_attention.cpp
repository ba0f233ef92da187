// lower_attention.cpp: attention, attend and kv_write. The last two are attention with parts left out.
//
//   decode, sliding   attention_decode                      with own keys: cache write included
//   decode, full      attention_split, attention_reduce
//   either of them    attention_spread                      on GPUs with clusters, up to 2,048 keys or in a window;
//                     attention_spread_split, attention_reduce beyond
//   prefill           kv_write (where the op owns K and V), attention_prefill
//
// Decode rows of one sequence in one pass (a speculative verify) read each other's keys, so kv_write goes first there too.
#include "lower.h"

#include <algorithm>
#include <cmath>

#include "../../shaders/attention_params.h"
#include "../input.h"
#include "turns.h"

namespace mb::gpu {
namespace {

// A window up to here is walked by one threadgroup for each head; beyond, the context is split over threadgroups.
constexpr uint32_t kWalkedWindow = 2048;
// Split attention keeps 4 · (head size + 2) bytes for each row, head and part. Rows beyond this many bytes take turns.
constexpr uint64_t kPartBytes = 32 << 20;

constexpr uint32_t kWideThreads = 512;            // of attention_decode on CUDA
constexpr uint32_t kThreads = 256, kKvTasks = 8;  // kv_write: one simdgroup for each vector
constexpr uint32_t kClusterGroups = 8, kSpreadSimdgroups = 8;  // of attention_spread
constexpr uint32_t kSpreadBlocks = 8;             // of 256 keys: contexts up to here have eight parts, see spread_keys in attention_head.h
constexpr uint32_t kTileRows = 16;                // of attention_prefill
constexpr uint32_t kLoadBytes = 16;               // of the kernels' widest load of a page

// The three ops in one form.
struct Attention {
  // One tensor [r, width] for attention; kv_write has no q, attend no k and v.
  const Tensor *q = nullptr, *k = nullptr, *v = nullptr;
  const Tensor *q_norm = nullptr, *k_norm = nullptr, *pages = nullptr, *y = nullptr;
  uint32_t heads = 0, kv_heads = 0, head_dim = 0, window = 0;
  bool owns = false;
  AttentionParams params = {};
  std::string format;  // of the pages, in kernel names
};

std::string page_format(const Tensor &pages) {
  if (pages.format == kF32) return "f32";
  if (pages.format == kF16) return "f16";
  if (pages.format == kI8) return "q8";
  fail(MB_UNSUPPORTED, "The GPU devices keep keys and values as f32, f16 or q8; pages of format %u are not supported.",
       pages.format);
}

void check_head(const Attention &a) {
  for (const uint32_t size : {32, 64, 128, 256, 512}) {
    if (a.head_dim == size) return;
  }
  fail(MB_UNSUPPORTED, "Head size %u: the GPU kernels have 32, 64, 128, 256 and 512; use device \"cpu\".", a.head_dim);
}

// x as a fraction of 2^64, rounded down; 1 becomes the largest fraction below it.
void set_fraction(double x, uint32_t &high, uint32_t &low) {
  const double upper = std::floor(std::ldexp(x, 32));
  const bool whole = x >= 1;
  high = whole ? 0xffffffff : static_cast<uint32_t>(upper);
  low = whole ? 0xffffffff : static_cast<uint32_t>(std::ldexp(std::ldexp(x, 32) - upper, 32));
}

// Pair i turns by position · position_scale · theta^(-2i / head_dim) / 2π.
void set_rope(AttentionParams &p, uint32_t head_dim, double theta, double position_scale) {
  if (theta < 1 || position_scale > 6) {
    fail(MB_UNSUPPORTED, "RoPE with theta %g and position scale %g: the GPU kernels need theta >= 1 and a scale <= 6.",
         theta, position_scale);
  }
  set_fraction(position_scale / (2 * 3.14159265358979323846), p.turns_high, p.turns_low);
  for (uint32_t j = 0; j < kRatios; j++) {
    set_fraction(std::pow(theta, -2.0 * (1u << j) / head_dim), p.ratio_high[j], p.ratio_low[j]);
  }
}

void set_score_scale(AttentionParams &p, float scale) {
  if (!(scale > 0)) fail(MB_UNSUPPORTED, "Score scale %g: the GPU kernels need a positive one.", double{scale});
  p.score_scale = static_cast<float>(double{scale} * 1.4426950408889634);  // the kernels take powers of two
}

void set_pages(const Emitter &e, Attention &a, uint32_t layer, uint32_t group) {
  a.format = page_format(*a.pages);
  check_head(a);
  if (a.pages->offset % kLoadBytes != 0) {
    fail(MB_UNSUPPORTED, "The KV pages at offset %llu: the GPU kernels load %u bytes at once and need multiples of that.",
         static_cast<unsigned long long>(a.pages->offset), kLoadBytes);
  }
  AttentionParams &p = a.params;
  p.heads = a.heads;
  p.kv_heads = a.kv_heads;
  p.group = group;
  p.groups = e.plan.group_count;
  p.plane = 2 * layer;
  p.planes = static_cast<uint32_t>(a.pages->dims[1]);
  p.window = a.window;
  p.mask_words = divide_up(e.plan.vocabulary_size, 32);
  p.q_norm = a.q_norm != nullptr ? scalar_format(*a.q_norm) : kNoNorm;
  p.k_norm = a.k_norm != nullptr ? scalar_format(*a.k_norm) : kNoNorm;
}

// A model has one or two head sizes, so each size is a library of its own; so are the kernels for codes.
std::string family(const char *name, const Attention &a) {
  return std::string(name) + (a.format == "q8" ? "_q8_d" : "_d") + std::to_string(a.head_dim);
}

std::string kernel_name(const char *kernel, const Attention &a) {
  return std::string(kernel) + "_" + a.format + "_d" + std::to_string(a.head_dim);
}

// Rows [first, first + rows) of the op.
AttentionParams params_of(const Emitter &e, const Attention &a, const Tensor &x, uint32_t first, uint32_t rows) {
  AttentionParams p = a.params;
  const Lowering::Shape &shape = e.shape;
  p.sequences = shape.sequences;
  p.position_word = sizeof(InputHeader) / 4 + shape.rows;  // after the tokens
  p.sequence_word = p.position_word + shape.rows;
  p.out_row_word = p.sequence_word + 2 * shape.rows;  // after the rows' classes
  const uint32_t groups_word = p.out_row_word + shape.out_rows;
  p.pages_word = groups_word + 3 * p.group * shape.sequences;
  p.table_word = groups_word + 3 * p.groups * shape.sequences;
  p.stride = static_cast<uint32_t>(x.dims[1]);
  p.first_row = first;
  p.rows = rows;
  p.gathered = x.dims[0] == -1 - int64_t{kOutRows};
  return p;
}

Launch &bind_norm(Launch &launch, uint32_t slot, const Tensor *norm) {
  return norm != nullptr ? launch.reads(slot, *norm) : launch.absent(slot);
}

void write_kv(Emitter &e, const Attention &a, uint32_t first, uint32_t rows) {
  Launch launch("kv_write", kernel_name("kv_write", a));
  launch.reads_rows(0, *a.k, first, rows).reads_rows(1, *a.v, first, rows);
  bind_norm(launch, 2, a.k_norm);
  launch.writes(3, *a.pages)
      .reads_input(4)
      .params(5, params_of(e, a, *a.k, first, rows))
      .groups(divide_up(uint64_t{2} * a.kv_heads * rows, kKvTasks))
      .threads(kThreads);
  e.emit(launch);
}

// Slots 0…4, which attention_decode and attention_split share.
void bind_decode(Launch &launch, const Attention &a, const AttentionParams &p) {
  launch.reads_rows(0, *a.q, p.first_row, p.rows);
  bind_norm(launch, 1, a.q_norm);
  bind_norm(launch, 2, a.k_norm);
  if (p.flags & kStoreOwnKey) {
    launch.writes(3, *a.pages);
  } else {
    launch.reads(3, *a.pages);
  }
  launch.reads_input(4);
}

// Whether a row's keys are spread over the threadgroups of a cluster: one row takes less time that way. Sixteen take more, so not
// where matrix units were asked for, which are for many rows.
bool spreads(const Emitter &e) { return e.limits.clusters && !e.limits.matrix_units; }

bool walked(const Attention &a) { return a.window != 0 && a.window <= kWalkedWindow; }

// Keys that the simdgroups of a threadgroup of attention_spread take at once.
uint32_t spread_keys(const Attention &a) { return kSpreadSimdgroups * GROUP_KEYS(a.head_dim); }

// Eight threadgroups for each head, or for two of a KV head where each core has one without that. The result is the same bit for bit.
void spread(Emitter &e, const Attention &a, AttentionParams p) {
  if (walked(a)) {
    for (p.ring = kClusterGroups * spread_keys(a); p.ring < a.window;) p.ring *= 2;
  }
  const bool pairs = a.heads / a.kv_heads % 2 == 0 && !(a.head_dim == 512 && a.format == "f32");
  const uint32_t together = pairs && uint64_t{a.heads} * kClusterGroups * p.rows > e.limits.cores ? 2 : 1;
  Launch launch(family("attention_decode", a), kernel_name("attention_spread", a) + "_h" + std::to_string(together));
  bind_decode(launch, a, p);
  launch.writes_rows(5, *a.y, p.first_row, p.rows)
      .absent(6)
      .params(7, p)
      .groups(a.heads / together * kClusterGroups, p.rows)
      .threads(kThreads);
  e.emit(launch);
}

// Threadgroups that share the work of a head, or of heads together.
uint32_t slices(const Attention &a) { return a.head_dim / VALUE_SLICE(a.head_dim); }

void walk(Emitter &e, const Attention &a, const AttentionParams &p) {
  const bool wide = e.limits.family == "cuda";
  Launch launch(family("attention_decode", a), kernel_name("attention_decode", a) + (wide ? "_wide" : ""));
  bind_decode(launch, a, p);
  launch.writes_rows(5, *a.y, p.first_row, p.rows)
      .absent(6)
      .params(7, p)
      .groups(a.heads * slices(a), p.rows)
      .threads(wide ? kWideThreads : kThreads);
  e.emit(launch);
}

// Query heads that one threadgroup of attention_split takes: they share a KV head, and each key is read once for all. While
// there are cores to spare each head has a threadgroup of its own. The result is the same bit for bit. The largest heads come
// in twos at most where the pages are f32, for the registers.
uint32_t heads_together(const Emitter &e, const Attention &a, const AttentionParams &p) {
  if (spreads(e)) {
    uint32_t together = 1;
    const uint32_t most = a.head_dim == 512 && a.format == "f32" ? 2 : 4;
    while (together < most && a.heads / a.kv_heads % (2 * together) == 0 &&
           uint64_t{a.heads} / together * p.rows * p.splits > e.limits.cores) {
      together *= 2;
    }
    return together;
  }
  if (uint64_t{a.heads} * slices(a) * p.rows * p.splits <= e.limits.cores) return 1;
  const uint32_t ratio = a.heads / a.kv_heads;
  const bool many = a.head_dim == 512 && a.format == "f32";
  return ratio % 4 == 0 && !many ? 4 : ratio % 2 == 0 ? 2 : 1;
}

void split(Emitter &e, const Attention &a, AttentionParams p) {
  p.splits = std::min<uint32_t>(std::max(e.shape.context_blocks, 1u), kMostSplits);
  const uint64_t row_parts = uint64_t{a.heads} * p.splits;
  const auto turn = static_cast<uint32_t>(std::max<uint64_t>(kPartBytes / (row_parts * (a.head_dim + 2) * 4), 1));
  const uint32_t end = p.first_row + p.rows, together = heads_together(e, a, p);
  for (; p.first_row < end; p.first_row += p.rows) {
    e.begin(e.op());  // each turn may use the scratch bytes of the one before
    p.rows = std::min(turn, end - p.first_row);
    const uint64_t part_bytes = p.rows * row_parts * a.head_dim * 4, stat_bytes = p.rows * row_parts * 8;
    const uint64_t parts = e.scratch(part_bytes), stats = e.scratch(stat_bytes);
    const bool spread = spreads(e);
    Launch launch(family("attention_decode", a),
                  kernel_name(spread ? "attention_spread_split" : "attention_split", a) + "_h" + std::to_string(together));
    bind_decode(launch, a, p);
    launch.writes_scratch(5, parts, part_bytes)
        .writes_scratch(6, stats, stat_bytes)
        .params(7, p)
        .groups(a.heads / together * (spread ? 1 : slices(a)), p.rows, p.splits)
        .threads(kThreads);
    e.emit(launch);

    const AttentionReduceParams reduce_params{a.heads,  a.head_dim, p.first_row,     p.gathered,     a.window,
                                              p.splits, p.position_word, p.out_row_word, spread ? spread_keys(a) : 0,
                                              p.score_scale};
    Launch reduce("attention_reduce", "attention_reduce");
    reduce.reads_scratch(0, parts, part_bytes)
        .reads_scratch(1, stats, stat_bytes)
        .reads_input(2)
        .writes_rows(3, *a.y, p.first_row, p.rows)
        .params(4, reduce_params)
        .groups(a.heads * divide_up(a.head_dim, kReduceThreads), p.rows)
        .threads(kReduceThreads);
    e.emit(reduce);
  }
}

void decode(Emitter &e, const Attention &a, uint32_t first, uint32_t rows) {
  AttentionParams p = params_of(e, a, *a.q, first, rows);
  if (a.owns && e.shape.verifies) {
    write_kv(e, a, first, rows);
    p.flags |= kOwnKey;
  } else if (a.owns) {
    p.flags |= kOwnKey | kStoreOwnKey;
  }
  // A drafter may read what the pass before it wrote in the same run.
  if (!e.shape.verifies && a.k != nullptr) p.flags |= kKeysAreThere;
  if (spreads(e) && (walked(a) || e.shape.context_blocks <= kSpreadBlocks)) {
    spread(e, a, p);
  } else if (walked(a)) {
    walk(e, a, p);
  } else {
    split(e, a, p);
  }
}

void prefill(Emitter &e, const Attention &a, uint32_t first, uint32_t rows) {
  if (a.owns) write_kv(e, a, first, rows);
  Launch launch(family("attention_prefill", a), kernel_name("attention_prefill", a) + (e.exact() ? "_exact" : "_fast"));
  launch.reads_rows(0, *a.q, first, rows);
  bind_norm(launch, 1, a.q_norm);
  launch.reads(2, *a.pages)
      .reads_input(3)
      .writes_rows(4, *a.y, first, rows)
      .params(5, params_of(e, a, *a.q, first, rows))
      .groups(divide_up(rows, kTileRows), a.heads)
      .threads(a.head_dim < 64 ? 128 : kThreads);
  e.emit(launch);
}

uint32_t block_rule(const Op &op) {
  return op.flags & kBlockWhole ? kWholeBlock : op.flags & kBlockWindow ? kWindowOfBlock : kCausalRows;
}

void both_classes(Emitter &e, const Attention &a) {
  const Emitter::Rows rows = e.rows_of(*a.q);
  if (rows.decode > 0) decode(e, a, 0, rows.decode);
  if (rows.prefill() > 0) prefill(e, a, rows.decode, rows.prefill());
}

}  // namespace

void lower_attention(Emitter &e, const Op &op) {
  Attention a;  // operands: qkv, q_norm, k_norm, kv, y
  a.q = a.k = a.v = op.operands[0];
  a.q_norm = op.operands[1], a.k_norm = op.operands[2], a.pages = op.operands[3], a.y = op.operands[4];
  a.heads = op.ints[0], a.kv_heads = op.ints[1], a.head_dim = op.ints[2], a.window = op.ints[6];
  a.owns = op.flags & kOwnsKv;
  set_pages(e, a, op.ints[4], op.ints[5]);
  AttentionParams &p = a.params;
  p.k_column = a.heads * a.head_dim;
  p.v_column = p.k_column + (op.flags & kKeysAreValues ? 0 : a.kv_heads * a.head_dim);
  p.flags = op.flags & kNormValues ? kNormaliseValue : 0u;
  p.rotated_pairs = op.ints[3];
  p.eps = op.floats[1];
  set_score_scale(p, op.floats[2]);
  set_rope(p, a.head_dim, op.floats[0], op.floats[3]);
  p.position_offset = whole_position_offset(op.floats[4]);
  p.block_rule = block_rule(op);
  both_classes(e, a);
}

void lower_attend(Emitter &e, const Op &op) {
  Attention a;  // operands: q, kv, y
  a.q = op.operands[0], a.pages = op.operands[1], a.y = op.operands[2];
  a.heads = op.ints[0], a.kv_heads = op.ints[1], a.head_dim = op.ints[2], a.window = op.ints[5];
  set_pages(e, a, op.ints[3], op.ints[4]);
  set_score_scale(a.params, op.floats[0]);
  a.params.block_rule = block_rule(op);
  both_classes(e, a);
}

void lower_kv_write(Emitter &e, const Op &op) {
  Attention a;  // operands: k, v, kv
  a.k = op.operands[0], a.v = op.operands[1], a.pages = op.operands[2];
  a.heads = a.kv_heads = op.ints[0], a.head_dim = op.ints[1];
  set_pages(e, a, op.ints[2], op.ints[3]);
  const uint32_t rows = e.rows_of(*a.k).count;
  if (rows > 0) write_kv(e, a, 0, rows);
}

}  // namespace mb::gpu
