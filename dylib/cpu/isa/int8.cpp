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

void quantize(const float *x, int64_t k, int64_t group, bool nibbles, int8_t *codes, float *scales, float *sums) {
  for (int64_t g = 0; g < k / group; g++) {
    const float *from = x + g * group;
    int8_t *to = codes + g * group;
    vf m = zero();
    for (int64_t i = 0; i < group; i += kLanes) m = max(absolute(load(from + i)), m);
    const float largest = reduce_max(m);
    if (!(largest > 1e-30f)) {  // so small that its inverse is not finite
      scales[g] = sums[g] = 0.0f;
      memset(to, 0, static_cast<size_t>(group));
      continue;
    }
    const vf inverse = set1(127.0f / largest), limit = set1(127.0f), lowest = set1(-127.0f);
    vf sum = zero();  // of whole numbers below 2^24: exact
    for (int64_t i = 0; i < group; i += kLanes) {
      const vf q = max(lowest, min(limit, round(mul(load(from + i), inverse))));
      store_codes(to + i, q);
      sum = add(sum, q);
    }
    scales[g] = largest / 127.0f;
    sums[g] = scales[g] * reduce_add(sum);
  }
  const int64_t padded = rounded(k, code_padding);
  memset(codes + k, 0, static_cast<size_t>(padded - k));
  if (!nibbles) return;
  // Byte i of a vector of 4-bit codes holds columns 2 i and 2 i + 1: even columns first, then odd ones.
  for (int64_t first = 0; first < padded; first += 2 * kBytes) {
    int8_t even[kBytes], odd[kBytes];
    for (int i = 0; i < kBytes; i++) {
      even[i] = codes[first + 2 * i];
      odd[i] = codes[first + 2 * i + 1];
    }
    memcpy(codes + first, even, kBytes);
    memcpy(codes + first + kBytes, odd, kBytes);
  }
}

// ---- decode: a weight row at a time ----

namespace {

// How a vector of codes is read and dotted: 4-bit codes as they are stored, others as bytes.
struct Nibbles {
  static constexpr int kColumns = 2 * kBytes;  // of a vector
  static constexpr int kLaneColumns = 8;
  static inline vb load(const uint8_t *codes, int64_t v) { return load_bytes(codes + v * kBytes); }
  static inline vb load_n(const uint8_t *codes, int64_t v, int64_t columns) {
    return load_bytes_n(codes + v * kBytes, columns / 2);
  }
  static inline vi dot(vb c, const int8_t *x) {
    return MB_ISA::dot(MB_ISA::dot(zero_int(), low_nibbles(c), load_bytes(x)), high_nibbles(c), load_bytes(x + kBytes));
  }
};
struct Bytes {
  static constexpr int kColumns = kBytes;
  static constexpr int kLaneColumns = 4;
  static inline vb load(const uint8_t *codes, int64_t v) { return load_bytes(codes + v * kBytes); }
  static inline vb load_n(const uint8_t *codes, int64_t v, int64_t columns) {
    return load_bytes_n(codes + v * kBytes, columns);
  }
  static inline vi dot(vb c, const int8_t *x) { return MB_ISA::dot(zero_int(), c, load_bytes(x)); }
};
struct WideBytes : Bytes {
  static inline vb load(const uint8_t *codes, int64_t v) { return offset_wide(Bytes::load(codes, v)); }
  static inline vb load_n(const uint8_t *codes, int64_t v, int64_t columns) {
    return offset_wide(Bytes::load_n(codes, v, columns));  // what lies beyond meets activations of zero
  }
  static inline vi dot(vb c, const int8_t *x) { return dot_wide(zero_int(), c, load_bytes(x)); }
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
  const int64_t whole = columns / Codes::kColumns;
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
  for (int half = 0; v * Codes::kColumns < columns; v++, half++) {
    const int64_t rest = columns - v * Codes::kColumns;
    const vb c = rest >= Codes::kColumns ? Codes::load(codes, v) : Codes::load_n(codes, v, rest);
    for (int r = 0; r < R; r++) {
      const vf d = to_float(Codes::dot(c, a[r].codes + v * Codes::kColumns));
      sum[r][half] = fma(d, lane_scales<L>(scales + r * stride, v), sum[r][half]);
    }
  }
  for (int r = 0; r < R; r++) out[r * out_stride] = reduce_add(add(sum[r][0], sum[r][1]));
}

constexpr int kDecodeRows = 4;  // activation rows that share an unpacked vector

// Scratch of product_rows: scales and biases of a weight row, their products with R rows' scales, unpacked codes.
struct RowScratch {
  int64_t stride;  // groups, padded so that lane_scales may read a whole vector's
  float *scales, *biases, *products;
  uint8_t *codes;
  static int64_t stride_of(const Weight &w) { return rounded(w.groups() + kLanes, kLanes); }
  RowScratch(const Weight &w, uint8_t *scratch) : stride(stride_of(w)) {
    scales = reinterpret_cast<float *>(scratch);
    biases = scales + stride;
    products = biases + stride;
    codes = reinterpret_cast<uint8_t *>(products + kDecodeRows * stride);
  }
};

template <class Codes, int L, int R>
inline void rows_of(const uint8_t *codes, const Weight &w, const RowScratch &s, const QuantizedRow *a, float *out,
                    int64_t out_stride) {
  const int64_t groups = w.groups();
  vf sums[R];
  for (int r = 0; r < R; r++) {
    float *product = s.products + r * s.stride;
    vf bias = zero();
    int64_t g = 0;
    for (; g + kLanes <= groups; g += kLanes) {
      store(product + g, mul(load(s.scales + g), load(a[r].scales + g)));
      bias = fma(load(s.biases + g), load(a[r].sums + g), bias);
    }
    if (g < groups) {
      store(product + g, mul(load(s.scales + g), load_n(a[r].scales + g, groups - g)));
      bias = fma(load(s.biases + g), load_n(a[r].sums + g, groups - g), bias);
      g += kLanes;
    }
    store(product + g, zero());
    sums[r] = bias;
  }
  dot_row<Codes, L, R>(codes, w.columns, a, s.products, s.stride, sums, out, out_stride);
}

template <class Codes, int L>
void product(const Weight &w, int64_t first, int64_t last, const QuantizedRow *a, int64_t rows, float *out,
             int64_t out_stride, uint8_t *scratch) {
  const RowScratch s(w, scratch);
  const int64_t groups = w.groups();
  for (int64_t n = first; n < last; n++) {
    read_scales(w.scale_row(n), w.scale_format, groups, s.scales);
    read_scales(w.bias_row(n), w.scale_format, groups, s.biases);
    for (int64_t g = groups; g < s.stride; g++) s.scales[g] = s.biases[g] = 0.0f;
    const uint8_t *codes = w.row(n);
    if (w.bits != 4 && w.bits != 8) {
      unpack_codes(codes, w.bits, w.columns, s.codes);
      codes = s.codes;
    }
    if (w.bits == 8 && kWideOffset) {
      for (int64_t g = 0; g < groups; g++) s.biases[g] += kWideOffset * s.scales[g];
    }
    int64_t r = 0;
    float *to = out + (n - first);
    for (; r + kDecodeRows <= rows; r += kDecodeRows) {
      rows_of<Codes, L, kDecodeRows>(codes, w, s, a + r, to + r * out_stride, out_stride);
    }
    for (; r < rows; r++) rows_of<Codes, L, 1>(codes, w, s, a + r, to + r * out_stride, out_stride);
  }
}

template <class Codes>
void product_of_group(const Weight &w, int64_t first, int64_t last, const QuantizedRow *a, int64_t rows, float *out,
                      int64_t out_stride, uint8_t *scratch) {
  constexpr int unit = Codes::kLaneColumns;
  if (w.group == 32) return product<Codes, 32 / unit>(w, first, last, a, rows, out, out_stride, scratch);
  if (w.group == 64) return product<Codes, 64 / unit>(w, first, last, a, rows, out, out_stride, scratch);
  product<Codes, 128 / unit>(w, first, last, a, rows, out, out_stride, scratch);
}

}  // namespace

int64_t product_scratch(const Weight &w) {
  return (2 + kDecodeRows) * RowScratch::stride_of(w) * 4 + rounded(w.columns, kBytes) + kBytes;
}

void product_rows(const Weight &w, int64_t first, int64_t last, const QuantizedRow *a, int64_t rows, float *out,
                  int64_t out_stride, uint8_t *scratch) {
  if (w.bits == 4) return product_of_group<Nibbles>(w, first, last, a, rows, out, out_stride, scratch);
  if (w.bits == 8) return product_of_group<WideBytes>(w, first, last, a, rows, out, out_stride, scratch);
  product_of_group<Bytes>(w, first, last, a, rows, out, out_stride, scratch);
}

// ---- prefill: tiles of weight rows ----

namespace {

// A tile: scales and biases [groups][tile_columns], codes [columns / 4][tile_columns][4], one unpacked row.
struct TileView {
  float *scales, *biases;
  uint8_t *codes, *row;
  TileView(const Weight &w, uint8_t *tile) {
    scales = reinterpret_cast<float *>(tile);
    biases = scales + w.groups() * tile_columns;
    codes = reinterpret_cast<uint8_t *>(biases + w.groups() * tile_columns);
    row = codes + w.columns * tile_columns;
  }
};

template <bool Wide, int R>
inline void tile_rows(const Weight &w, const TileView &t, int64_t columns, const QuantizedRow *a, float *out,
                      int64_t out_stride) {
  constexpr int V = kInt8Vectors;
  float total[R][V * kLanes];
  for (int r = 0; r < R; r++) for (int v = 0; v < V; v++) store(total[r] + v * kLanes, zero());
  const uint8_t *codes = t.codes;
  for (int64_t g = 0; g < w.groups(); g++) {
    vi sum[R][V];
    for (int r = 0; r < R; r++) for (int v = 0; v < V; v++) sum[r][v] = zero_int();
    for (int64_t k = g * w.group; k < (g + 1) * w.group; k += 4, codes += 4 * tile_columns) {
      vb c[V];
      for (int v = 0; v < V; v++) c[v] = load_bytes(codes + v * kBytes);
      for (int r = 0; r < R; r++) {
        const vb x = broadcast4(a[r].codes + k);
        for (int v = 0; v < V; v++) sum[r][v] = Wide ? dot_wide(sum[r][v], c[v], x) : dot(sum[r][v], c[v], x);
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

template <bool Wide>
void tile_product(const Weight &w, const TileView &t, int64_t columns, const QuantizedRow *a, int64_t rows, float *out,
                  int64_t out_stride) {
  int64_t r = 0;
  for (; r + kInt8Rows <= rows; r += kInt8Rows) {
    tile_rows<Wide, kInt8Rows>(w, t, columns, a + r, out + r * out_stride, out_stride);
  }
  for (; r < rows; r++) tile_rows<Wide, 1>(w, t, columns, a + r, out + r * out_stride, out_stride);
}

}  // namespace

int64_t tile_bytes(const Weight &w) {
  return w.groups() * tile_columns * 8 + w.columns * tile_columns + rounded(w.columns, kBytes);
}

void pack_tile(const Weight &w, int64_t first, int64_t last, uint8_t *tile) {
  const TileView t(w, tile);
  const int64_t groups = w.groups();
  float numbers[64];
  const int64_t scale_bytes = bytes_of_format(w.scale_format);
  for (int64_t c = 0; c < tile_columns; c++) {
    const int64_t n = first + c < last ? first + c : last - 1;  // columns beyond the last repeat it; nobody reads them
    for (int64_t g = 0; g < groups; g += 64) {
      const int64_t count = groups - g < 64 ? groups - g : 64;
      read_scales(w.scale_row(n) + g * scale_bytes, w.scale_format, count, numbers);
      for (int64_t i = 0; i < count; i++) t.scales[(g + i) * tile_columns + c] = numbers[i];
      read_scales(w.bias_row(n) + g * scale_bytes, w.scale_format, count, numbers);
      for (int64_t i = 0; i < count; i++) {
        const float offset = w.bits == 8 ? kWideOffset * t.scales[(g + i) * tile_columns + c] : 0.0f;
        t.biases[(g + i) * tile_columns + c] = numbers[i] + offset;
      }
    }
    unpack_codes(w.row(n), w.bits, w.columns, t.row);
    if (w.bits == 8 && kWideOffset) for (int64_t i = 0; i < w.columns; i++) t.row[i] ^= 0x80;
    for (int64_t i = 0; i < w.columns / 4; i++) memcpy(t.codes + (i * tile_columns + c) * 4, t.row + i * 4, 4);
  }
}

void product_tile(const Weight &w, const uint8_t *tile, int64_t columns, const QuantizedRow *a, int64_t rows, float *out,
                  int64_t out_stride) {
  const TileView t(w, const_cast<uint8_t *>(tile));
  if (w.bits == 8) return tile_product<true>(w, t, columns, a, rows, out, out_stride);
  tile_product<false>(w, t, columns, a, rows, out, out_stride);
}

}  // namespace MB_ISA
}  // namespace mb
