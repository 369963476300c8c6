// What instructions that multiply pairs of bfloat16 have in common.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace lsv {
namespace emulated {

typedef uint32_t Dwords __attribute__((vector_size(64)));

inline __m512 without_denormals(__m512 x) {
  const Dwords bits = (Dwords)x, tiny = (Dwords)((bits & 0x7f800000u) == 0);
  return (__m512)(bits & ~(tiny & 0x7fffffffu));
}

// The first or second of the pairs, as floats.
inline __m512 even(__m512i pairs) { return without_denormals((__m512)((Dwords)pairs << 16)); }
inline __m512 odd(__m512i pairs) { return without_denormals((__m512)((Dwords)pairs & 0xffff0000u)); }

}  // namespace emulated
}  // namespace lsv
