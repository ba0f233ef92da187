// Prefill on matrix units: weights are unpacked to bf16, and so are activations, both rounded to nearest; products are summed in f32. That
// rounds less than codes of eight bits do, and needs no scale within a row. All else is what AVX-512 has.
// isa: amx
#include "int8_tile.h"
#include "matrix_unit.h"

namespace mb {

namespace avx512 { extern const Kernels kernels; }

namespace MB_ISA {

namespace {

constexpr int64_t kStepColumns = 32, kStepBytes = kUnitRows * kUnitRowBytes;  // columns that a product of tiles sums
constexpr int kParts = kInt8Vectors;                                          // sixteen weight rows each
static_assert(kParts == 2 && kLanes == kUnitRows);

inline int64_t steps_of(const Weight &w) { return (w.columns + kStepColumns - 1) / kStepColumns; }

// A tile of weights: what AVX-512 unpacks, then for each sixteen weight rows and each step a tile of the unit, whose rows have two
// columns of all sixteen.
inline int64_t numbers_at(const Weight &w) { return (avx512::kernels.tile_bytes(w) + 63) / 64 * 64; }

inline __m512i to_bf16(vf first, vf second) {
  const __m512bh both = _mm512_cvtne2ps_pbh(second, first);
  __m512i bits;
  memcpy(&bits, &both, sizeof bits);
  return bits;
}

// ---- weights ----

class Widener {
 public:
  Widener(uint8_t *to) : to_(to) {}
  // Scale and bias of the codes to come, one weight row a lane.
  void set_group(vf scale, vf bias) { scale_ = scale, bias_ = bias; }
  // The next two columns: bits of each 32-bit lane from `at` on that the mask has.
  template <int Even, int Odd, int Mask>
  MB_ALWAYS_INLINE void columns(vb codes) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4,
                                           19, 3, 18, 2, 17, 1, 16, 0);
    store_bytes(to_, _mm512_permutexvar_epi16(order, to_bf16(number<Even, Mask>(codes), number<Odd, Mask>(codes))));
    to_ += kUnitRowBytes;
  }
  void pad(int64_t rows) { memset(to_, 0, static_cast<size_t>(rows * kUnitRowBytes)); }

 private:
  template <int At, int Mask>
  MB_ALWAYS_INLINE vf number(vb codes) const {
    return fma(to_float(_mm512_and_si512(_mm512_srli_epi32(codes, At), set1_int(Mask))), scale_, bias_);
  }
  uint8_t *to_;
  vf scale_ = zero(), bias_ = zero();
};

// The order of the columns of a word: four bytes; or four low halves of bytes before the high ones; or both of each byte in turn.
enum class Word { kBytes, kHalves, kPairs };

template <Word W>
void widen(const Weight &w, const TileView &t, uint8_t *numbers) {
  const vf offset = set1(-code_offset(w.bits));
  const int64_t words = w.group / (W == Word::kBytes ? 4 : 8), steps = steps_of(w);
  for (int part = 0; part < kParts; part++) {
    Widener to(numbers + part * steps * kStepBytes);
    const uint8_t *codes = t.codes + part * kCodeBytes;
    for (int64_t g = 0; g < w.groups(); g++) {
      const vf scale = load(t.scales + g * tile_columns + part * kLanes);
      to.set_group(scale, fma(scale, offset, load(t.biases + g * tile_columns + part * kLanes)));
      for (int64_t i = 0; i < words; i++, codes += 4 * tile_columns) {
        const vb c = load_bytes(codes);
        if constexpr (W == Word::kBytes) {
          to.columns<0, 8, 255>(c);
          to.columns<16, 24, 255>(c);
        } else if constexpr (W == Word::kHalves) {
          to.columns<0, 8, 15>(c);
          to.columns<16, 24, 15>(c);
          to.columns<4, 12, 15>(c);
          to.columns<20, 28, 15>(c);
        } else {
          to.columns<0, 4, 15>(c);
          to.columns<8, 12, 15>(c);
          to.columns<16, 20, 15>(c);
          to.columns<24, 28, 15>(c);
        }
      }
    }
    to.pad(steps * kUnitRows - w.columns / 2);
  }
}

// ---- activations ----

// Up to sixteen rows of activations: read where they lie if there are sixteen evenly apart, else gathered step by step.
class UnitRows {
 public:
  UnitRows(const QuantizedRow *rows, int64_t count) : rows_(rows), count_(count) {
    in_place_ = count == kUnitRows;
    for (int64_t i = 1; in_place_ && i < count; i++) in_place_ = rows[i].high - rows[i - 1].high == stride();
    if (!in_place_) memset(gathered_, 0, sizeof gathered_);
  }
  template <int T>
  MB_ALWAYS_INLINE void load(MatrixUnit &unit, int64_t step) {
    if (in_place_) return unit.load<T>(rows_[0].high + step * kUnitRowBytes, stride());
    for (int64_t i = 0; i < count_; i++) store_bytes(gathered_[i], load_bytes(rows_[i].high + step * kUnitRowBytes));
    unit.load<T>(gathered_, kUnitRowBytes);
  }

 private:
  int64_t stride() const { return rows_[1].high - rows_[0].high; }
  const QuantizedRow *rows_;
  int64_t count_;
  bool in_place_;
  alignas(64) uint8_t gathered_[kUnitRows][kUnitRowBytes];
};

// Tile T, of which `rows` rows and `columns` columns exist, to out.
template <int T>
void store_sums(const MatrixUnit &unit, int64_t rows, int64_t columns, float *out, int64_t out_stride) {
  if (columns <= 0) return;
  if (rows == kUnitRows && columns >= kLanes) return unit.store<T>(out, out_stride * 4);
  alignas(64) float sums[kUnitRows][kLanes];
  unit.store<T>(sums, kUnitRowBytes);
  for (int64_t i = 0; i < rows; i++) store_n(out + i * out_stride, load(sums[i]), columns < kLanes ? columns : kLanes);
}

// Sixteen rows, or with `both` up to thirty-two, times all columns of the tile. Each tile that is loaded meets two.
template <bool Both>
void unit_product(MatrixUnit &unit, const uint8_t *numbers, int64_t steps, int64_t columns, const QuantizedRow *a, int64_t rows,
                  float *out, int64_t out_stride) {
  UnitRows first(a, Both ? kUnitRows : rows), second(a + (Both ? kUnitRows : 0), Both ? rows - kUnitRows : rows);
  unit.zero<0>();
  unit.zero<1>();
  unit.zero<2>();
  unit.zero<3>();
  for (int64_t i = 0; i < steps; i++) {
    unit.load<6>(numbers + i * kStepBytes, kUnitRowBytes);
    unit.load<7>(numbers + (steps + i) * kStepBytes, kUnitRowBytes);
    first.load<4>(unit, i);
    unit.multiply<0, 4, 6>();
    unit.multiply<1, 4, 7>();
    if constexpr (!Both) continue;
    second.load<5>(unit, i);
    unit.multiply<2, 5, 6>();
    unit.multiply<3, 5, 7>();
  }
  const int64_t of_first = Both ? kUnitRows : rows;
  store_sums<0>(unit, of_first, columns, out, out_stride);
  store_sums<1>(unit, of_first, columns - kLanes, out + kLanes, out_stride);
  if constexpr (!Both) return;
  out += kUnitRows * out_stride;
  store_sums<2>(unit, rows - kUnitRows, columns, out, out_stride);
  store_sums<3>(unit, rows - kUnitRows, columns - kLanes, out + kLanes, out_stride);
}

}  // namespace

void quantize_for_tile(const float *x, int64_t k, int64_t, Order, const QuantizedRow &row) {
  uint8_t *to = reinterpret_cast<uint8_t *>(row.high);
  for (int64_t i = 0; i < k; i += kStepColumns, to += kUnitRowBytes) {
    const int64_t rest = k - i - kLanes;
    const vf second = rest <= 0 ? zero() : load_n(x + i + kLanes, rest < kLanes ? rest : kLanes);
    store_bytes(to, to_bf16(load_n(x + i, k - i < kLanes ? k - i : kLanes), second));
  }
}

int64_t tile_bytes(const Weight &w) { return numbers_at(w) + kParts * steps_of(w) * kStepBytes; }

void pack_tile(const Weight &w, int64_t first, int64_t last, uint8_t *tile) {
  avx512::kernels.pack_tile(w, first, last, tile);
  const TileView t(w, tile);
  uint8_t *numbers = tile + numbers_at(w);
  if (!has_nibble_words(w)) widen<Word::kBytes>(w, t, numbers);
  else if (w.order() == Order::kPairs) widen<Word::kPairs>(w, t, numbers);
  else widen<Word::kHalves>(w, t, numbers);
}

void product_tile(const Weight &w, const uint8_t *tile, int64_t columns, const QuantizedRow *a, int64_t rows, float *out,
                  int64_t out_stride) {
  MatrixUnit unit;
  const uint8_t *numbers = tile + numbers_at(w);
  const int64_t steps = steps_of(w);
  int64_t r = 0;
  for (; r + kUnitRows < rows; r += 2 * kUnitRows) {
    const int64_t n = rows - r < 2 * kUnitRows ? rows - r : 2 * kUnitRows;
    unit_product<true>(unit, numbers, steps, columns, a + r, n, out + r * out_stride, out_stride);
  }
  if (r < rows) unit_product<false>(unit, numbers, steps, columns, a + r, rows - r, out + r * out_stride, out_stride);
}

// Made when it is asked for: no code of this unit may run on a CPU without its instructions.
const Kernels &kernels();
const Kernels &kernels() {
  static const Kernels table = [] {
    Kernels k = avx512::kernels;
    k.level = "amx";
    k.quantize_for_tile = quantize_for_tile;
    k.tile_bytes = tile_bytes;
    k.pack_tile = pack_tile;
    k.product_tile = product_tile;
    return k;
  }();
  return table;
}

}  // namespace MB_ISA
}  // namespace mb
