// Matrix products of f32 activations with f32, f16 or bf16 numbers, each element in one fixed order: lane l of a vector sums
// the products of columns l, l + lanes, l + 2 * lanes … and the lanes are added as a tree.
// isa: scalar avx2 avx512 neon neon_dotprod
#include "functions.h"

namespace mb {
namespace MB_ISA {

namespace {

template <class T, int R, int C>
inline void tile(const float *a, int64_t a_stride, const T *w, int64_t w_stride, int64_t k, float *out,
                 int64_t out_stride) {
  vf sum[R][C];
  for (int r = 0; r < R; r++) for (int c = 0; c < C; c++) sum[r][c] = zero();
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    vf x[R];
    for (int r = 0; r < R; r++) x[r] = load(a + r * a_stride + i);
    for (int c = 0; c < C; c++) {
      const vf y = load(w + c * w_stride + i);
      for (int r = 0; r < R; r++) sum[r][c] = fma(x[r], y, sum[r][c]);
    }
  }
  if (i < k) {
    vf x[R];
    for (int r = 0; r < R; r++) x[r] = load_n(a + r * a_stride + i, k - i);
    for (int c = 0; c < C; c++) {
      const vf y = load_n(w + c * w_stride + i, k - i);
      for (int r = 0; r < R; r++) sum[r][c] = fma(x[r], y, sum[r][c]);
    }
  }
  for (int r = 0; r < R; r++) for (int c = 0; c < C; c++) out[r * out_stride + c] = reduce_add(sum[r][c]);
}

template <class T, int R>
inline void tiles_of_rows(const float *a, int64_t a_stride, const T *w, int64_t w_stride, int64_t columns, int64_t k,
                          float *out, int64_t out_stride) {
  int64_t c = 0;
  for (; c + kTileColumns <= columns; c += kTileColumns) {
    tile<T, R, kTileColumns>(a, a_stride, w + c * w_stride, w_stride, k, out + c, out_stride);
  }
  for (; c < columns; c++) tile<T, R, 1>(a, a_stride, w + c * w_stride, w_stride, k, out + c, out_stride);
}

template <class T>
void product(const float *a, int64_t a_stride, int64_t rows, const T *w, int64_t w_stride, int64_t columns, int64_t k,
             float *out, int64_t out_stride) {
  int64_t r = 0;
  for (; r + kTileRows <= rows; r += kTileRows) {
    tiles_of_rows<T, kTileRows>(a + r * a_stride, a_stride, w, w_stride, columns, k, out + r * out_stride, out_stride);
  }
  for (; r < rows; r++) {
    tiles_of_rows<T, 1>(a + r * a_stride, a_stride, w, w_stride, columns, k, out + r * out_stride, out_stride);
  }
}

// R rows and N vectors of columns of y += p * v over keys [first, last).
template <class T, int R, int N>
inline void sum_keys(const float *p, int64_t p_stride, int64_t first, int64_t last, const T *v, int64_t d, float *y,
                     int64_t y_stride) {
  vf sum[R][N];
  for (int r = 0; r < R; r++) for (int n = 0; n < N; n++) sum[r][n] = load(y + r * y_stride + n * kLanes);
  for (int64_t j = first; j < last; j++) {
    vf x[N];
    for (int n = 0; n < N; n++) x[n] = load(v + j * d + n * kLanes);
    for (int r = 0; r < R; r++) {
      const vf weight = set1(p[r * p_stride + j]);
      for (int n = 0; n < N; n++) sum[r][n] = fma(weight, x[n], sum[r][n]);
    }
  }
  for (int r = 0; r < R; r++) for (int n = 0; n < N; n++) store(y + r * y_stride + n * kLanes, sum[r][n]);
}

template <class T, int R>
inline void sum_keys_of_rows(const float *p, int64_t p_stride, int64_t first, int64_t last, const T *v, int64_t d,
                             float *y, int64_t y_stride) {
  constexpr int N = 4;
  int64_t i = 0;
  for (; i + N * kLanes <= d; i += N * kLanes) {
    sum_keys<T, R, N>(p, p_stride, first, last, v + i, d, y + i, y_stride);
  }
  for (; i + kLanes <= d; i += kLanes) sum_keys<T, R, 1>(p, p_stride, first, last, v + i, d, y + i, y_stride);
  if (i == d) return;
  const int64_t n = d - i;
  for (int r = 0; r < R; r++) {
    vf sum = load_n(y + r * y_stride + i, n);
    for (int64_t j = first; j < last; j++) sum = fma(set1(p[r * p_stride + j]), load_n(v + j * d + i, n), sum);
    store_n(y + r * y_stride + i, sum, n);
  }
}

template <class T>
void weighted(const float *p, int64_t p_stride, int64_t rows, const int32_t *first, const int32_t *last, const T *v,
              int64_t d, float *y, int64_t y_stride) {
  constexpr int R = kTileRows;
  int64_t r = 0;
  while (r < rows) {
    bool same = r + R <= rows;
    for (int i = 1; same && i < R; i++) same = first[r + i] == first[r] && last[r + i] == last[r];
    if (same) {
      sum_keys_of_rows<T, R>(p + r * p_stride, p_stride, first[r], last[r], v, d, y + r * y_stride, y_stride);
      r += R;
    } else {
      sum_keys_of_rows<T, 1>(p + r * p_stride, p_stride, first[r], last[r], v, d, y + r * y_stride, y_stride);
      r++;
    }
  }
}

}  // namespace

void matmul(const float *a, int64_t a_stride, int64_t rows, const void *w, Format format, int64_t w_stride,
            int64_t columns, int64_t k, float *out, int64_t out_stride) {
  if (format == kF32) {
    product(a, a_stride, rows, static_cast<const float *>(w), w_stride, columns, k, out, out_stride);
  } else if (format == kF16) {
    product(a, a_stride, rows, static_cast<const F16 *>(w), w_stride, columns, k, out, out_stride);
  } else {
    product(a, a_stride, rows, static_cast<const BF16 *>(w), w_stride, columns, k, out, out_stride);
  }
}

void weighted_sum(const float *p, int64_t p_stride, int64_t rows, const int32_t *first, const int32_t *last,
                  const void *v, Format format, int64_t d, float *y, int64_t y_stride) {
  if (format == kF16) return weighted(p, p_stride, rows, first, last, static_cast<const F16 *>(v), d, y, y_stride);
  weighted(p, p_stride, rows, first, last, static_cast<const float *>(v), d, y, y_stride);
}

}  // namespace MB_ISA
}  // namespace mb
