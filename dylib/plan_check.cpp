// plan_check.cpp: the contract of each op kind (src/schedule/ops.ts) as checks. A table says what each operand slot
// holds and which parameters count; one function per kind compares shapes and ranges.
#include <cstdarg>
#include <cstdio>
#include <initializer_list>
#include <string>

#include "plan_check.h"

namespace mb {

namespace {

using ull = unsigned long long;

constexpr int64_t kScaleBytes = 4;  // of each head of a token in an i8 pool

// What an operand slot may hold.
enum Role : uint32_t {
  kRead = 1u << 0,
  kWrite = 1u << 1,
  kOptional = 1u << 2,
  kActivation = 1u << 3,  // f32 [r, n]
  kVector = 1u << 4,      // f32, f16 or bf16 [n]: norms, biases, scalars
  kMatrix = 1u << 5,      // any float or quantised format [n, k]
  kIds = 1u << 6,         // u32 [r, n]
  kPool = 1u << 7,        // f32 or f16 [pages, 2 * layers, kv heads, 32, head size], or i8 with kScaleBytes more a head
  kExperts = 1u << 8,     // any float or quantised format [experts, n, k]
};
constexpr uint32_t kIn = kRead | kActivation, kOut = kWrite | kActivation;
constexpr uint32_t kInOptional = kIn | kOptional, kOutOptional = kOut | kOptional;
constexpr uint32_t kWeight = kRead | kMatrix, kWeightOptional = kWeight | kOptional;
constexpr uint32_t kExpertWeight = kRead | kExperts, kChosen = kRead | kIds;
constexpr uint32_t kParameter = kRead | kVector, kParameterOptional = kParameter | kOptional;

struct Slot {
  const char *name;
  uint32_t role;
};

class Checker;

struct Contract {
  OpKind kind;
  const char *name;
  uint32_t ints, floats, flags;  // slots in use; flag bits known
  void (*check)(const Checker &);
  std::vector<Slot> slots;
};

const Contract *contract_of(uint32_t kind);

// Comparisons on one op. A failed one throws with the op's place, kind and layer in front.
class Checker {
 public:
  Checker(const Plan &plan, const Op &op, size_t index, const Contract &contract)
      : plan(plan), op(op), contract_(contract), index_(index) {}

  const Plan &plan;
  const Op &op;

  [[noreturn]] void reject(const char *format, ...) const __attribute__((format(printf, 2, 3))) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const std::string layer = op.layer == kNone ? "" : ", layer " + std::to_string(op.layer);
    fail(MB_INVALID_PLAN, "op %zu (%s%s): %s", index_, contract_.name, layer.c_str(), text);
  }

  void require(bool condition, const char *what) const {
    if (!condition) reject("%s", what);
  }

  bool has(uint32_t slot) const { return op.operands[slot] != nullptr; }
  const Tensor &operator[](uint32_t slot) const { return *op.operands[slot]; }
  int64_t dim(uint32_t slot, uint32_t d) const { return (*op.operands[slot]).dims[d]; }

  // The tensor in the slot, where there is one, must have exactly these dims.
  void shape(uint32_t slot, std::initializer_list<int64_t> dims) const {
    if (!has(slot)) return;
    const Tensor &tensor = *op.operands[slot];
    bool same = tensor.rank == dims.size();
    uint32_t d = 0;
    for (const int64_t dim : dims) same = same && tensor.dims[d++] == dim;
    if (same) return;
    std::string expected;
    for (const int64_t dim : dims) expected += (expected.empty() ? "" : ", ") + text(dim);
    std::string found;
    for (d = 0; d < tensor.rank; d++) found += (d == 0 ? "" : ", ") + text(tensor.dims[d]);
    reject("%s has shape [%s] instead of [%s]", contract_.slots[slot].name, found.c_str(), expected.c_str());
  }

  // The row symbol of an activation: rows or out_rows.
  int64_t rows(uint32_t slot) const {
    const int64_t r = dim(slot, 0);
    if (r != symbol(kRows) && r != symbol(kOutRows)) {
      reject("%s has %s rows; they must be the symbol rows or out_rows", contract_.slots[slot].name, text(r).c_str());
    }
    return r;
  }

  static constexpr int64_t symbol(Symbol s) { return -1 - static_cast<int64_t>(s); }

  static std::string text(int64_t dim) {
    static const char *const names[] = {"rows", "out_rows", "sequences", "pages"};
    return dim >= 0 ? std::to_string(dim) : names[-1 - dim];
  }

 private:
  const Contract &contract_;
  size_t index_;
};

void check_embed(const Checker &c) {  // table, y, soft
  c.rows(1);
  if (c.has(2)) {
    c.require(c[2].format == kF32, "soft must be f32");
    c.shape(2, {c.dim(2, 0), c.dim(0, 1)});
  }
  c.require(c.dim(0, 0) >= int64_t(c.plan.vocabulary_size), "table has fewer rows than the vocabulary has tokens");
  c.shape(1, {c.dim(1, 0), c.dim(0, 1)});
}

void check_per_layer_inputs(const Checker &c) {  // projected, table, norm, y
  const int64_t width = c.dim(0, 1), slice = c.op.ints[0];
  c.rows(0);
  c.require(slice > 0 && width % slice == 0, "the width is no multiple of the slice");
  c.require(c.dim(1, 0) >= int64_t(c.plan.vocabulary_size), "table has fewer rows than the vocabulary has tokens");
  c.shape(1, {c.dim(1, 0), width});
  c.shape(2, {slice});
  c.shape(3, {c.dim(0, 0), width});
  c.require(c.op.floats[0] > 0, "eps must be positive");
}

void check_linear(const Checker &c) {
  enum { x, residual, post_norm, scalar, h_out, pre_norm, w0, w1, w2, bias0, bias1, bias2, other, y };
  const int64_t r = c.rows(x), k = c.dim(x, 1);
  c.shape(residual, {r, k});
  c.shape(post_norm, {k});
  c.shape(scalar, {1});
  c.shape(h_out, {r, k});
  c.shape(pre_norm, {k});
  if (!c.has(residual)) c.require(!c.has(post_norm) && !c.has(scalar), "post_norm and scalar need a residual");
  if (c.has(post_norm) || c.has(pre_norm)) c.require(c.op.floats[0] > 0, "eps must be positive");
  c.require(c.has(w1) || !c.has(w2), "w2 needs w1");
  int64_t n = 0;
  for (uint32_t i = 0; i < 3; i++) {
    if (c.has(w0 + i)) {
      c.shape(w0 + i, {c.dim(w0 + i, 0), k});
      c.shape(bias0 + i, {c.dim(w0 + i, 0)});
      n += c.dim(w0 + i, 0);
    } else {
      c.require(!c.has(bias0 + i), "a bias needs its weight");
    }
  }
  c.require(c.has(other) == (c.op.ints[0] == kEpilogueGeluMul), "other belongs to the epilogue gelu_mul");
  c.require(c.op.ints[0] == kEpilogueGeluMul || c.op.ints[1] == 0, "other_column belongs to the epilogue gelu_mul");
  switch (c.op.ints[0]) {
    case kEpilogueNone:
      break;
    case kEpilogueGeglu:
      c.require(c.has(w1) && !c.has(w2) && c.dim(w0, 0) == c.dim(w1, 0), "geglu takes two weights of one shape");
      n = c.dim(w0, 0);
      break;
    case kEpilogueGeluMul:
      c.require(!c.has(w1), "gelu_mul takes one weight");
      c.shape(other, {r, c.dim(other, 1)});
      c.require(int64_t(c.op.ints[1]) + n <= c.dim(other, 1), "the columns read from other lie outside it");
      break;
    case kEpilogueSoftcap:
      c.require(!c.has(w1), "softcap takes one weight");
      c.require(c.op.floats[1] > 0, "softcap must be positive");
      break;
    case kEpilogueSilu:
      c.require(!c.has(w1), "silu takes one weight");
      break;
    default:
      c.reject("there is no epilogue %u", c.op.ints[0]);
  }
  const float *bounds = c.op.floats + 2;
  if ((c.op.flags & kClip) != 0) {
    c.require(!c.has(w1), "clip takes one weight");
    c.require(bounds[0] <= bounds[1] && bounds[2] <= bounds[3], "the least bound of a clip is above the largest");
  } else {
    for (uint32_t i = 0; i < 4; i++) c.require(bounds[i] == 0, "bounds belong to clip");
  }
  c.shape(y, {r, n});
}

// Heads, KV heads and head size, as attention ops have them.
void check_heads(const Checker &c, uint64_t heads, uint64_t kv_heads, uint64_t head_dim) {
  constexpr uint64_t kMaxHeads = 1u << 16, kMaxHeadDim = 1u << 16;
  c.require(heads > 0 && kv_heads > 0 && heads <= kMaxHeads && kv_heads <= kMaxHeads, "heads must be 1 to 65536");
  c.require(heads % kv_heads == 0, "heads must be a multiple of kv_heads");
  c.require(head_dim > 0 && head_dim <= kMaxHeadDim && head_dim % 2 == 0, "head_dim must be even, 2 to 65536");
}

// The page pool of an op, and that the layer and group it names exist.
void check_pool(const Checker &c, uint32_t slot, uint32_t kv_heads, uint32_t head_dim, uint32_t layer, uint32_t group) {
  const Tensor &pool = c[slot];
  const int64_t scale = pool.format == kI8 ? kScaleBytes : 0;
  c.shape(slot, {pool.dims[0], pool.dims[1], kv_heads, kPageTokens, head_dim + scale});
  c.require(pool.dims[1] % 2 == 0 && int64_t(layer) < pool.dims[1] / 2, "kv_layer lies outside the page pool");
  c.require(group < c.plan.group_count, "there is no such page group");
}

void check_rope(const Checker &c, uint32_t head_dim, uint32_t rotated_pairs, float theta, float position_scale) {
  c.require(rotated_pairs <= head_dim / 2, "rotated_pairs is more than half of head_dim");
  c.require(theta > 0 && position_scale > 0, "theta and position_scale must be positive");
}

void check_block(const Checker &c) {
  c.require((c.op.flags & kBlockWindow) == 0 || (c.op.flags & kBlockWhole) == 0, "a block has two rules");
}

void check_attention(const Checker &c) {
  enum { qkv, q_norm, k_norm, kv, y };
  const uint32_t *ints = c.op.ints;
  const int64_t heads = ints[0], kv_heads = ints[1], d = ints[2], r = c.rows(qkv);
  check_heads(c, ints[0], ints[1], ints[2]);
  check_pool(c, kv, ints[1], ints[2], ints[4], ints[5]);
  check_rope(c, ints[2], ints[3], c.op.floats[0], c.op.floats[3]);
  const int64_t own = (c.op.flags & kOwnsKv) == 0 ? 0 : (c.op.flags & kKeysAreValues) != 0 ? 1 : 2;
  c.shape(qkv, {r, (heads + own * kv_heads) * d});
  c.shape(q_norm, {d});
  c.shape(k_norm, {d});
  c.shape(y, {r, heads * d});
  c.require(c.op.floats[1] > 0, "eps must be positive");
  check_block(c);
}

void check_gather(const Checker &c) {  // x, y
  c.shape(0, {Checker::symbol(kRows), c.dim(0, 1)});
  c.shape(1, {Checker::symbol(kOutRows), c.dim(0, 1)});
}

void check_candidates(const Checker &c) {  // logits, ids, values, stats
  const int64_t r = Checker::symbol(kOutRows);
  c.shape(0, {r, int64_t(c.plan.vocabulary_size)});
  c.shape(1, {r, 256});
  c.shape(2, {r, 256});
  c.shape(3, {r, 4});
}

// Experts of the rows of x: [r, slots] with 0 < slots <= count.
int64_t check_slots(const Checker &c, uint32_t experts, int64_t rows, int64_t count) {
  const int64_t slots = c.dim(experts, 1);
  c.shape(experts, {rows, slots});
  c.require(count < int64_t(1) << 20, "there are too many experts");
  c.require(slots <= count, "more experts are chosen than there are");
  return slots;
}

void check_route(const Checker &c) {  // x, scale, projection, per_expert_scale, experts, y
  const int64_t r = c.rows(0), k = c.dim(0, 1), count = c.dim(2, 0);
  c.shape(1, {k});
  c.shape(2, {count, k});
  c.shape(3, {count});
  c.shape(5, {r, check_slots(c, 4, r, count)});
  c.require(c.op.floats[0] > 0 && c.op.floats[1] > 0, "eps and in_scale must be positive");
}

void check_expert_gate_up(const Checker &c) {  // x, pre_norm, experts, w0, w1, y
  const int64_t r = c.rows(0), k = c.dim(0, 1), count = c.dim(3, 0);
  c.shape(1, {k});
  const int64_t slots = check_slots(c, 2, r, count), n = c.dim(3, 1);
  c.require(c.has(4) || n % 2 == 0, "w0 must hold as many gate rows as up rows");
  const int64_t width = c.has(4) ? n : n / 2;
  c.shape(3, {count, n, k});
  c.shape(4, {count, n, k});
  c.shape(5, {r, slots * width});
  if (c.has(1)) c.require(c.op.floats[0] > 0, "eps must be positive");
}

void check_expert_down(const Checker &c) {  // x, experts, shares, w, y
  const int64_t r = c.rows(0), count = c.dim(3, 0);
  const int64_t slots = check_slots(c, 1, r, count);
  c.shape(2, {r, slots});
  c.shape(0, {r, slots * c.dim(3, 2)});
  c.shape(4, {r, c.dim(3, 1)});
}

void check_add_norms(const Checker &c) {  // a, a_norm, b, b_norm, y
  const int64_t r = c.rows(0), n = c.dim(0, 1);
  c.shape(1, {n});
  c.shape(2, {r, n});
  c.shape(3, {n});
  c.shape(4, {r, n});
  c.require(c.op.floats[0] > 0, "eps must be positive");
}

void check_draft_input(const Checker &c) {  // table, state, y
  const int64_t r = c.rows(1), n = c.dim(0, 1);
  c.require(c.dim(0, 0) >= int64_t(c.plan.vocabulary_size), "table has fewer rows than the vocabulary has tokens");
  c.shape(1, {r, n});
  c.shape(2, {r, 2 * n});
}

void check_centroid_head(const Checker &c) {  // x, norm, scores, ordering, table, y
  const int64_t r = c.rows(0), k = c.dim(0, 1), count = c.dim(3, 0), tokens = c.dim(4, 0);
  c.require(count > 0 && tokens % count == 0, "the centroids do not divide the table's rows evenly");
  c.shape(1, {k});
  c.shape(2, {r, count});
  c.shape(3, {count, tokens / count});
  c.shape(4, {tokens, k});
  c.shape(5, {r, tokens});
  c.require(c.op.ints[0] > 0 && int64_t(c.op.ints[0]) <= count, "top_k must be 1 to the number of centroids");
  if (c.has(1)) c.require(c.op.floats[0] > 0, "eps must be positive");
}

void check_top_k(const Checker &c) {  // logits, per_expert_scale, experts, y
  const int64_t r = c.rows(0), count = c.dim(0, 1);
  c.shape(1, {count});
  c.shape(3, {r, check_slots(c, 2, r, count)});
}

void check_expert_linear(const Checker &c) {  // x, experts, w, y
  const int64_t r = c.rows(0), k = c.dim(2, 2);
  const int64_t slots = check_slots(c, 1, r, c.dim(2, 0));
  c.require(c.dim(0, 1) == k || c.dim(0, 1) == slots * k, "x has neither one part nor one for each slot");
  c.require(c.dim(3, 1) % slots == 0, "the width of y is no multiple of the slots");
  c.shape(3, {r, c.dim(3, 1)});
  c.require(int64_t(c.op.ints[0]) + c.dim(3, 1) / slots <= c.dim(2, 1), "the rows read from w lie outside it");
}

void check_expert_sum(const Checker &c) {  // x, shares, y
  const int64_t r = c.rows(0), slots = c.dim(1, 1);
  c.shape(1, {r, slots});
  c.shape(0, {r, slots * c.dim(2, 1)});
  c.shape(2, {r, c.dim(2, 1)});
}

void check_rms_norm(const Checker &c) {  // x, weight, y
  const int64_t n = c.dim(0, 1), group = c.op.ints[0];
  c.require(group > 0 && n % group == 0, "the width is no multiple of the group");
  c.shape(1, {group});
  c.shape(2, {c.rows(0), n});
  c.require(c.op.floats[0] > 0, "eps must be positive");
}

void check_add(const Checker &c) {  // a, b, scalar, y
  c.shape(1, {c.rows(0), c.dim(0, 1)});
  c.shape(2, {1});
  c.shape(3, {c.rows(0), c.dim(0, 1)});
}

void check_gelu_mul(const Checker &c) {  // a, b, y
  const int64_t n = c.dim(0, 1);
  c.shape(1, {c.rows(0), c.dim(1, 1)});
  c.require(int64_t(c.op.ints[0]) + n <= c.dim(1, 1), "the columns read from b lie outside it");
  c.shape(2, {c.rows(0), n});
}

void check_softcap(const Checker &c) {  // x, y
  c.shape(1, {c.rows(0), c.dim(0, 1)});
  c.require(c.op.floats[0] > 0, "cap must be positive");
}

void check_rope_op(const Checker &c) {  // x, y
  const uint32_t *ints = c.op.ints;
  check_heads(c, ints[0], 1, ints[1]);
  check_rope(c, ints[1], ints[2], c.op.floats[0], c.op.floats[1]);
  c.shape(0, {c.rows(0), int64_t(ints[0]) * ints[1]});
  c.shape(1, {c.rows(0), int64_t(ints[0]) * ints[1]});
}

void check_kv_write(const Checker &c) {  // k, v, kv
  const uint32_t *ints = c.op.ints;
  check_heads(c, ints[0], ints[0], ints[1]);
  check_pool(c, 2, ints[0], ints[1], ints[2], ints[3]);
  c.shape(0, {c.rows(0), int64_t(ints[0]) * ints[1]});
  c.shape(1, {c.rows(0), int64_t(ints[0]) * ints[1]});
}

void check_attend(const Checker &c) {  // q, kv, y
  const uint32_t *ints = c.op.ints;
  check_heads(c, ints[0], ints[1], ints[2]);
  check_pool(c, 1, ints[1], ints[2], ints[3], ints[4]);
  c.shape(0, {c.rows(0), int64_t(ints[0]) * ints[2]});
  c.shape(2, {c.rows(0), int64_t(ints[0]) * ints[2]});
  check_block(c);
}

void check_add_positions(const Checker &c) {  // x, table, positions, y
  const int64_t r = c.rows(0), n = c.dim(0, 1);
  const uint64_t count = c.op.ints[0], step = c.op.ints[1], second = c.op.ints[2];
  c.shape(1, {c.dim(1, 0), n});
  c.require(count > 0 && (count - 1) * step + second < static_cast<uint64_t>(c.dim(1, 0)),
            "the last position lies outside the table");
  c.shape(2, {r, 2});
  c.shape(3, {r, n});
}

void check_patch_attention(const Checker &c) {  // q, k, v, q_norm, k_norm, positions, y
  const uint32_t *ints = c.op.ints;
  check_heads(c, ints[0], ints[1], ints[2]);
  c.require(ints[2] % 4 == 0 && ints[2] <= 256, "head_dim must be a multiple of 4, 256 at most");
  const int64_t r = c.rows(0), d = ints[2];
  c.shape(0, {r, ints[0] * d});
  c.shape(1, {r, ints[1] * d});
  c.shape(2, {r, ints[1] * d});
  c.shape(3, {d});
  c.shape(4, {d});
  c.shape(5, {r, 2});
  c.shape(6, {r, ints[0] * d});
  c.require(c.op.floats[0] > 0 && c.op.floats[1] > 0 && c.op.floats[2] > 0,
            "theta, eps and score_scale must be positive");
}

void check_pooling(const Checker &c) {  // x, members, bias, scale, y
  const int64_t n = c.dim(0, 1), out = Checker::symbol(kOutRows);
  c.shape(0, {Checker::symbol(kRows), n});
  c.shape(1, {out, c.dim(1, 1)});
  c.shape(2, {n});
  c.shape(3, {n});
  c.shape(4, {out, n});
}

void check_subsample(const Checker &c) {  // x, valid, w, norm, y
  const int64_t r = c.rows(0), bins = c.op.ints[0], frames = c.op.ints[1], outputs = c.dim(2, 0);
  c.require(frames == 1 || frames == 2, "frames_per_row must be 1 or 2");
  c.require(bins > 0 && bins % 2 == 0 && bins <= 1 << 16, "bins must be even, 2 to 65536");
  c.require(c.dim(2, 1) % 9 == 0, "w must have nine numbers for each channel");
  const int64_t channels = c.dim(2, 1) / 9;
  c.require(channels <= 1 << 16 && outputs <= 1 << 16, "there are too many channels");
  c.shape(0, {r, frames * bins * channels});
  c.shape(1, {r, frames});
  c.shape(3, {outputs});
  c.shape(4, {frames == 2 ? r : Checker::symbol(kOutRows), bins / 2 * outputs});
  c.require(c.op.floats[0] > 0, "eps must be positive");
}

void check_local_attention(const Checker &c) {  // q, k, v, per_dim_scale, relative, valid, y
  const uint32_t *ints = c.op.ints;
  check_heads(c, ints[0], ints[0], ints[1]);
  c.require(ints[1] <= 512, "head_dim is above 512");
  c.require(ints[2] > 0 && ints[2] <= 1u << 12 && ints[3] <= 1u << 12, "left must be 1 to 4096, right at most 4096");
  const int64_t r = c.rows(0), n = int64_t(ints[0]) * ints[1];
  for (uint32_t slot = 0; slot < 3; slot++) c.shape(slot, {r, n});
  c.shape(3, {ints[1]});
  c.require(c.dim(4, 1) >= 4 && c.dim(4, 1) % 2 == 0, "relative must have an even number of columns, 4 at least");
  c.shape(4, {n, c.dim(4, 1)});
  c.shape(5, {r, 1});
  c.shape(6, {r, n});
  c.require(c.op.floats[3] > 0, "cap must be positive");
}

void check_light_conv(const Checker &c) {  // x, w, norm, y
  const int64_t r = c.rows(0), n = c.dim(1, 0);
  c.require(c.dim(1, 1) <= 1 << 10, "the kernel is longer than 1024");
  c.shape(0, {r, 2 * n});
  c.shape(2, {n});
  c.shape(3, {r, n});
  c.require(c.op.floats[0] > 0, "eps must be positive");
}

void check_layer_norm(const Checker &c) {  // x, weight, bias, y
  const int64_t n = c.dim(0, 1);
  c.shape(1, {n});
  c.shape(2, {n});
  c.shape(3, {c.rows(0), n});
  c.require(c.op.floats[0] > 0, "eps must be positive");
}

const Contract *contract_of(uint32_t kind) {
  static const Contract contracts[] = {
      {kEmbed, "embed", 0, 1, 0, check_embed, {{"table", kWeight}, {"y", kOut}, {"soft", kWeightOptional}}},
      {kPerLayerInputs, "per_layer_inputs", 1, 4, 0, check_per_layer_inputs,
       {{"projected", kIn}, {"table", kWeight}, {"norm", kParameter}, {"y", kOut}}},
      {kLinear, "linear", 2, 6, kClip, check_linear,
       {{"x", kIn}, {"residual", kInOptional}, {"post_norm", kParameterOptional}, {"scalar", kParameterOptional},
        {"h_out", kOutOptional}, {"pre_norm", kParameterOptional}, {"w0", kWeight}, {"w1", kWeightOptional},
        {"w2", kWeightOptional}, {"bias0", kParameterOptional}, {"bias1", kParameterOptional},
        {"bias2", kParameterOptional}, {"other", kInOptional}, {"y", kOut}}},
      {kAttention, "attention", 7, 5, kOwnsKv | kKeysAreValues | kNormValues | kBlockWindow | kBlockWhole, check_attention,
       {{"qkv", kIn}, {"q_norm", kParameterOptional}, {"k_norm", kParameterOptional}, {"kv", kRead | kPool},
        {"y", kOut}}},
      {kGather, "gather", 0, 0, 0, check_gather, {{"x", kIn}, {"y", kOut}}},
      {kCandidates, "candidates", 0, 0, 0, check_candidates,
       {{"logits", kIn}, {"ids", kWrite | kIds}, {"values", kOut}, {"stats", kOut}}},
      {kRoute, "route", 0, 2, 0, check_route,
       {{"x", kIn}, {"scale", kParameter}, {"projection", kWeight}, {"per_expert_scale", kParameter},
        {"experts", kWrite | kIds}, {"y", kOut}}},
      {kExpertGateUp, "expert_gate_up", 0, 1, 0, check_expert_gate_up,
       {{"x", kIn}, {"pre_norm", kParameterOptional}, {"experts", kChosen}, {"w0", kExpertWeight},
        {"w1", kExpertWeight | kOptional}, {"y", kOut}}},
      {kExpertDown, "expert_down", 0, 0, 0, check_expert_down,
       {{"x", kIn}, {"experts", kChosen}, {"shares", kIn}, {"w", kExpertWeight}, {"y", kOut}}},
      {kAddNorms, "add_norms", 0, 1, 0, check_add_norms,
       {{"a", kIn}, {"a_norm", kParameter}, {"b", kIn}, {"b_norm", kParameter}, {"y", kOut}}},
      {kDraftInput, "draft_input", 0, 1, 0, check_draft_input, {{"table", kWeight}, {"state", kIn}, {"y", kOut}}},
      {kCentroidHead, "centroid_head", 1, 1, 0, check_centroid_head,
       {{"x", kIn}, {"norm", kParameterOptional}, {"scores", kIn}, {"ordering", kRead | kIds}, {"table", kWeight},
        {"y", kOut}}},
      {kTopK, "top_k", 0, 0, 0, check_top_k,
       {{"logits", kIn}, {"per_expert_scale", kParameter}, {"experts", kWrite | kIds}, {"y", kOut}}},
      {kExpertLinear, "expert_linear", 1, 0, 0, check_expert_linear,
       {{"x", kIn}, {"experts", kChosen}, {"w", kExpertWeight}, {"y", kOut}}},
      {kExpertSum, "expert_sum", 0, 0, 0, check_expert_sum, {{"x", kIn}, {"shares", kIn}, {"y", kOut}}},
      {kRmsNorm, "rms_norm", 1, 2, 0, check_rms_norm, {{"x", kIn}, {"weight", kParameterOptional}, {"y", kOut}}},
      {kAdd, "add", 0, 2, 0, check_add,
       {{"a", kIn}, {"b", kInOptional}, {"scalar", kParameterOptional}, {"y", kOut}}},
      {kGeluMul, "gelu_mul", 1, 0, 0, check_gelu_mul, {{"a", kIn}, {"b", kIn}, {"y", kOut}}},
      {kSoftcap, "softcap", 0, 1, 0, check_softcap, {{"x", kIn}, {"y", kOut}}},
      {kRope, "rope", 3, 3, 0, check_rope_op, {{"x", kIn}, {"y", kOut}}},
      {kKvWrite, "kv_write", 4, 0, 0, check_kv_write, {{"k", kIn}, {"v", kIn}, {"kv", kWrite | kPool}}},
      {kAttend, "attend", 6, 1, kBlockWindow | kBlockWhole, check_attend,
       {{"q", kIn}, {"kv", kRead | kPool}, {"y", kOut}}},
      {kAddPositions, "add_positions", 3, 0, 0, check_add_positions,
       {{"x", kIn}, {"table", kWeight}, {"positions", kChosen}, {"y", kOut}}},
      {kPatchAttention, "patch_attention", 3, 3, 0, check_patch_attention,
       {{"q", kIn}, {"k", kIn}, {"v", kIn}, {"q_norm", kParameter}, {"k_norm", kParameter}, {"positions", kChosen},
        {"y", kOut}}},
      {kPoolRows, "pool", 0, 1, 0, check_pooling,
       {{"x", kIn}, {"members", kChosen}, {"bias", kParameterOptional}, {"scale", kParameterOptional}, {"y", kOut}}},
      {kSubsample, "subsample", 2, 1, kChannelsLast, check_subsample,
       {{"x", kIn}, {"valid", kChosen}, {"w", kWeight}, {"norm", kParameter}, {"y", kOut}}},
      {kLocalAttention, "local_attention", 4, 4, 0, check_local_attention,
       {{"q", kIn}, {"k", kIn}, {"v", kIn}, {"per_dim_scale", kParameter}, {"relative", kWeight}, {"valid", kChosen},
        {"y", kOut}}},
      {kLightConv, "light_conv", 0, 1, 0, check_light_conv,
       {{"x", kIn}, {"w", kWeight}, {"norm", kParameter}, {"y", kOut}}},
      {kLayerNorm, "layer_norm", 0, 1, 0, check_layer_norm,
       {{"x", kIn}, {"weight", kParameter}, {"bias", kParameterOptional}, {"y", kOut}}},
  };
  for (const Contract &contract : contracts) {
    if (contract.kind == kind) return &contract;
  }
  return nullptr;
}

// Whether a tensor's format and rank suit the slot.
bool suits(const Tensor &tensor, uint32_t role) {
  const bool floats = tensor.format == kF32 || tensor.format == kF16 || tensor.format == kBF16;
  const bool constant = tensor.dims[0] >= 0;  // other dimensions always are
  if (role & kActivation) return tensor.format == kF32 && tensor.rank == 2;
  if (role & kVector) return floats && tensor.rank == 1 && constant;
  if (role & kMatrix) return (floats || format_traits(tensor.format)->element_bytes == 0) && tensor.rank == 2 && constant;
  if (role & kExperts) return (floats || format_traits(tensor.format)->element_bytes == 0) && tensor.rank == 3 && constant;
  if (role & kIds) return tensor.format == kU32 && tensor.rank == 2;
  // kPool; the f32 scales of an i8 pool lie between its codes
  const bool pages = tensor.format == kF32 || tensor.format == kF16 || (tensor.format == kI8 && tensor.offset % 4 == 0);
  return pages && tensor.rank == 5;
}

// Whether writing `written` would change bytes of `other`.
bool overlap(const Plan &plan, const Tensor &written, const Tensor &other) {
  if (plan.buffers[written.buffer] != plan.buffers[other.buffer]) return false;
  return written.offset < other.offset + other.max_bytes && other.offset < written.offset + written.max_bytes;
}

// What the op does with a slot: the pool of an attention is written only where the op owns its keys and values.
bool writes(const Op &op, const Slot &slot) {
  if (op.kind == kAttention && (slot.role & kPool)) return (op.flags & kOwnsKv) != 0;
  return (slot.role & kWrite) != 0;
}

void check_overlap(const Checker &c, const Contract &contract) {
  for (uint32_t w = 0; w < contract.slots.size(); w++) {
    if (!c.has(w) || !writes(c.op, contract.slots[w])) continue;
    const Tensor &written = c[w];
    const char *name = contract.slots[w].name;
    if (!c.plan.buffer_writable[written.buffer]) c.reject("%s lies in the read-only buffer %u", name, written.buffer);
    for (uint32_t o = 0; o < contract.slots.size(); o++) {
      if (o == w || !c.has(o)) continue;
      const Tensor &other = c[o];
      if (overlap(c.plan, written, other) || (other.scales != nullptr && overlap(c.plan, written, *other.scales)) ||
          (other.biases != nullptr && overlap(c.plan, written, *other.biases))) {
        c.reject("%s shares bytes with %s", name, contract.slots[o].name);
      }
    }
  }
}

}  // namespace

const char *op_name(uint32_t kind) {
  const Contract *contract = contract_of(kind);
  return contract == nullptr ? nullptr : contract->name;
}

void check_op(const Plan &plan, const Op &op, size_t index) {
  const Contract &contract = *contract_of(op.kind);
  const Checker c(plan, op, index, contract);
  if ((op.flags & ~contract.flags) != 0) c.reject("unknown flags %08x", op.flags);
  for (uint32_t i = contract.ints; i < 8; i++) {
    if (op.ints[i] != 0) c.reject("int %u is set but has no meaning", i);
  }
  for (uint32_t i = contract.floats; i < 8; i++) {
    if (op.floats[i] != 0) c.reject("float %u is set but has no meaning", i);
  }
  for (uint32_t slot = 0; slot < kMaxOperands; slot++) {
    if (slot >= contract.slots.size()) {
      if (c.has(slot)) c.reject("it has no operand %u", slot);
      continue;
    }
    const Slot &expected = contract.slots[slot];
    if (!c.has(slot)) {
      if ((expected.role & kOptional) == 0) c.reject("operand %s is absent", expected.name);
    } else if (!suits(c[slot], expected.role)) {
      c.reject("operand %s has the wrong format (%s) or rank (%u)", expected.name, format_traits(c[slot].format)->name,
               c[slot].rank);
    }
  }
  contract.check(c);
  check_overlap(c, contract);
}

}  // namespace mb
