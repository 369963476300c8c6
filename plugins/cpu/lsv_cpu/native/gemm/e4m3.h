// Rounding to the numbers of e4m3: four significant bits, 448 at most, and steps of 2^-9 below 2^-6.
#pragma once

#include "vector.h"

namespace lsv {

// The nearest numbers, halves to even, as floats; what is larger becomes 448. A NaN stays one.
inline Floats rounded_to_e4m3(Floats x) {
  constexpr float kLargest = 448.0f, kStep = 0x1p-9f;
  constexpr uint32_t kSmallestNormal = 121u << 23;  // 2^-6
  constexpr int kLost = 20;                         // bits of a float's 23 that e4m3 has no room for
  const Words sign = (Words)x & 0x80000000u, bits = (Words)x & 0x7fffffffu;
  const Words normal = (bits + ((1u << (kLost - 1)) - 1) + (bits >> kLost & 1)) >> kLost << kLost;
  const Words small = (Words)((Floats)bits + kStep * 0x1p23f) - (Words)broadcast(kStep * 0x1p23f);  // in steps
  const Floats steps = __builtin_convertvector((Ints)small, Floats) * kStep;
  Floats size = bits < kSmallestNormal ? steps : (Floats)normal;
  size = size > kLargest ? broadcast(kLargest) : size;
  return x == x ? (Floats)((Words)size | sign) : x;
}

}  // namespace lsv
