// VPDPBUSD by means of AVX2, with the instruction's bits. LSV_EMULATE_AVX_VNNI puts it in the place of the compiler's
// intrinsic.
#pragma once

#include <immintrin.h>

#if defined(LSV_EMULATE_AVX_VNNI)
#define __AVXVNNI__ 1
#endif

namespace lsv {
namespace emulated {

// To each sum the products of four unsigned and four signed bytes.
inline __m256i dpbusd(__m256i sums, __m256i x, __m256i y) {
  const __m256i low = _mm256_set1_epi16(0xff);
  const __m256i even = _mm256_madd_epi16(_mm256_and_si256(x, low), _mm256_srai_epi16(_mm256_slli_epi16(y, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(x, 8), _mm256_srai_epi16(y, 8));
  return _mm256_add_epi32(sums, _mm256_add_epi32(even, odd));
}

}  // namespace emulated

#if defined(LSV_EMULATE_AVX_VNNI)
inline __m256i _mm256_dpbusd_avx_epi32(__m256i sums, __m256i x, __m256i y) { return emulated::dpbusd(sums, x, y); }
#endif

}  // namespace lsv
