// Products of quantised weights with int8 activations: integer sums within a group, f32 sums over groups.
// isa: scalar avx2 avx512 neon neon_dotprod
#include "functions.h"

namespace mb {
namespace MB_ISA {

namespace {

constexpr int kBytes = 4 * kLanes;  // of a vector

inline int64_t rounded(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

// ---- activations ----

void quantize(const float *x, int64_t k, int64_t group, CodeOrder order, int8_t *codes, float *scales, float *sums,
              float *code_sums) {
  for (int64_t g = 0; g < k / group; g++) {
    const float *from = x + g * group;
    int8_t *to = codes + g * group;
    vf most = zero(), sum = zero();
    for (int64_t i = 0; i < group; i += kLanes) {
      const vf v = load(from + i);
      most = max(absolute(v), most);
      sum = add(sum, v);
    }
    const float largest = reduce_max(most);
    sums[g] = reduce_add(sum);
    if (!(largest > 1e-30f)) {  // so small that its inverse is not finite
      scales[g] = code_sums[g] = 0.0f;
      memset(to, 0, static_cast<size_t>(group));
      continue;
    }
    const vf inverse = set1(127.0f / largest), limit = set1(127.0f), lowest = set1(-127.0f);
    vf code_sum = zero();  // whole numbers below 2^24: exact
    for (int64_t i = 0; i < group; i += kLanes) {
      const vf q = max(lowest, min(limit, round(mul(load(from + i), inverse))));
      store_codes(to + i, q);
      code_sum = add(code_sum, q);
    }
    scales[g] = largest / 127.0f;
    code_sums[g] = reduce_add(code_sum);
  }
  const int64_t padded = rounded(k, code_padding);
  memset(codes + k, 0, static_cast<size_t>(padded - k));
  if (order == CodeOrder::kNatural) return;
  const int64_t half = order == CodeOrder::kByVector ? kBytes : 4;
  for (int64_t first = 0; first < padded; first += 2 * half) {
    int8_t odd[kBytes];
    for (int64_t i = 0; i < half; i++) odd[i] = codes[first + 2 * i + 1];
    for (int64_t i = 0; i < half; i++) codes[first + i] = codes[first + 2 * i];
    memcpy(codes + first + half, odd, static_cast<size_t>(half));
  }
}

// ---- decode: a weight row at a time ----

namespace {

// How codes are read and dotted. `whole`: vectors that load() may take, of a row with that many columns.

// 4-bit codes as they are stored.
struct Nibbles {
  static constexpr int kBits = 4, kColumns = 2 * kBytes, kLaneColumns = 8;
  static inline int64_t whole(int64_t columns) { return columns / kColumns; }
  static inline vb load(const uint8_t *codes, int64_t v) { return load_bytes(codes + v * kBytes); }
  static inline vb load_n(const uint8_t *codes, int64_t v, int64_t columns) {
    return load_bytes_n(codes + v * kBytes, columns / 2);
  }
  static inline vi dot(vb c, const int8_t *x) {
    return MB_ISA::dot(MB_ISA::dot(zero_int(), low_nibbles(c), load_bytes(x)), high_nibbles(c), load_bytes(x + kBytes));
  }
};

struct Bytes {
  static constexpr int kBits = 8, kColumns = kBytes, kLaneColumns = 4;
  static inline int64_t whole(int64_t columns) { return columns / kColumns; }
  static inline vb load(const uint8_t *codes, int64_t v) { return offset_wide(load_bytes(codes + v * kBytes)); }
  static inline vb load_n(const uint8_t *codes, int64_t v, int64_t columns) {
    return offset_wide(load_bytes_n(codes + v * kBytes, columns));  // what lies beyond meets activations of zero
  }
  static inline vi dot(vb c, const int8_t *x) { return dot_wide(zero_int(), c, load_bytes(x)); }
};

template <int B>
struct Packed {
  static constexpr int kBits = B, kColumns = kBytes, kLaneColumns = 4;
  static constexpr int kVectorBytes = kBytes / 8 * B;
  static inline int64_t whole(int64_t columns) {
    const int64_t bytes = columns / 8 * B - kLoadSlack;
    return bytes > 0 ? bytes / kVectorBytes : 0;
  }
  static inline vb load(const uint8_t *codes, int64_t v) { return spread_codes<B>(codes + v * kVectorBytes); }
  static inline vb load_n(const uint8_t *codes, int64_t v, int64_t columns) {
    uint8_t rest[kVectorBytes + kLoadSlack] = {};
    memcpy(rest, codes + v * kVectorBytes, static_cast<size_t>(columns / 8 * B));
    return spread_codes<B>(rest);
  }
  static inline vi dot(vb c, const int8_t *x) { return MB_ISA::dot(zero_int(), c, load_bytes(x)); }
};

// Scale of each lane of vector v, where L lanes share a group.
template <int L>
inline vf lane_scales(const float *scales, int64_t v) {
  if constexpr (L >= kLanes) return set1(scales[v / (L / kLanes)]);
  else return spread<L>(scales + v * (kLanes / L));
}

// R activation rows with one weight row. scales [R][stride]: products of weight and activation scales, zero-padded;
// sums [R]: what the biases contribute. Two sums a row, for even and odd vectors.
template <class Codes, int L, int R>
inline void dot_row(const uint8_t *codes, int64_t columns, const QuantizedRow *a, const float *scales, int64_t stride,
                    const vf *sums, float *out, int64_t out_stride) {
  vf sum[R][2];
  for (int r = 0; r < R; r++) {
    sum[r][0] = sums[r];
    sum[r][1] = zero();
  }
  const int64_t whole = Codes::whole(columns);
  int64_t v = 0;
  for (; v + 2 <= whole; v += 2) {
    for (int half = 0; half < 2; half++) {
      const vb c = Codes::load(codes, v + half);
      for (int r = 0; r < R; r++) {
        const vf d = to_float(Codes::dot(c, a[r].codes + (v + half) * Codes::kColumns));
        sum[r][half] = fma(d, lane_scales<L>(scales + r * stride, v + half), sum[r][half]);
      }
    }
  }
  for (int half = 0; v * Codes::kColumns < columns; v++, half ^= 1) {
    const int64_t rest = columns - v * Codes::kColumns;
    const vb c = v < whole ? Codes::load(codes, v) : Codes::load_n(codes, v, rest < Codes::kColumns ? rest : Codes::kColumns);
    for (int r = 0; r < R; r++) {
      const vf d = to_float(Codes::dot(c, a[r].codes + v * Codes::kColumns));
      sum[r][half] = fma(d, lane_scales<L>(scales + r * stride, v), sum[r][half]);
    }
  }
  for (int r = 0; r < R; r++) out[r * out_stride] = reduce_add(add(sum[r][0], sum[r][1]));
}

constexpr int kDecodeRows = 4;  // activation rows that share an unpacked vector

// What is taken from the codes of a weight before they are dotted: the middle of their range, but for what is left of it
// where the instruction set has taken kWideOffset already.
inline float middle_of(uint32_t bits) { return static_cast<float>(1 << (bits - 1)); }
inline float code_offset(uint32_t bits) { return bits == 8 ? middle_of(8) - kWideOffset : middle_of(bits); }

// Row n of w with R activation rows. products [R][stride] is scratch.
template <class Codes, class S, int L, int R>
inline void row_with_rows(const Weight &w, int64_t n, const QuantizedRow *a, float *products, int64_t stride, float *out,
                          int64_t out_stride) {
  const int64_t groups = w.groups();
  const S *scales = reinterpret_cast<const S *>(w.scale_row(n)), *biases = reinterpret_cast<const S *>(w.bias_row(n));
  const vf middle = set1(middle_of(Codes::kBits)), offset = set1(-code_offset(Codes::kBits));
  vf sums[R];
  for (int r = 0; r < R; r++) sums[r] = zero();
  const auto some = [&](int64_t g, auto at) {
    const vf scale = at(scales), bias = fma(scale, middle, at(biases));
    for (int r = 0; r < R; r++) {
      const vf product = mul(scale, at(a[r].scales));
      store(products + r * stride + g, product);
      sums[r] = fma(bias, at(a[r].sums), sums[r]);
      sums[r] = fma(mul(product, offset), at(a[r].code_sums), sums[r]);
    }
  };
  int64_t g = 0;
  for (; g + kLanes <= groups; g += kLanes) some(g, [g](const auto *p) { return load(p + g); });
  if (g < groups) some(g, [g, groups](const auto *p) { return load_n(p + g, groups - g); });
  dot_row<Codes, L, R>(w.row(n), w.columns, a, products, stride, sums, out, out_stride);
}

// Products are padded by a vector of zeros: lane_scales reads a whole vector's.
inline int64_t product_stride(const Weight &w) { return rounded(w.groups() + kLanes, kLanes); }

template <class Codes, class S, int L>
void product(const Weight &w, int64_t first, int64_t last, const QuantizedRow *a, int64_t rows, float *out,
             int64_t out_stride, uint8_t *scratch) {
  float *products = reinterpret_cast<float *>(scratch);
  const int64_t stride = product_stride(w);
  for (int64_t i = 0; i < kDecodeRows * stride; i++) products[i] = 0.0f;
  for (int64_t n = first; n < last; n++) {
    int64_t r = 0;
    float *to = out + (n - first);
    for (; r + kDecodeRows <= rows; r += kDecodeRows) {
      row_with_rows<Codes, S, L, kDecodeRows>(w, n, a + r, products, stride, to + r * out_stride, out_stride);
    }
    for (; r < rows; r++) {
      row_with_rows<Codes, S, L, 1>(w, n, a + r, products, stride, to + r * out_stride, out_stride);
    }
  }
}

using Product = void (*)(const Weight &, int64_t, int64_t, const QuantizedRow *, int64_t, float *, int64_t, uint8_t *);

template <class Codes, class S>
Product product_of_group(uint32_t group) {
  constexpr int unit = Codes::kLaneColumns;
  return group == 32 ? product<Codes, S, 32 / unit> : group == 64 ? product<Codes, S, 64 / unit> : product<Codes, S, 128 / unit>;
}

template <class Codes>
Product product_of_scales(const Weight &w) {
  if (w.scale_format == kBF16) return product_of_group<Codes, BF16>(w.group);
  if (w.scale_format == kF16) return product_of_group<Codes, F16>(w.group);
  return product_of_group<Codes, float>(w.group);
}

Product product_of(const Weight &w) {
  switch (w.bits) {
    case 2: return product_of_scales<Packed<2>>(w);
    case 3: return product_of_scales<Packed<3>>(w);
    case 4: return product_of_scales<Nibbles>(w);
    case 5: return product_of_scales<Packed<5>>(w);
    case 6: return product_of_scales<Packed<6>>(w);
    default: return product_of_scales<Bytes>(w);
  }
}

}  // namespace

int64_t product_scratch(const Weight &w) { return kDecodeRows * product_stride(w) * 4; }

void product_rows(const Weight &w, int64_t first, int64_t last, const QuantizedRow *a, int64_t rows, float *out,
                  int64_t out_stride, uint8_t *scratch) {
  product_of(w)(w, first, last, a, rows, out, out_stride, scratch);
}

// ---- prefill: tiles of weight rows ----

namespace {

// A tile: scales and biases [groups][tile_columns], then 32-bit words of codes [words][tile_columns]. A word holds eight
// 4-bit codes of a column, or four codes of any other width as bytes.
struct TileView {
  float *scales, *biases;
  uint8_t *codes;
  TileView(const Weight &w, uint8_t *tile) {
    scales = reinterpret_cast<float *>(tile);
    biases = scales + w.groups() * tile_columns;
    codes = reinterpret_cast<uint8_t *>(biases + w.groups() * tile_columns);
  }
};

inline int64_t columns_of_word(uint32_t bits) { return bits == 4 ? 8 : 4; }

template <bool Nibble, bool Wide, int R>
inline void tile_rows(const Weight &w, const TileView &t, int64_t columns, const QuantizedRow *a, float *out,
                      int64_t out_stride) {
  constexpr int V = kInt8Vectors, step = Nibble ? 8 : 4;
  const float offset = code_offset(w.bits);
  float total[R][V * kLanes];
  for (int r = 0; r < R; r++) for (int v = 0; v < V; v++) store(total[r] + v * kLanes, zero());
  const uint8_t *codes = t.codes;
  for (int64_t g = 0; g < w.groups(); g++) {
    vi sum[R][V];
    for (int r = 0; r < R; r++) {
      const vi start = set1_int(static_cast<int32_t>(-offset * a[r].code_sums[g]));
      for (int v = 0; v < V; v++) sum[r][v] = start;
    }
    for (int64_t k = g * w.group; k < (g + 1) * w.group; k += step, codes += 4 * tile_columns) {
      vb c[V], odd[V];
      for (int v = 0; v < V; v++) {
        c[v] = load_bytes(codes + v * kBytes);
        if (!Nibble) continue;
        odd[v] = high_nibbles(c[v]);
        c[v] = low_nibbles(c[v]);
      }
      for (int r = 0; r < R; r++) {
        const vb x = broadcast4(a[r].codes + k);
        for (int v = 0; v < V; v++) sum[r][v] = Wide ? dot_wide(sum[r][v], c[v], x) : dot(sum[r][v], c[v], x);
        if (!Nibble) continue;
        const vb y = broadcast4(a[r].codes + k + 4);
        for (int v = 0; v < V; v++) sum[r][v] = dot(sum[r][v], odd[v], y);
      }
    }
    for (int v = 0; v < V; v++) {
      const vf scale = load(t.scales + g * tile_columns + v * kLanes);
      const vf bias = load(t.biases + g * tile_columns + v * kLanes);
      for (int r = 0; r < R; r++) {
        float *to = total[r] + v * kLanes;
        const vf y = fma(to_float(sum[r][v]), mul(scale, set1(a[r].scales[g])), load(to));
        store(to, fma(bias, set1(a[r].sums[g]), y));
      }
    }
  }
  for (int r = 0; r < R; r++) memcpy(out + r * out_stride, total[r], static_cast<size_t>(columns) * sizeof(float));
}

template <bool Nibble, bool Wide>
void tile_product(const Weight &w, const TileView &t, int64_t columns, const QuantizedRow *a, int64_t rows, float *out,
                  int64_t out_stride) {
  int64_t r = 0;
  for (; r + kInt8Rows <= rows; r += kInt8Rows) {
    tile_rows<Nibble, Wide, kInt8Rows>(w, t, columns, a + r, out + r * out_stride, out_stride);
  }
  for (; r < rows; r++) tile_rows<Nibble, Wide, 1>(w, t, columns, a + r, out + r * out_stride, out_stride);
}

// kLanes weight rows' scales and biases, biases with the middle of the codes added, to column `column` of the tile.
template <class S>
void pack_scales(const Weight &w, const int64_t *rows, const TileView &t, int64_t column) {
  const vf middle = set1(middle_of(w.bits));
  const int64_t groups = w.groups();
  for (int64_t g = 0; g < groups; g += kLanes) {
    const int64_t n = groups - g < kLanes ? groups - g : kLanes;
    vb scales[kLanes], biases[kLanes];
    for (int j = 0; j < kLanes; j++) {
      const vf scale = load_n(reinterpret_cast<const S *>(w.scale_row(rows[j])) + g, n);
      scales[j] = as_bytes(scale);
      biases[j] = as_bytes(fma(scale, middle, load_n(reinterpret_cast<const S *>(w.bias_row(rows[j])) + g, n)));
    }
    transpose(scales);
    transpose(biases);
    for (int64_t i = 0; i < n; i++) {
      store_bytes(reinterpret_cast<uint8_t *>(t.scales + (g + i) * tile_columns + column), scales[i]);
      store_bytes(reinterpret_cast<uint8_t *>(t.biases + (g + i) * tile_columns + column), biases[i]);
    }
  }
}

// kLanes weight rows' codes to column `column` of the tile.
template <class Codes>
void pack_codes(const Weight &w, const int64_t *rows, const TileView &t, int64_t column) {
  const int64_t whole = Codes::whole(w.columns), words = w.columns / columns_of_word(w.bits);
  for (int64_t v = 0; v * Codes::kColumns < w.columns; v++) {
    const int64_t rest = w.columns - v * Codes::kColumns;
    vb codes[kLanes];
    for (int j = 0; j < kLanes; j++) {
      codes[j] = v < whole ? Codes::load(w.row(rows[j]), v)
                           : Codes::load_n(w.row(rows[j]), v, rest < Codes::kColumns ? rest : Codes::kColumns);
    }
    transpose(codes);
    const int64_t first = v * kLanes, n = words - first < kLanes ? words - first : kLanes;
    for (int64_t i = 0; i < n; i++) store_bytes(t.codes + ((first + i) * tile_columns + column) * 4, codes[i]);
  }
}

}  // namespace

int64_t tile_bytes(const Weight &w) {
  return w.groups() * tile_columns * 8 + w.columns / columns_of_word(w.bits) * tile_columns * 4;
}

void pack_tile(const Weight &w, int64_t first, int64_t last, uint8_t *tile) {
  const TileView t(w, tile);
  for (int64_t column = 0; column < tile_columns; column += kLanes) {
    int64_t rows[kLanes];  // columns beyond the last repeat it; nobody reads them
    for (int j = 0; j < kLanes; j++) rows[j] = first + column + j < last ? first + column + j : last - 1;
    if (w.scale_format == kBF16) pack_scales<BF16>(w, rows, t, column);
    else if (w.scale_format == kF16) pack_scales<F16>(w, rows, t, column);
    else pack_scales<float>(w, rows, t, column);
    switch (w.bits) {
      case 2: pack_codes<Packed<2>>(w, rows, t, column); break;
      case 3: pack_codes<Packed<3>>(w, rows, t, column); break;
      case 4: pack_codes<Nibbles>(w, rows, t, column); break;
      case 5: pack_codes<Packed<5>>(w, rows, t, column); break;
      case 6: pack_codes<Packed<6>>(w, rows, t, column); break;
      default: pack_codes<Bytes>(w, rows, t, column);
    }
  }
}

void product_tile(const Weight &w, const uint8_t *tile, int64_t columns, const QuantizedRow *a, int64_t rows, float *out,
                  int64_t out_stride) {
  const TileView t(w, const_cast<uint8_t *>(tile));
  if (w.bits == 4) return tile_product<true, false>(w, t, columns, a, rows, out, out_stride);
  if (w.bits == 8) return tile_product<false, true>(w, t, columns, a, rows, out, out_stride);
  tile_product<false, false>(w, t, columns, a, rows, out, out_stride);
}

}  // namespace MB_ISA
}  // namespace mb
