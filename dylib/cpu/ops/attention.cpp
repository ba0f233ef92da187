// Attention over the KV pages. A row's keys are taken in blocks of 256 at absolute positions; each block gives a partial
// result (largest score, sum, weighted values) and partials are joined in ascending order. So a row's bits do not depend
// on its chunk, its batch mates, or on whether blocks were computed one after another or in parallel.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "../context.h"
#include "../softmax.h"

namespace mb {

namespace {

constexpr int64_t kBlockKeys = 256;
constexpr int64_t kTileQueries = 32;  // query vectors (rows times heads of one KV head) that share the loads of a key
constexpr int64_t kWaveBlocks = 32;   // blocks whose partials are kept at once where a row's blocks run in parallel

// The shape of an attention, from either op that has one.
struct Shape {
  int64_t heads, kv_heads, d, layer, group, window;
  float score_scale;
  const Tensor *kv;
  uint32_t block = 0;  // kBlockWindow or kBlockWhole: what rows of a block see
  int64_t group_heads() const { return heads / kv_heads; }
};

// Partial result of one query over some keys; its values [d], not yet divided by the sum, are kept apart.
struct Partial {
  float largest, sum;  // of the scaled scores, and of exp(score - largest)
};

class Pages {
 public:
  Pages(const Context &c, const Shape &s)
      : c_(c),
        s_(s),
        base_(c.bytes(s.kv)),
        coded_(s.kv->format == kI8),
        element_(bytes_of_format(s.kv->format)),
        row_(s.kv->dims[4] * element_),
        planes_(s.kv->dims[1]) {}

  bool coded() const { return coded_; }

  // Keys (plane 0) or values (plane 1) of the 32 tokens of a page: [32, d], and after i8 codes an f32 scale of each token.
  uint8_t *tokens(uint32_t page, int64_t plane, int64_t kv_head) const {
    return base_ + ((page * planes_ + 2 * s_.layer + plane) * s_.kv_heads + kv_head) * kPageTokens * row_;
  }
  // The numbers of tokens [from, to) of a page of codes, to out[token * d].
  void decode(const uint8_t *codes, int64_t from, int64_t to, float *out) const {
    for (int64_t t = from; t < to; t++) {
      const int8_t *row = reinterpret_cast<const int8_t *>(codes) + t * s_.d;
      float scale;
      memcpy(&scale, codes + kPageTokens * s_.d + t * 4, 4);
      for (int64_t i = 0; i < s_.d; i++) out[t * s_.d + i] = static_cast<float>(row[i]) * scale;
    }
  }
  uint32_t page(int64_t row, int64_t position) const {
    return c_.input->page(static_cast<uint32_t>(s_.group), c_.input->sequence[row], static_cast<uint32_t>(position));
  }
  void store(int64_t row, int64_t plane, int64_t kv_head, const float *x) const {
    const uint32_t position = c_.input->position[row];
    if (coded_) return encode(tokens(page(row, position), plane, kv_head), position % kPageTokens, x);
    uint8_t *slot = tokens(page(row, position), plane, kv_head) + (position % kPageTokens) * s_.d * element_;
    if (s_.kv->format == kF16) c_.kernels.to_f16(reinterpret_cast<uint16_t *>(slot), x, s_.d);
    else memcpy(slot, x, static_cast<size_t>(s_.d) * sizeof(float));
  }

 private:
  // Codes of x [d] as those of token t: x ~ scale * code with scale = largest / 127. NaN and Inf stay visible in the scale.
  void encode(uint8_t *codes, int64_t t, const float *x) const {
    float largest = 0, poison = 0;
    for (int64_t i = 0; i < s_.d; i++) {
      largest = std::max(largest, std::fabs(x[i]));
      poison += x[i] * 0.0f;
    }
    const float scale = largest / 127.0f + poison;
    const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
    int8_t *row = reinterpret_cast<int8_t *>(codes) + t * s_.d;
    for (int64_t i = 0; i < s_.d; i++) {
      const float code = std::nearbyint(x[i] * inverse);
      row[i] = code >= -127.0f && code <= 127.0f ? static_cast<int8_t>(code) : 0;
    }
    memcpy(codes + kPageTokens * s_.d + t * 4, &scale, 4);
  }

  const Context &c_;
  const Shape &s_;
  uint8_t *base_;
  const bool coded_;
  int64_t element_, row_, planes_;
};

// Query vectors that are computed together: heads [head, head + heads) of one KV head for rows [row, row + rows) of y, which
// follow each other in one sequence.
struct Unit {
  int64_t row, rows, head, heads;
  int64_t queries() const { return rows * heads; }
};

class Attention {
 public:
  // q: [rows, q_stride] with heads * d numbers a row that count.
  Attention(Context &c, const Shape &s, const float *q, int64_t q_stride, const Tensor *y)
      : c_(c), k_(c.kernels), s_(s), pages_(c, s), q_(q), q_stride_(q_stride), y_(y), rows_(c.rows(y)) {}

  void run() {
    // Too few rows for all threads: a row's blocks and heads run in parallel. Otherwise a unit walks its blocks itself.
    const int64_t parts = s_.kv_heads * ((s_.group_heads() + split_heads() - 1) / split_heads());
    if (c_.threads > 1 && rows_ * parts < 2 * c_.threads) {
      for (int64_t r = 0; r < rows_; r++) run_split(r);
    } else {
      run_whole();
    }
  }

  static void need(ScratchNeed &need, const Shape &s) {
    // Per thread: scores, the running and the block's values, their sums and key ranges.
    need.add_thread(static_cast<uint64_t>(tile_queries(s) * kBlockKeys) * 4);
    need.add_thread(static_cast<uint64_t>(tile_queries(s) * s.d) * 4);
    need.add_thread(static_cast<uint64_t>(tile_queries(s) * s.d) * 4);
    need.add_thread(static_cast<uint64_t>(tile_queries(s) * s.d) * 4);
    for (int i = 0; i < 2; i++) need.add_thread(static_cast<uint64_t>(tile_queries(s)) * sizeof(Partial));
    for (int i = 0; i < 4; i++) need.add_thread(static_cast<uint64_t>(tile_queries(s)) * sizeof(int32_t));
    if (s.kv->format == kI8) need.add_thread(static_cast<uint64_t>(kPageTokens * s.d) * 4);  // a page's numbers
    // The partials of a row whose blocks run in parallel, and what they were joined to.
    need.add_shared(static_cast<uint64_t>((kWaveBlocks + 1) * s.heads * s.d) * 4);
    need.add_shared(static_cast<uint64_t>((kWaveBlocks + 1) * s.heads) * sizeof(Partial));
  }

 private:
  Format number_format() const { return pages_.coded() ? kF32 : s_.kv->format; }
  static int64_t tile_queries(const Shape &s) { return std::max(kTileQueries, s.group_heads()); }
  int64_t split_heads() const { return std::min<int64_t>(4, s_.group_heads()); }

  int64_t position(int64_t r) const { return c_.input->position[c_.input_row(y_, r)]; }
  // The keys of a row: [first_key, last_key]. They follow each other with a block too, since it holds the row itself.
  int64_t first_key(int64_t r) const {
    const int64_t first = s_.window ? std::max<int64_t>(0, position(r) - s_.window + 1) : 0;
    if (!c_.input->block_first || s_.block != kBlockWhole) return first;
    return std::min<int64_t>(first, c_.input->block_first[c_.input_row(y_, r)]);
  }
  int64_t last_key(int64_t r) const {
    return c_.input->block_last && s_.block ? c_.input->block_last[c_.input_row(y_, r)] : position(r);
  }

  struct Buffers {
    float *queries, *scores, *values, *block_values;
    Partial *partials, *block_partials;
    int32_t *first, *last, *page_first, *page_last;
    float *numbers;  // [32, d] of a page of codes
  };
  Buffers buffers(int thread) const {
    Scratch scratch = c_.thread_scratch[static_cast<size_t>(thread)];
    const uint64_t n = static_cast<uint64_t>(tile_queries(s_)), d = static_cast<uint64_t>(s_.d);
    Buffers b;
    b.scores = scratch.take<float>(n * kBlockKeys);
    b.queries = scratch.take<float>(n * d);
    b.values = scratch.take<float>(n * d);
    b.block_values = scratch.take<float>(n * d);
    b.partials = scratch.take<Partial>(n);
    b.block_partials = scratch.take<Partial>(n);
    b.first = scratch.take<int32_t>(n);
    b.last = scratch.take<int32_t>(n);
    b.page_first = scratch.take<int32_t>(n);
    b.page_last = scratch.take<int32_t>(n);
    b.numbers = pages_.coded() ? scratch.take<float>(kPageTokens * d) : nullptr;
    return b;
  }

  // The unit's queries one after another: [rows, heads, d].
  void load_queries(const Unit &u, float *out) const {
    for (int64_t r = 0; r < u.rows; r++) {
      memcpy(out + r * u.heads * s_.d, q_ + (u.row + r) * q_stride_ + u.head * s_.d,
             static_cast<size_t>(u.heads * s_.d) * sizeof(float));
    }
  }

  // One block of keys for a unit: partials and values [queries, d]; a query without keys in the block gets the sum 0.
  void run_block(const Unit &u, int64_t block, const Buffers &b, Partial *partials, float *values) const {
    const int64_t n = u.queries(), start = block * kBlockKeys;
    const int64_t kv_head = u.head / s_.group_heads();
    const int64_t input_row = c_.input_row(y_, u.row);
    int64_t lowest = kBlockKeys, highest = 0;
    for (int64_t i = 0; i < n; i++) {
      const int64_t r = u.row + i / u.heads;
      b.first[i] = static_cast<int32_t>(std::clamp<int64_t>(first_key(r) - start, 0, kBlockKeys));
      b.last[i] = static_cast<int32_t>(std::clamp<int64_t>(last_key(r) + 1 - start, 0, kBlockKeys));
      if (b.first[i] >= b.last[i]) {
        b.first[i] = b.last[i] = 0;
        continue;
      }
      lowest = std::min<int64_t>(lowest, b.first[i]);
      highest = std::max<int64_t>(highest, b.last[i]);
    }
    memset(values, 0, static_cast<size_t>(n * s_.d) * sizeof(float));
    for (int64_t i = 0; i < n; i++) partials[i] = {0.0f, 0.0f};
    if (lowest >= highest) return;
    const int64_t first_page = lowest / kPageTokens, last_page = (highest - 1) / kPageTokens;
    for (int64_t p = first_page; p <= last_page; p++) {
      const int64_t from = std::max(lowest, p * kPageTokens) - p * kPageTokens;
      const int64_t to = std::min<int64_t>(highest, (p + 1) * kPageTokens) - p * kPageTokens;
      const uint8_t *keys = pages_.tokens(pages_.page(input_row, start + p * kPageTokens + from), 0, kv_head);
      const void *numbers = keys + from * s_.d * bytes_of_format(s_.kv->format);
      if (pages_.coded()) {
        pages_.decode(keys, from, to, b.numbers);
        numbers = b.numbers + from * s_.d;
      }
      k_.matmul(b.queries, s_.d, n, numbers, number_format(), s_.d, to - from, s_.d, b.scores + p * kPageTokens + from,
                kBlockKeys);
    }
    for (int64_t i = 0; i < n; i++) {
      if (b.first[i] == b.last[i]) continue;
      partials[i].sum = k_.softmax_block(b.scores + i * kBlockKeys + b.first[i], s_.score_scale, b.last[i] - b.first[i],
                                         &partials[i].largest);
    }
    for (int64_t p = first_page; p <= last_page; p++) {
      const int64_t page_start = p * kPageTokens;
      for (int64_t i = 0; i < n; i++) {
        b.page_first[i] = static_cast<int32_t>(std::clamp<int64_t>(b.first[i] - page_start, 0, kPageTokens));
        b.page_last[i] = static_cast<int32_t>(std::clamp<int64_t>(b.last[i] - page_start, 0, kPageTokens));
      }
      const int64_t any = std::max(lowest, page_start);
      const uint8_t *page = pages_.tokens(pages_.page(input_row, start + any), 1, kv_head);
      if (pages_.coded()) {
        pages_.decode(page, any - page_start, std::min<int64_t>(highest - page_start, kPageTokens), b.numbers);
        page = reinterpret_cast<const uint8_t *>(b.numbers);
      }
      k_.weighted_sum(b.scores + page_start, kBlockKeys, n, b.page_first, b.page_last, page, number_format(), s_.d, values,
                      s_.d);
    }
  }

  // Joins the partial of a later block to what is there.
  void join(Partial &a, float *a_values, const Partial &b, const float *b_values) const {
    if (b.sum == 0.0f) return;
    if (a.sum == 0.0f) {
      a = b;
      memcpy(a_values, b_values, static_cast<size_t>(s_.d) * sizeof(float));
      return;
    }
    const float largest = std::max(a.largest, b.largest);
    const float keep = softmax_weight(a.largest - largest), take = softmax_weight(b.largest - largest);
    k_.blend(a_values, keep, b_values, take, s_.d);
    a.sum = a.sum * keep + b.sum * take;
    a.largest = largest;
  }

  void finish(int64_t row, int64_t head, const Partial &partial, const float *values) const {
    float *out = c_.f32(y_) + (row * s_.heads + head) * s_.d;
    k_.scale_row(out, values, 1.0f / partial.sum, nullptr, s_.d);
  }

  void run_whole() {
    const std::vector<Unit> units = whole_units();
    c_.parallel(static_cast<int64_t>(units.size()), [&](int64_t chunk, int thread) {
      // The last units see the most keys: taken first, they do not end up waited for.
      const Unit &u = units[units.size() - 1 - static_cast<size_t>(chunk)];
      const Buffers b = buffers(thread);
      load_queries(u, b.queries);
      const int64_t n = u.queries();
      for (int64_t i = 0; i < n; i++) b.partials[i] = {0.0f, 0.0f};
      int64_t first = first_key(u.row), last = last_key(u.row);
      for (int64_t r = u.row + 1; r < u.row + u.rows; r++) {
        first = std::min(first, first_key(r));
        last = std::max(last, last_key(r));
      }
      for (int64_t block = first / kBlockKeys; block <= last / kBlockKeys; block++) {
        run_block(u, block, b, b.block_partials, b.block_values);
        for (int64_t i = 0; i < n; i++) {
          join(b.partials[i], b.values + i * s_.d, b.block_partials[i], b.block_values + i * s_.d);
        }
      }
      for (int64_t i = 0; i < n; i++) finish(u.row + i / u.heads, u.head + i % u.heads, b.partials[i], b.values + i * s_.d);
    });
  }

  // Rows are taken together where they follow each other in a sequence.
  std::vector<Unit> whole_units() const {
    std::vector<Unit> units;
    const int64_t most = std::max<int64_t>(1, kTileQueries / s_.group_heads());
    for (int64_t r = 0; r < rows_;) {
      const uint32_t first = c_.input_row(y_, r);
      int64_t n = 1;
      while (n < most && r + n < rows_ && c_.input->sequence[c_.input_row(y_, r + n)] == c_.input->sequence[first] &&
             position(r + n) == position(r) + n) {
        n++;
      }
      for (int64_t h = 0; h < s_.kv_heads; h++) units.push_back({r, n, h * s_.group_heads(), s_.group_heads()});
      r += n;
    }
    return units;
  }

  // One row, its blocks in parallel, waves of kWaveBlocks at a time.
  void run_split(int64_t row) {
    Scratch shared = c_.shared;
    const int64_t d = s_.d, heads = s_.heads;
    float *values = shared.take<float>(static_cast<uint64_t>((kWaveBlocks + 1) * heads * d));
    Partial *partials = shared.take<Partial>(static_cast<uint64_t>((kWaveBlocks + 1) * heads));
    float *joined_values = values + kWaveBlocks * heads * d;
    Partial *joined = partials + kWaveBlocks * heads;
    for (int64_t h = 0; h < heads; h++) joined[h] = {0.0f, 0.0f};
    const int64_t parts_each = (s_.group_heads() + split_heads() - 1) / split_heads();
    const int64_t parts = s_.kv_heads * parts_each;
    const int64_t first = first_key(row) / kBlockKeys, last = last_key(row) / kBlockKeys;
    for (int64_t wave = first; wave <= last; wave += kWaveBlocks) {
      const int64_t count = std::min(kWaveBlocks, last + 1 - wave);
      c_.parallel(count * parts, [&](int64_t chunk, int thread) {
        const int64_t block = chunk / parts, part = chunk % parts;
        const int64_t in_group = part % parts_each * split_heads();
        const int64_t head = part / parts_each * s_.group_heads() + in_group;
        const Unit u{row, 1, head, std::min(split_heads(), s_.group_heads() - in_group)};
        const Buffers b = buffers(thread);
        load_queries(u, b.queries);
        run_block(u, wave + block, b, partials + block * heads + head, values + (block * heads + head) * d);
      });
      for (int64_t block = 0; block < count; block++) {
        for (int64_t h = 0; h < heads; h++) {
          join(joined[h], joined_values + h * d, partials[block * heads + h], values + (block * heads + h) * d);
        }
      }
    }
    for (int64_t h = 0; h < heads; h++) finish(row, h, joined[h], joined_values + h * d);
  }

  Context &c_;
  const Kernels &k_;
  const Shape &s_;
  const Pages pages_;
  const float *q_;
  const int64_t q_stride_;
  const Tensor *y_;
  const int64_t rows_;
};

uint32_t block_of(const Op &op) { return op.flags & (kBlockWindow | kBlockWhole); }
Shape attention_shape(const Op &op) {
  return {op.ints[0], op.ints[1], op.ints[2], op.ints[4], op.ints[5], op.ints[6], op.floats[2], op.operands[3], block_of(op)};
}
Shape attend_shape(const Op &op) {
  return {op.ints[0], op.ints[1], op.ints[2], op.ints[3], op.ints[4], op.ints[5], op.floats[0], op.operands[1], block_of(op)};
}

// y = rms_norm(x) * weight for one head; weight may be null.
void norm_head(const Kernels &k, float *y, const float *x, const float *weight, int64_t d, float eps) {
  k.scale_row(y, x, 1.0f / std::sqrt(k.sum_of_squares(x, d) / static_cast<float>(d) + eps), weight, d);
}

}  // namespace

ScratchNeed need_attention(const Plan &plan, const Op &op) {
  ScratchNeed need;
  const Shape s = op.kind == kAttention ? attention_shape(op) : attend_shape(op);
  if (op.kind == kAttention) {
    need_vector(need, op.operands[1]);
    need_vector(need, op.operands[2]);
    need.add_shared(static_cast<uint64_t>(max_rows(plan, op.operands[4]) * s.heads * s.d) * 4);  // ready queries
  }
  Attention::need(need, s);
  // The preparation of a row needs one head per thread, which the attention's own part exceeds.
  return need;
}

void run_attention(Context &c, const Op &op) {
  const Tensor *qkv = op.operands[0], *y = op.operands[4];
  const Shape s = attention_shape(op);
  const Kernels &k = c.kernels;
  const float *q_norm = c.vector(op.operands[1]), *k_norm = c.vector(op.operands[2]);
  const float eps = op.floats[1];
  const int64_t rows = c.rows(y), width = columns_of(qkv), q_width = s.heads * s.d, pairs = op.ints[3];
  const bool owns = op.flags & kOwnsKv, keys_are_values = op.flags & kKeysAreValues, norm_values = op.flags & kNormValues;
  const RopeTable &rope = c.rope_table(op.floats[0], op.floats[3], op.floats[4], op.ints[2], op.ints[3]);
  float *queries = c.shared.take<float>(static_cast<uint64_t>(rows * q_width));
  const Pages pages(c, s);
  c.parallel_ranges(rows, 4, [&](int64_t first, int64_t last, int thread) {
    Scratch scratch = c.thread_scratch[static_cast<size_t>(thread)];
    float *head = scratch.take<float>(static_cast<uint64_t>(s.d));
    for (int64_t r = first; r < last; r++) {
      const float *x = c.f32(qkv) + r * width;
      const int64_t row = c.input_row(y, r);
      const float *cosines = rope.cosines.data() + row * pairs, *sines = rope.sines.data() + row * pairs;
      // Rotates a head that is in `to` already; without a norm it is copied first.
      const auto ready = [&](float *to, const float *from, const float *weight) {
        if (weight) norm_head(k, to, from, weight, s.d, eps);
        else memcpy(to, from, static_cast<size_t>(s.d) * sizeof(float));
        k.rotate(to, to, cosines, sines, s.d, pairs);
      };
      for (int64_t h = 0; h < s.heads; h++) ready(queries + r * q_width + h * s.d, x + h * s.d, q_norm);
      if (!owns) continue;
      for (int64_t h = 0; h < s.kv_heads; h++) {
        const float *key = x + q_width + h * s.d;
        const float *value = keys_are_values ? key : key + s.kv_heads * s.d;
        ready(head, key, k_norm);
        pages.store(row, 0, h, head);
        if (norm_values) norm_head(k, head, value, nullptr, s.d, eps);
        pages.store(row, 1, h, norm_values ? head : value);
      }
    }
  });
  Attention(c, s, queries, q_width, y).run();
}

void run_attend(Context &c, const Op &op) {
  const Tensor *q = op.operands[0], *y = op.operands[2];
  const Shape s = attend_shape(op);
  Attention(c, s, c.f32(q), columns_of(q), y).run();
}

void run_kv_write(Context &c, const Op &op) {
  const Tensor *k = op.operands[0], *v = op.operands[1];
  const Shape s{0, op.ints[0], op.ints[1], op.ints[2], op.ints[3], 0, 0, op.operands[2]};
  const Pages pages(c, s);
  const int64_t width = s.kv_heads * s.d;
  c.parallel_ranges(c.rows(k), 8, [&](int64_t first, int64_t last, int) {
    for (int64_t r = first; r < last; r++) {
      for (int64_t h = 0; h < s.kv_heads; h++) {
        pages.store(c.input_row(k, r), 0, h, c.f32(k) + r * width + h * s.d);
        pages.store(c.input_row(k, r), 1, h, c.f32(v) + r * width + h * s.d);
      }
    }
  });
}

}  // namespace mb
