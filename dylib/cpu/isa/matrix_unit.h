// matrix_unit.h: the tile registers of AMX, each of sixteen rows of 64 bytes, and the one product that is taken of them.
#pragma once
#include "simd.h"

namespace mb {
namespace MB_ISA {
namespace {

constexpr int kUnitRows = 16, kUnitRowBytes = 64;

#if MB_TILES_IN_SOFTWARE  // for tests, on CPUs that have none

class MatrixUnit {
 public:
  template <int T>
  void zero() { memset(tiles_[T], 0, sizeof tiles_[T]); }
  template <int T>
  void load(const void *p, int64_t row_stride) {
    for (int i = 0; i < kUnitRows; i++) memcpy(tiles_[T][i], static_cast<const uint8_t *>(p) + i * row_stride, kUnitRowBytes);
  }
  template <int T>
  void store(void *p, int64_t row_stride) const {
    for (int i = 0; i < kUnitRows; i++) memcpy(static_cast<uint8_t *>(p) + i * row_stride, tiles_[T][i], kUnitRowBytes);
  }
  template <int Sum, int A, int B>
  void multiply() {
    for (int m = 0; m < kUnitRows; m++) {
      vf sum = MB_ISA::load(reinterpret_cast<const float *>(tiles_[Sum][m]));
      for (int k = 0; k < kUnitRows; k++) {
        uint32_t a;
        memcpy(&a, tiles_[A][m] + 4 * k, 4);
        const vi b = load_bytes(tiles_[B][k]);
        const vf even = _mm512_castsi512_ps(_mm512_slli_epi32(b, 16)), odd = _mm512_castsi512_ps(_mm512_and_si512(b, set1_int(-65536)));
        sum = fma(set1(float_from_bits(a << 16)), even, sum);
        sum = fma(set1(float_from_bits(a & 0xffff0000)), odd, sum);
      }
      MB_ISA::store(reinterpret_cast<float *>(tiles_[Sum][m]), sum);
    }
  }

 private:
  alignas(64) uint8_t tiles_[8][kUnitRows][kUnitRowBytes];
};

#else

// While one lives, this thread has the registers; all eight have their full size.
class MatrixUnit {
 public:
  MatrixUnit() {
    alignas(64) struct {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } shape;
    asm volatile("ldtilecfg %0" : : "m"(shape));
  }
  ~MatrixUnit() { asm volatile("tilerelease"); }
  MatrixUnit(const MatrixUnit &) = delete;
  MatrixUnit &operator=(const MatrixUnit &) = delete;

  template <int T>
  void zero() { asm volatile("tilezero %%tmm%c0" : : "i"(T)); }
  template <int T>
  void load(const void *p, int64_t row_stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(row_stride), "i"(T) : "memory");
  }
  template <int T>
  void store(void *p, int64_t row_stride) const {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(row_stride), "i"(T) : "memory");
  }
  // Row m, column n of tile Sum += for each k: element 2 k of row m of A times element 2 n of row k of B, and those after them. A and B are
  // bf16, sums f32.
  template <int Sum, int A, int B>
  void multiply() { asm volatile("tdpbf16ps %%tmm%c0, %%tmm%c1, %%tmm%c2" : : "i"(B), "i"(A), "i"(Sum)); }
};

#endif

}  // namespace
}  // namespace MB_ISA
}  // namespace mb
