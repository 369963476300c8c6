// What instructions that multiply pairs of bfloat16 have in common.
#pragma once

#include <immintrin.h>

namespace lsv {
namespace emulated {

// The first or second of the pairs, as floats.
inline __m256 even(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
inline __m256 odd(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000)));
}

// While it lives, denormals count as zeros, be they operands or results.
class WithoutDenormals {
 public:
  WithoutDenormals() { _mm_setcsr(before_ | kOperands | kResults); }
  WithoutDenormals(const WithoutDenormals&) = delete;
  WithoutDenormals& operator=(const WithoutDenormals&) = delete;
  ~WithoutDenormals() { _mm_setcsr(before_); }

 private:
  static constexpr unsigned kOperands = 1 << 6, kResults = 1 << 15;  // of MXCSR: DAZ, FTZ
  const unsigned before_ = _mm_getcsr();
};

}  // namespace emulated
}  // namespace lsv
