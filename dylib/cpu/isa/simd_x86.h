// simd_x86.h: what AVX2 and AVX-512 units do alike, eight numbers at a time.
#pragma once
#include <immintrin.h>

namespace mb {
namespace MB_ISA {

static inline float half(uint16_t bits) { return _cvtsh_ss(bits); }
// Eight halves, S bytes apart, of which only n exist: the last one fills up.
template <int S>
static MB_INLINE void strided_halves(const uint8_t *p, int n, float *y) {
#if MB_ISA_NUMBER == 2
  if constexpr (S == 20 || S == 22 || S == 24) {  // two vectors hold four: three in the first, one in the end of the blocks
    constexpr int w = S / 2;
    const __m512i order = _mm512_castsi128_si512(_mm_setr_epi16(0, w, 2 * w, 65 - w, 0, 0, 0, 0));
    const auto halves = [order](const uint8_t *from) MB_ALWAYS_INLINE {
      const __m512i end = _mm512_loadu_si512(from + 4 * S - 66);  // a minimum begins two bytes later
      return _mm512_castsi512_si128(_mm512_permutex2var_epi16(_mm512_loadu_si512(from), order, end));
    };
    if (n == 8) return _mm256_storeu_ps(y, _mm256_cvtph_ps(_mm_unpacklo_epi64(halves(p), halves(p + 4 * S))));
    if (n == 4) return _mm256_storeu_ps(y, _mm256_cvtph_ps(_mm_broadcastq_epi64(halves(p))));
  }
  if constexpr (S == 18 || S == 34) {  // two vectors hold eight of the one, and four of the other, within the blocks
    constexpr int w = S / 2;
    const __m512i order = _mm512_castsi128_si512(_mm_setr_epi16(0, w, 2 * w, 3 * w, 4 * w, 5 * w, 6 * w, 7 * w));
    const auto halves = [order](const uint8_t *from) MB_ALWAYS_INLINE {
      return _mm512_castsi512_si128(_mm512_permutex2var_epi16(_mm512_loadu_si512(from), order, _mm512_loadu_si512(from + 64)));
    };
    if (n == 8) {
      const __m128i bits = S == 18 ? halves(p) : _mm_unpacklo_epi64(halves(p), halves(p + 4 * S));
      return _mm256_storeu_ps(y, _mm256_cvtph_ps(bits));
    }
    if (S == 34 && n == 4) return _mm256_storeu_ps(y, _mm256_cvtph_ps(_mm_broadcastq_epi64(halves(p))));
  }
#endif
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
