// Looking bytes up in 128 at once, with an instruction of AVX512-VBMI. Not every machine has it that runs builds with
// AVX-512, so it is written out, and callers ask first.
#pragma once

#include "vector.h"

#if defined(__AVX512BW__)

namespace lsv {

inline bool permutes_bytes() {
#if defined(LSV_EMULATE_AVX512)
  return true;
#else
  return __builtin_cpu_supports("avx512vbmi");
#endif
}

// The bytes of `first` and `second` at 64 places, of which the lower seven bits count.
inline __m512i permute_bytes(__m512i places, __m512i first, __m512i second) {
#if defined(LSV_EMULATE_AVX512)
  return _mm512_permutex2var_epi8(first, places, second);
#else
  asm("vpermi2b %2, %1, %0" : "+v"(places) : "v"(first), "v"(second));
  return places;
#endif
}

}  // namespace lsv

#endif
