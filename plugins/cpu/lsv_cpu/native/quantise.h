// Symmetric quantisation of numbers that share a scale: int8 = round(x * 127 / largest), to nearest even.
#pragma once

#include "vector.h"

namespace lsv {

typedef int8_t Codes __attribute__((vector_size(kLanes)));  // of a vector of floats

struct Scales { Floats scale, inverse; };  // of several groups: x is about code * scale; code = round(x * inverse)

constexpr float kNothing = 1e-30f;  // numbers that are all smaller count as zeros

inline Ints rounded(Floats x) {
#if defined(__AVX512F__)
  return (Ints)_mm512_cvtps_epi32((__m512)x);
#elif defined(__AVX2__)
  return (Ints)_mm256_cvtps_epi32((__m256)x);
#else
  Ints whole;
  for (int i = 0; i < kLanes; ++i) whole[i] = (int32_t)std::lrint(x[i]);
  return whole;
#endif
}

inline void store_codes(int8_t* to, Ints codes, int count) {
  Codes bytes = __builtin_convertvector(codes, Codes);
  if (count == kLanes) store_as(to, bytes);
  else std::memcpy(to, &bytes, count);
}

inline uint32_t largest_lane(Words x) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_epu32((__m512i)x);
#else
  uint32_t largest = 0;
  for (int i = 0; i < kLanes; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
#endif
}

// The largest magnitude. Compared as whole numbers, in which a NaN is larger than anything: it gets into the scale,
// and from there into every result.
template <class T> float largest_of(const T* x, int size) {
  Words most = {};
  for_vectors(size, [&](int at, int n) {
    Words magnitude = (Words)load_up_to(x + at, n) & 0x7fffffff;
    most = magnitude > most ? magnitude : most;
  });
  uint32_t largest = largest_lane(most);
  return load_as<float>(&largest);
}

// The same for whole vectors of pairs, compared before they are widened.
inline float largest_of(const BFloat16* x, int size) {
  typedef uint16_t Pairs __attribute__((vector_size(4 * kLanes)));
  if (size % (2 * kLanes)) return largest_of<BFloat16>(x, size);
  Pairs most = {};
  for (int at = 0; at < size; at += 2 * kLanes) {
    Pairs magnitude = load_as<Pairs>(x + at) & 0x7fff;
    most = magnitude > most ? magnitude : most;
  }
  Words even = (Words)most << 16, odd = (Words)most & 0xffff0000u;
  uint32_t largest = largest_lane(even > odd ? even : odd);
  return load_as<float>(&largest);
}

inline Scales scales_of(Floats largest) {
  Floats one = broadcast(1);
  return {largest < kNothing ? one : largest / 127, largest < kNothing ? one : 127 / largest};
}

// Writes the codes, each combined with `flip` by exclusive or: 0x80 adds 128.
template <class T> void quantise(const T* x, int size, float inverse, uint8_t flip, int8_t* to) {
  for_vectors(size, [&](int at, int n) {
    store_codes(to + at, rounded(load_up_to(x + at, n) * inverse) ^ flip, n);
  });
}

}  // namespace lsv
