// Vectors of floats in the compiler's own notation, so that one source serves every instruction set.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#if defined(LSV_EMULATE_AVX512)
#include "emulated/avx512.h"
#elif defined(LSV_EMULATE_AVX_VNNI)
#include "emulated/avx_vnni.h"
#elif defined(__F16C__)
#include <immintrin.h>
#endif

namespace lsv {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kRowBlock = 6;  // rows a register tile holds: 6 x 4 accumulators of the 32 registers
#else
constexpr int kLanes = 8;
constexpr int kRowBlock = 2;
#endif

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));

struct BFloat16 { uint16_t bits; };
struct Float16 { uint16_t bits; };

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

template <class V, class S> inline V load_as(const S* from) {
  V value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <class V, class S> inline void store_as(S* to, V value) { std::memcpy(to, &value, sizeof value); }

inline Floats broadcast(float x) { return x - Floats{}; }

inline Floats load(const float* from) { return load_as<Floats>(from); }
inline Floats load(const BFloat16* from) { return (Floats)(__builtin_convertvector(load_as<Halves>(from), Words) << 16); }
inline void store(float* to, Floats x) { store_as(to, x); }

// Rounds to nearest even; a NaN stays one.
#if defined(__AVX512BF16__)
inline void store(BFloat16* to, Floats x) { store_as(to, _mm512_cvtneps_pbh((__m512)x)); }
#else
inline void store(BFloat16* to, Floats x) {
  Words bits = (Words)x;
  Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  store_as(to, __builtin_convertvector(x == x ? rounded : (bits >> 16) | 0x40, Halves));
}
#endif

#if defined(__AVX512F__)
inline Floats load(const Float16* from) { return (Floats)_mm512_cvtph_ps(load_as<__m256i>(from)); }
inline void store(Float16* to, Floats x) { store_as(to, _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT)); }
#elif defined(__F16C__)
inline Floats load(const Float16* from) { return (Floats)_mm256_cvtph_ps(load_as<__m128i>(from)); }
inline void store(Float16* to, Floats x) { store_as(to, _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT)); }
#else
// By bits: no compiler before g++ 12 (on Arm 13) and clang 15 has a type for these in C++.
inline Floats load(const Float16* from) {
  Words bits = __builtin_convertvector(load_as<Halves>(from), Words), rest = (bits & 0x7fff) << 13;
  Words finite = (Words)((Floats)rest * 0x1p112f);  // the exponent's other bias; right for what is below the normal, too
  Words magnitude = rest >= 0x7c00 << 13 ? rest | 0x7f800000 | (Words)(rest > 0x7c00 << 13) & 0x400000 : finite;
  return (Floats)(magnitude | (bits & 0x8000) << 16);
}
inline void store(Float16* to, Floats x) {
  Words bits = (Words)x, rest = bits & 0x7fffffff;
  Words normal = (rest - (112u << 23) + 0xfff + (rest >> 13 & 1)) >> 13;
  Words small = (Words)((Floats)rest + 0.5f) - 0x3f000000;  // the sum's last bit is the least a half float has
  Words half = rest < 113u << 23 ? small : normal;
  half = rest >= 143u << 23 ? Words{} + 0x7c00 : half;
  half = rest > 255u << 23 ? (rest >> 13 & 0x3ff) | 0x7e00 : half;
  store_as(to, __builtin_convertvector(half | (bits >> 16 & 0x8000), Halves));
}
#endif

inline float to_float(float x) { return x; }
inline float to_float(BFloat16 x) {
  uint32_t bits = (uint32_t)x.bits << 16;
  return load_as<float>(&bits);
}
#if defined(__F16C__)
inline float to_float(Float16 x) { return _cvtsh_ss(x.bits); }
#else
inline float to_float(Float16 x) {
  Float16 vector[kLanes] = {x};
  return load(vector)[0];
}
#endif

// The first `count` < kLanes elements; the rest is zero.
template <class T> inline Floats load_part(const T* from, int count) {
  T padded[kLanes] = {};
  std::memcpy(padded, from, count * sizeof(T));
  return load(padded);
}
template <class T> inline void store_part(T* to, Floats x, int count) {
  T padded[kLanes];
  store(padded, x);
  std::memcpy(to, padded, count * sizeof(T));
}

// f(i, n) for each vector of n elements at i; n < kLanes only for the last.
template <class F> inline void for_vectors(int size, F&& f) {
  for (int i = 0; i < size; i += kLanes) f(i, size - i < kLanes ? size - i : kLanes);
}
template <class T> inline Floats load_up_to(const T* from, int count) {
  return count == kLanes ? load(from) : load_part(from, count);
}
template <class T> inline void store_up_to(T* to, Floats x, int count) {
  if (count == kLanes) store(to, x);
  else store_part(to, x, count);
}

// Lane by lane; the second where one is not a number.
#if defined(__AVX512F__)
inline Floats larger(Floats x, Floats y) { return (Floats)_mm512_max_ps((__m512)x, (__m512)y); }
#else
inline Floats larger(Floats x, Floats y) { return x > y ? x : y; }
#endif

// Halves are added, then halves of the result, and so on.
#if defined(__AVX512F__)
inline float sum(Floats x) { return _mm512_reduce_add_ps((__m512)x); }
inline float maximum(Floats x) { return _mm512_reduce_max_ps((__m512)x); }
#else
inline float sum(Floats x) {
  float lanes[kLanes];
  store(lanes, x);
  for (int width = kLanes / 2; width; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
}
inline float maximum(Floats x) {
  float lanes[kLanes];
  store(lanes, x);
  for (int width = kLanes / 2; width; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] = lanes[i] < lanes[i + width] ? lanes[i + width] : lanes[i];
  return lanes[0];
}
#endif

// exp by x = n ln 2 + r, |r| <= ln 2 / 2, and the Taylor series of e^r to degree 7 (error below 1 ulp of the result);
// inputs are clamped to where the result is a normal number.
inline Floats exp(Floats x) {
  x = x < -87.3f ? broadcast(-87.3f) : x;
  x = x > 88.3f ? broadcast(88.3f) : x;
  const float shift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number, kept in the low bits
  Floats shifted = x * 1.44269504f + shift;
  Floats n = shifted - shift;
  Floats r = x - n * 0.693359375f + n * 2.12194440e-4f;
  Floats y = r * (1.0f / 5040) + 1.0f / 720;
  y = y * r + 1.0f / 120;
  y = y * r + 1.0f / 24;
  y = y * r + 1.0f / 6;
  y = y * r + 0.5f;
  y = y * r + 1.0f;
  y = y * r + 1.0f;
  return (Floats)((Ints)y + ((Ints)shifted << 23));
}

// 2^r for |r| <= 1/2: a polynomial of degree 5 fitted to it (relative error 8e-8).
inline Floats exp2_near_zero(Floats r) {
  Floats y = r * 1.32764715e-3f + 9.67554133e-3f;
  y = y * r + 5.55071327e-2f;
  y = y * r + 0.240221197f;
  y = y * r + 0.693146967f;
  return y * r + 1.0f;
}

// exp2 for x <= 127 by x = n + r. What is less than -126 counts as that, or has its own small result: both are as good
// as nothing beside a sum of weights.
#if defined(__AVX512DQ__)
inline Floats exp2(Floats x) {
  Floats r = (Floats)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT);
  return (Floats)_mm512_scalef_ps((__m512)exp2_near_zero(r), (__m512)(x - r));
}
#else
inline Floats exp2(Floats x) {
  x = larger(broadcast(-126.0f), x);
  const float shift = 12582912.0f;  // as above
  Floats shifted = x + shift;
  Floats y = exp2_near_zero(x - (shifted - shift));
  return (Floats)((Ints)y + ((Ints)shifted << 23));
}
#endif

inline Floats tanh(Floats x) { return 1.0f - 2.0f / (exp(2.0f * x) + 1.0f); }

}  // namespace lsv
