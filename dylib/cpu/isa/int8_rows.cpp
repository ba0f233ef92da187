// Decode: products of weight rows, streamed once from where they lie, with a few rows of sixteen-bit activations.
// isa: scalar avx2 avx512 neon neon_dotprod
#include "affine.h"
#include "blocks.h"

namespace mb {
namespace MB_ISA {

namespace {

constexpr int kAhead = 12 << 10;  // bytes between what is read and what is prefetched
constexpr int kSpan = 4096;   // columns whose scales are read before their codes
// Weight rows, or activation rows, that are taken together; without vectors that is nothing but more code.
constexpr int kTogether = MB_ISA_NUMBER == 0 ? 1 : 4;

// One weight row in either kind of format: scales(k, n, …) reads n groups' scales from column k on, run(k) finds a run, load(run, v) the
// codes of its vector v. A code stands for scale * (code - kMiddle), or for scale * code + bias where kMinimums.

template <class Codes, int G>
struct AffineRow {
  static constexpr int kGroup = G, kColumns = Codes::kColumns, kMiddle = 0;
  static constexpr int kLanesOfGroup = G / Codes::kLaneColumns, kRunBytes = kRun / 8 * Codes::kBits;
  static constexpr bool kMinimums = true;
  const uint8_t *codes, *scale, *bias;
  Format format;  // of the scales

  AffineRow() = default;
  AffineRow(const Weight &w, int64_t n)
      : codes(w.row(n)), scale(w.scale_row(n)), bias(w.bias_row(n)), format(w.scale_format) {}
  static inline int64_t whole(int64_t columns) { return Codes::whole(columns) * kColumns; }
  inline void scales(int64_t k, int64_t groups, float *s, float *b) const {
    if (format == kBF16) scales_in<BF16>(k / G, groups, s, b);
    else if (format == kF16) scales_in<F16>(k / G, groups, s, b);
    else scales_in<float>(k / G, groups, s, b);
  }
  template <class S>
  inline void scales_in(int64_t first, int64_t groups, float *s, float *b) const {
    const S *from = reinterpret_cast<const S *>(scale) + first, *biases = reinterpret_cast<const S *>(bias) + first;
    const auto some = [&](int64_t g, auto at) {
      const vf x = at(from + g);
      store(s + g, x);
      store(b + g, fma(x, set1(Codes::kTaken), at(biases + g)));
    };
    int64_t g = 0;
    for (; g + kLanes <= groups; g += kLanes) some(g, [](const S *p) { return MB_ISA::load(p); });
    if (g < groups) some(g, [n = groups - g](const S *p) { return MB_ISA::load_n(p, n); });
  }
  MB_INLINE const uint8_t *run(int64_t k) const { return codes + k / 8 * Codes::kBits; }
  static MB_INLINE vb load(const uint8_t *run, int v) { return Codes::load(run, v); }
  static MB_INLINE vb load_n(const uint8_t *run, int v, int columns) { return Codes::load_n(run, v, columns); }
  static MB_INLINE vi dot(vb c, const int8_t *high, const int8_t *low) { return Codes::dot(c, high, low); }
};

template <class B>
struct BlockRow {
  static constexpr bool kWide = B::kBits == 8, kMinimums = B::kMinimums;
  static constexpr int kGroup = B::kGroup, kColumns = kCodeBytes;
  static constexpr int kMiddle = B::kMiddle - (kWide ? kWideOffset : 0);
  static constexpr int kLanesOfGroup = kGroup / 4, kRunBytes = kRun / B::kColumns * B::kBlockBytes;
  static_assert(!(kWide && kMinimums), "what was taken from a code is made up for by the middle alone");
  const uint8_t *blocks, *extra;

  BlockRow() = default;
  BlockRow(const Weight &w, int64_t n) : blocks(w.row(n)), extra(w.scales ? w.scale_row(n) : nullptr) {}
  static inline int64_t whole(int64_t columns) { return B::whole(columns) / kColumns * kColumns; }
  inline void scales(int64_t k, int64_t groups, float *s, float *b) const {
    constexpr int each = kRun / kGroup;
    const uint8_t *p = run(k), *bytes = extra ? extra + k / kGroup : nullptr;
    const auto some = [&](int n) MB_ALWAYS_INLINE {
      B::scales(p, bytes, n, s, b);
      p += kRunBytes;
      bytes += bytes ? each : 0;
      s += each;
      b += each;
    };
    for (; groups >= each; groups -= each) some(each);
    if (groups > 0) some(static_cast<int>(groups));
  }
  MB_INLINE const uint8_t *run(int64_t k) const { return blocks + k / B::kColumns * B::kBlockBytes; }
  static MB_INLINE vb taken(vb c) { return kWide ? offset_wide(c) : c; }
  static MB_INLINE vb load(const uint8_t *run, int v) { return taken(B::codes(run, v * kColumns)); }
  static inline vb load_n(const uint8_t *run, int v, int columns) {
    uint8_t rest[kRunBytes + 64] = {};  // 64: a vector may reach beyond
    memcpy(rest, run + v * kColumns / B::kColumns * B::kBlockBytes, static_cast<size_t>(columns / B::kColumns * B::kBlockBytes));
    return taken(B::codes(rest, 0));
  }
  static MB_INLINE vi dot(vb c, const int8_t *high, const int8_t *low) {
    return kWide ? dot_sixteen_wide(c, load_bytes(high), load_bytes(low)) : dot_sixteen(c, load_bytes(high), load_bytes(low));
  }
};

// Blocks of 32 whose codes meet activations in the order kHalves: twice the columns of a vector, for little more work.
template <class B>
struct HalvesRow : BlockRow<B> {
  static constexpr int kColumns = 2 * kCodeBytes, kLanesOfGroup = 4;

  HalvesRow() = default;
  HalvesRow(const Weight &w, int64_t n) : BlockRow<B>(w, n) {}
  static inline int64_t whole(int64_t columns) { return columns / kColumns * kColumns; }
  static MB_INLINE Halves load(const uint8_t *run, int v) { return B::halves(run, v * kColumns); }
  static inline Halves load_n(const uint8_t *run, int v, int columns) {
    uint8_t rest[kColumns / 32 * B::kBlockBytes] = {};
    memcpy(rest, run + v * kColumns / 32 * B::kBlockBytes, static_cast<size_t>(columns / 32 * B::kBlockBytes));
    return B::halves(rest, 0);
  }
  static MB_INLINE vi dot(const Halves &c, const int8_t *high, const int8_t *low) {
    return dot_sixteen(c.first, load_bytes(high), load_bytes(low), c.second, load_bytes(high + kCodeBytes),
                       load_bytes(low + kCodeBytes));
  }
};

// ---- products ----

inline int64_t rounded_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// Scale of each lane of vector v, where L lanes share a group.
template <int L>
inline vf lane_scales(const float *scales, int64_t v) {
  if constexpr (L >= kLanes) return set1(scales[v / (L / kLanes)]);
  else return spread<L>(scales + v * (kLanes / L));
}

// body(0), body(1), … of a loop that is unrolled for certain where that pays.
template <int Count, int I = 0, class Body>
MB_INLINE void unrolled(const Body &body) {
  if constexpr (kTogether == 1) {
    for (int i = 0; i < Count; i++) body(i);
  } else if constexpr (I < Count) {
    body(I);
    unrolled<Count, I + 1>(body);
  }
}

// The span of columns [k, last) of P weight rows with R activation rows, added to their sums. As many bytes from `ahead` on are
// prefetched for each row.
template <class F, int P, int R>
inline void add_span(const F *row, const float *const *scales, int64_t k, int64_t last, int64_t whole, const QuantizedRow *a,
                     const uint8_t *const *ahead, vf (*sum)[R]) {
  const uint8_t *run[P], *next[P];
  const float *scale[P];
  for (int i = 0; i < P; i++) {
    run[i] = row[i].run(k);
    next[i] = ahead[i];
    scale[i] = scales[i];
  }
  for (; k < last; k += kRun) {
    for (int i = 0; i < P; i++) {
      for (int byte = 0; byte < F::kRunBytes; byte += 64) prefetch(next[i] + byte);
      next[i] += F::kRunBytes;
    }
    vf part[P][R];
    const auto add_vector = [&](int v, auto codes_of) MB_ALWAYS_INLINE {
      const int64_t column = k + v * F::kColumns;
      for (int i = 0; i < P; i++) {
        const auto codes = codes_of(run[i]);
        const vf scale_of_lane = lane_scales<F::kLanesOfGroup>(scale[i], v);
        for (int r = 0; r < R; r++) {
          const vf d = to_float(F::dot(codes, a[r].high + column, a[r].low + column));
          part[i][r] = v == 0 ? mul(d, scale_of_lane) : fma(d, scale_of_lane, part[i][r]);
        }
      }
    };
    if (k + kRun <= whole) {
      unrolled<kRun / F::kColumns>([&](int v) MB_ALWAYS_INLINE {
        add_vector(v, [v](const uint8_t *from) MB_ALWAYS_INLINE { return F::load(from, v); });
      });
    } else {
      const int left = static_cast<int>(last - k < kRun ? last - k : kRun);
      for (int v = 0; v * F::kColumns < left; v++) {
        const int rest = left - v * F::kColumns < F::kColumns ? left - v * F::kColumns : F::kColumns;
        const bool can_load = k + (v + 1) * F::kColumns <= whole;
        add_vector(v, [=](const uint8_t *from) { return can_load ? F::load(from, v) : F::load_n(from, v, rest); });
      }
    }
    for (int i = 0; i < P; i++) {
      for (int r = 0; r < R; r++) sum[i][r] = fma(part[i][r], set1(a[r].scales[k / kRun]), sum[i][r]);
      run[i] += F::kRunBytes;
      scale[i] += kRun / F::kGroup;
    }
  }
}

// N rows of w, from row n on, with R activation rows. A product's bits depend on neither N nor R. Scales of all rows come first,
// as loads that are wider than the stores before them wait for those; then codes, a row of one activation row at a time, since
// a core foresees a single stream best, and two of several, which share the loads of activations.
template <class F, int N, int R>
inline void rows_with_rows(const Weight &w, int64_t n, const QuantizedRow *a, float *out, int64_t out_stride) {
  constexpr int kSpanGroups = kSpan / F::kGroup, P = R > 1 && N > 1 ? 2 : 1;
  alignas(64) float scales[N][kSpanGroups + kLanes], biases[N][F::kMinimums ? kSpanGroups + kLanes : 1];
  F row[N];
  vf sum[N][R];
  for (int i = 0; i < N; i++) {
    row[i] = F(w, n + i);
    for (int r = 0; r < R; r++) sum[i][r] = zero();
  }
  const int64_t whole = F::whole(w.columns);
  const int spans = static_cast<int>((w.columns + kSpan - 1) / kSpan), steps = N / P;
  // Short rows feel what a division takes, of 64 bits above all.
  const int64_t span = spans == 1 ? rounded_up(w.columns, kRun) : rounded_up(w.columns, spans * kRun) / spans;
  const uint32_t step_bytes = static_cast<uint32_t>(P * w.row_bytes) / static_cast<uint32_t>(spans) + 1;
  const int far = static_cast<int>(kAhead / step_bytes) + 1;  // steps between what is read and what is prefetched
  for (int s = 0; s < spans; s++) {
    const int64_t k = s * span, last = k + span < w.columns ? k + span : w.columns, groups = (last - k) / F::kGroup;
    for (int i = 0; i < N; i++) {
      if (groups % kLanes) {  // lanes that nothing is read to
        store(scales[i] + groups / kLanes * kLanes, zero());
        if (F::kMinimums) store(biases[i] + groups / kLanes * kLanes, zero());
      }
      row[i].scales(k, groups, scales[i], biases[i]);
    }
    for (int64_t g = 0; g < groups && (F::kMinimums || F::kMiddle != 0); g += kLanes) {
      for (int r = 0; r < R; r++) {
        vf sums = load(a[r].sums + k / F::kGroup + g);
        if (!F::kMinimums) sums = mul(sums, set1(-F::kMiddle));
        for (int i = 0; i < N; i++) sum[i][r] = fma(load((F::kMinimums ? biases[i] : scales[i]) + g), sums, sum[i][r]);
      }
    }
    for (int i = 0; i < N; i += P) {
      const float *const from[2] = {scales[i], scales[i + P - 1]};
      const int step = s * steps + i / P + far, block = step / (spans * steps), rest = step % (spans * steps);
      const uint8_t *ahead[2];
      for (int j = 0; j < P; j++) ahead[j] = F(w, n + block * N + rest % steps * P + j).run(rest / steps * span);
      add_span<F, P, R>(row + i, from, k, last, whole, a, ahead, sum + i);
    }
  }
  for (int i = 0; i < N; i++) for (int r = 0; r < R; r++) out[r * out_stride + i] = reduce_add(sum[i][r]);
}

template <class F>
void product(const Weight &w, int64_t first, int64_t last, const QuantizedRow *a, int64_t rows, float *out, int64_t out_stride) {
  int64_t n = first;
  if constexpr (kTogether == 4) {
    for (; n + 4 <= last; n += 4) {
      float *to = out + n - first;
      int64_t r = 0;
      for (; r + 4 <= rows; r += 4) rows_with_rows<F, 4, 4>(w, n, a + r, to + r * out_stride, out_stride);
      for (; r + 2 <= rows; r += 2) rows_with_rows<F, 4, 2>(w, n, a + r, to + r * out_stride, out_stride);
      if (r < rows) rows_with_rows<F, 4, 1>(w, n, a + r, to + r * out_stride, out_stride);
    }
  }
  for (; n < last; n++) {
    for (int64_t r = 0; r < rows; r++) rows_with_rows<F, 1, 1>(w, n, a + r, out + r * out_stride + n - first, out_stride);
  }
}

using Product = void (*)(const Weight &, int64_t, int64_t, const QuantizedRow *, int64_t, float *, int64_t);

template <class Codes>
Product product_of_group(const Weight &w) {
  if (w.group == 32) return product<AffineRow<Codes, 32>>;
  return w.group == 64 ? product<AffineRow<Codes, 64>> : product<AffineRow<Codes, 128>>;
}

Product product_of(const Weight &w) {
  if (w.format != kAffine) {
    switch (w.format) {
      case kQ4_0: return product<HalvesRow<Q4_0>>;
      case kQ4_1: return product<HalvesRow<Q4_1>>;
      case kQ5_0: return product<HalvesRow<Q5_0>>;
      case kQ5_1: return product<HalvesRow<Q5_1>>;
      default: break;
    }
    return with_blocks(w.format, [](auto blocks) -> Product { return product<BlockRow<decltype(blocks)>>; });
  }
  switch (w.bits) {
    case 2: return product_of_group<Packed<2>>(w);
    case 3: return product_of_group<Packed<3>>(w);
    case 4: return product_of_group<Nibbles>(w);
    case 5: return product_of_group<Packed<5>>(w);
    case 6: return product_of_group<Packed<6>>(w);
    default: return product_of_group<Bytes>(w);
  }
}

}  // namespace

void product_rows(const Weight &w, int64_t first, int64_t last, const QuantizedRow *a, int64_t rows, float *out,
                  int64_t out_stride) {
  if (w.interleaved) return product_bands(w, first, last, a, rows, out, out_stride);
  product_of(w)(w, first, last, a, rows, out, out_stride);
}

}  // namespace MB_ISA
}  // namespace mb
