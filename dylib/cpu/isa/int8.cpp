// Activations as int8 codes, and prefill: products of quantised weights with tiles of them. Integer sums within a group, f32 sums
// over groups.
// isa: scalar avx2 avx512 neon neon_dotprod
#include "affine.h"
#include "int8_tile.h"

namespace mb {
namespace MB_ISA {

namespace {

inline int64_t rounded(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

// ---- activations ----

namespace {

constexpr int64_t kLowUnits = 128;                  // low codes in a step of high codes
constexpr float kLargest = 127.0f * kLowUnits;

// Codes of x[0, n), such that x ~ step * (128 * high + low). Returns the step; 0 where x is as good as zero.
inline float encode(const float *x, int64_t n, int8_t *high, int8_t *low) {
  vf most = zero();
  for (int64_t i = 0; i < n; i += kLanes) most = max(absolute(load(x + i)), most);
  const float largest = reduce_max(most);
  if (!(largest > 1e-30f)) {  // so small that its inverse is not finite
    memset(high, 0, static_cast<size_t>(n));
    memset(low, 0, static_cast<size_t>(n));
    return 0.0f;
  }
  const vf inverse = set1(kLargest / largest), limit = set1(kLargest), lowest = set1(-kLargest);
  for (int64_t i = 0; i < n; i += kLanes) {
    const vf q = max(lowest, min(limit, round(mul(load(x + i), inverse))));
    const vf h = round(mul(q, set1(1.0f / kLowUnits)));
    store_codes(high + i, h);
    store_codes(low + i, fma(h, set1(-static_cast<float>(kLowUnits)), q));
  }
  return largest / kLargest;
}

// Puts codes into the order in which 4-bit codes are read: even columns before odd ones in each 2 * half of them.
inline void split_even_odd(int8_t *codes, int64_t count, int64_t half) {
  for (int8_t *end = codes + count; codes < end; codes += 2 * half) {
    int8_t odd[kCodeBytes];
    for (int64_t i = 0; i < half; i++) odd[i] = codes[2 * i + 1];
    for (int64_t i = 0; i < half; i++) codes[i] = codes[2 * i];
    memcpy(codes + half, odd, static_cast<size_t>(half));
  }
}

// Puts codes into the order of blocks whose bytes have a column of the first half and one of the second.
inline void split_blocks(int8_t *codes, int64_t count) {
  for (int8_t *end = codes + count; codes < end; codes += 2 * kCodeBytes) {
    int8_t second[kCodeBytes];
    for (int64_t i = 0; i < kCodeBytes; i += 16) {
      memcpy(second + i, codes + 2 * i + 16, 16);
      memmove(codes + i, codes + 2 * i, 16);
    }
    memcpy(codes + kCodeBytes, second, kCodeBytes);
  }
}

inline float sum_of(const float *x, int64_t n) {
  vf sum = zero();
  for (int64_t i = 0; i < n; i += kLanes) sum = add(sum, load(x + i));
  return reduce_add(sum);
}

}  // namespace

void quantize_for_rows(const float *x, int64_t k, int64_t group, Order order, const QuantizedRow &row) {
  for (int64_t i = 0; i < k; i += kRun) {
    row.scales[i / kRun] = encode(x + i, k - i < kRun ? k - i : kRun, row.high + i, row.low + i);
  }
  const int64_t groups = k / group;
  for (int64_t g = 0; g < groups; g++) row.sums[g] = sum_of(x + g * group, group);
  memset(row.sums + groups, 0, sums_padding * sizeof(float));
  const int64_t padded = rounded(k, code_padding);
  int8_t *const both[] = {row.high, row.low};
  for (int8_t *codes : both) {
    memset(codes + k, 0, static_cast<size_t>(padded - k));
    if (order == Order::kPairs) split_even_odd(codes, padded, kCodeBytes);
    if (order == Order::kHalves) split_blocks(codes, padded);
  }
}

// A segment is rough if rounding its high codes is expected to cost more than kRoughness of its own size: the error of a
// column is the step, largest / 127, over the root of 12. Hardly any segment of normal data is.
constexpr float kRoughness = 8e-3f;

void quantize_for_tile(const float *x, int64_t k, int64_t group, Order order, const QuantizedRow &row) {
  constexpr float step_squared = 12.0f * kRoughness * kRoughness / kSegment;
  int32_t *rough = row.rough;
  for (int64_t g = 0; g < k / group; g++) {
    vf rounded_sum = zero();
    for (int64_t i = g * group; i < (g + 1) * group; i += kSegment) {
      const float fine = encode(x + i, kSegment, row.high + i, row.low + i), step = fine * kLowUnits;
      row.scales[i / kSegment] = step;
      vf squares = zero(), high = zero(), low = zero();
      for (int64_t j = i; j < i + kSegment; j += kLanes) {
        squares = fma(load(x + j), load(x + j), squares);
        high = add(high, load_codes(row.high + j));
        low = add(low, load_codes(row.low + j));
      }
      rounded_sum = fma(high, set1(step), rounded_sum);
      if (step * step <= step_squared * reduce_add(squares)) continue;
      rounded_sum = fma(low, set1(fine), rounded_sum);
      *rough++ = static_cast<int32_t>(i / kSegment);
    }
    row.rounded_sums[g] = reduce_add(rounded_sum);
    row.sums[g] = sum_of(x + g * group, group);
  }
  *rough = -1;
  if (order != Order::kPairs) return;
  split_even_odd(row.high, k, 4);
  split_even_odd(row.low, k, 4);
}

// ---- prefill: tiles of weight rows ----

namespace {

// Sums of a segment of R rows of activation codes, each `codes(r)`, with the tile's columns.
template <bool Nibble, bool Wide, int R, class Codes>
inline void dot_segment(const TileView &t, int64_t segment, const Codes &codes, vi (*sum)[kInt8Vectors]) {
  constexpr int V = kInt8Vectors, step = Nibble ? 8 : 4;
  for (int r = 0; r < R; r++) for (int v = 0; v < V; v++) sum[r][v] = zero_int();
  const uint8_t *words = t.codes + segment * (kSegment / step) * 4 * tile_columns;
  for (int64_t k = segment * kSegment; k < (segment + 1) * kSegment; k += step, words += 4 * tile_columns) {
    vb c[V], odd[V];
    for (int v = 0; v < V; v++) {
      c[v] = load_bytes(words + v * kCodeBytes);
      if (!Nibble) continue;
      odd[v] = high_nibbles(c[v]);
      c[v] = low_nibbles(c[v]);
    }
    for (int r = 0; r < R; r++) {
      const vb x = broadcast4(codes(r) + k);
      for (int v = 0; v < V; v++) sum[r][v] = Wide ? dot_wide(sum[r][v], c[v], x) : dot(sum[r][v], c[v], x);
      if (!Nibble) continue;
      const vb y = broadcast4(codes(r) + k + 4);
      for (int v = 0; v < V; v++) sum[r][v] = dot(sum[r][v], odd[v], y);
    }
  }
}

template <bool Nibble, bool Wide, int R>
inline void tile_rows(const Weight &w, const TileView &t, int64_t columns, const QuantizedRow *a, float *out,
                      int64_t out_stride) {
  constexpr int V = kInt8Vectors;
  const float offset = code_offset(w.bits);
  float total[R][V * kLanes];  // of all groups so far
  for (int r = 0; r < R; r++) for (int v = 0; v < V; v++) store(total[r] + v * kLanes, zero());
  for (int64_t g = 0; g < w.groups(); g++) {
    vf part[R][V];  // of the group, without its scale
    for (int r = 0; r < R; r++) {
      const vf start = set1(-offset * a[r].rounded_sums[g]);
      for (int v = 0; v < V; v++) part[r][v] = start;
    }
    for (int64_t s = g * w.group / kSegment; s < (g + 1) * w.group / kSegment; s++) {
      vi sum[R][V];
      dot_segment<Nibble, Wide, R>(t, s, [a](int r) { return a[r].high; }, sum);
      for (int r = 0; r < R; r++) {
        const vf scale = set1(a[r].scales[s]);
        for (int v = 0; v < V; v++) {
          part[r][v] = fma(to_float(sum[r][v]), scale, part[r][v]);
        }
      }
    }
    for (int v = 0; v < V; v++) {
      const vf scale = load(t.scales + g * tile_columns + v * kLanes);
      const vf bias = load(t.biases + g * tile_columns + v * kLanes);
      for (int r = 0; r < R; r++) {
        float *to = total[r] + v * kLanes;
        store(to, fma(bias, set1(a[r].sums[g]), fma(part[r][v], scale, load(to))));
      }
    }
  }
  for (int r = 0; r < R; r++) {
    for (const int32_t *s = a[r].rough; *s >= 0; s++) {
      vi sum[1][V];
      dot_segment<Nibble, Wide, 1>(t, *s, [a, r](int) { return a[r].low; }, sum);
      const vf scale = set1(a[r].scales[*s] / kLowUnits);
      const float *scales = t.scales + *s * kSegment / w.group * tile_columns;
      for (int v = 0; v < V; v++) {
        float *to = total[r] + v * kLanes;
        store(to, fma(to_float(sum[0][v]), mul(scale, load(scales + v * kLanes)), load(to)));
      }
    }
    memcpy(out + r * out_stride, total[r], static_cast<size_t>(columns) * sizeof(float));
  }
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
  const int64_t whole = Codes::whole(w.columns), words = w.columns / columns_of_word(w);
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

// kLanes weight rows of a format that is unpacked, to column `column` of the tile.
void pack_runs(const Weight &w, const int64_t *rows, const TileView &t, int64_t column) {
  const vf middle = set1(middle_of(w.bits));
  for (int64_t k = 0; k < w.columns; k += kRun) {
    const int64_t columns = w.columns - k < kRun ? w.columns - k : kRun, first = k / w.group, groups = columns / w.group;
    uint8_t codes[kLanes][kRun] = {};
    float scales[kLanes][kRun / 16] = {}, biases[kLanes][kRun / 16] = {};
    for (int j = 0; j < kLanes; j++) unpack_run(w, rows[j], k, columns, codes[j], scales[j], biases[j]);
    for (int64_t g = 0; g < groups; g += kLanes) {
      vb s[kLanes], b[kLanes];
      for (int j = 0; j < kLanes; j++) {
        const vf scale = load(scales[j] + g);
        s[j] = as_bytes(scale);
        b[j] = as_bytes(fma(scale, middle, load(biases[j] + g)));
      }
      transpose(s);
      transpose(b);
      for (int64_t i = 0; i < kLanes && g + i < groups; i++) {
        store_bytes(reinterpret_cast<uint8_t *>(t.scales + (first + g + i) * tile_columns + column), s[i]);
        store_bytes(reinterpret_cast<uint8_t *>(t.biases + (first + g + i) * tile_columns + column), b[i]);
      }
    }
    for (int64_t v = 0; v * kCodeBytes < columns; v++) {
      vb c[kLanes];
      for (int j = 0; j < kLanes; j++) {
        c[j] = load_bytes(codes[j] + v * kCodeBytes);
        if (w.bits == 8) c[j] = offset_wide(c[j]);
      }
      transpose(c);
      const int64_t word = (k + v * kCodeBytes) / 4, words = (columns - v * kCodeBytes) / 4;
      for (int64_t i = 0; i < kLanes && i < words; i++) store_bytes(t.codes + ((word + i) * tile_columns + column) * 4, c[i]);
    }
  }
}

}  // namespace

int64_t tile_bytes(const Weight &w) {
  return w.groups() * tile_columns * 8 + w.columns / columns_of_word(w) * tile_columns * 4;
}

void pack_tile(const Weight &w, int64_t first, int64_t last, uint8_t *tile) {
  const TileView t(w, tile);
  for (int64_t column = 0; column < tile_columns; column += kLanes) {
    int64_t rows[kLanes];  // columns beyond the last repeat it; nobody reads them
    for (int j = 0; j < kLanes; j++) rows[j] = first + column + j < last ? first + column + j : last - 1;
    if (w.interleaved) {
      const int64_t row = rows[0] / kLanes * kLanes;
      pack_tile_of_bands(w, row, t.scales + column, t.biases + column, t.codes + 4 * column);
      continue;
    }
    if (w.format != kAffine) {
      pack_runs(w, rows, t, column);
      continue;
    }
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
  if (has_nibble_words(w)) return tile_product<true, false>(w, t, columns, a, rows, out, out_stride);
  if (w.bits == 8) return tile_product<false, true>(w, t, columns, a, rows, out, out_stride);
  tile_product<false, false>(w, t, columns, a, rows, out, out_stride);
}

}  // namespace MB_ISA
}  // namespace mb
