// simd_x86.h: what AVX2 and AVX-512 units do alike, eight numbers at a time.
#pragma once
#include <immintrin.h>

namespace mb {
namespace MB_ISA {

static inline float half(uint16_t bits) { return _cvtsh_ss(bits); }
// Eight halves, S bytes apart, of which only n exist: the last one fills up.
template <int S>
static MB_INLINE void strided_halves(const uint8_t *p, int n, float *y) {
  const auto at = [p, n](int i) MB_ALWAYS_INLINE {
    int16_t bits;
    memcpy(&bits, p + S * (i < n ? i : n - 1), 2);
    return bits;
  };
  _mm256_storeu_ps(y, _mm256_cvtph_ps(_mm_setr_epi16(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7))));
}
// y[i] = scale * byte i of eight.
static MB_INLINE void scaled_bytes(uint64_t bytes, float scale, float *y) {
  const __m256i words = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(bytes)));
  _mm256_storeu_ps(y, _mm256_mul_ps(_mm256_set1_ps(scale), _mm256_cvtepi32_ps(words)));
}
static MB_INLINE void scaled_signed_bytes(uint64_t bytes, float scale, float *y) {
  const __m256i words = _mm256_cvtepi8_epi32(_mm_cvtsi64_si128(static_cast<long long>(bytes)));
  _mm256_storeu_ps(y, _mm256_mul_ps(_mm256_set1_ps(scale), _mm256_cvtepi32_ps(words)));
}

}  // namespace MB_ISA
}  // namespace mb
