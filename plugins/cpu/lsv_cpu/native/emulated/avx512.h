// AVX-512 by means of AVX2, for tests on machines without it: every result has the bits the instruction gives
// (operation sections of the Intel 64 and IA-32 Software Developer's Manual). The functions are named like the
// compiler's intrinsics, which they hide from code in namespace lsv. LSV_EMULATE_VNNI and LSV_EMULATE_BF16 add extensions.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "emulated/avx_vnni.h"
#include "emulated/bfloat16.h"

#define __AVX512F__ 1
#define __AVX512BW__ 1
#define __AVX512DQ__ 1
#define __AVX512VL__ 1
#if defined(LSV_EMULATE_VNNI)
#define __AVX512VNNI__ 1
#endif
#if defined(LSV_EMULATE_BF16)
#define __AVX512BF16__ 1
#endif

// Macros in some compilers.
#undef _mm512_cvtps_ph
#undef _mm512_inserti64x4
#undef _mm512_mask_cmp_ps_mask
#undef _mm512_reduce_ps
#undef _mm512_setr_epi64
#undef _mm512_shuffle_i32x4
#undef _mm512_ternarylogic_epi32
#undef _mm512_ternarylogic_epi64

namespace lsv {
namespace emulated {

typedef uint64_t Qwords __attribute__((vector_size(64)));

template <class To, class From> To same_bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

template <class V> struct HalfOf;
template <> struct HalfOf<__m512> { using Type = __m256; };
template <> struct HalfOf<__m512i> { using Type = __m256i; };
template <class V> using Half = typename HalfOf<V>::Type;

template <class V> const Half<V>& half(const V& x, int i) { return ((const Half<V>*)&x)[i]; }

template <class To, class F, class... V> [[gnu::always_inline]] inline To by_halves(F&& f, const V&... x) {
  To to;
  for (int i = 0; i < 2; ++i) ((Half<To>*)&to)[i] = f(half(x, i)...);
  return to;
}

// Element by element.
template <class T> struct Lanes {
  static constexpr int kCount = 64 / sizeof(T);
  T at[kCount];
  T operator[](int i) const { return at[i]; }
};
template <class T, class V> Lanes<T> lanes(V x) { return same_bits<Lanes<T>>(x); }

template <class T, class F> __m512i make(F&& f) {
  Lanes<T> to;
  for (int i = 0; i < to.kCount; ++i) to.at[i] = f(i);
  return same_bits<__m512i>(to);
}
template <class T, class F> uint64_t mask(F&& f) {
  uint64_t bits = 0;
  for (int i = 0; i < Lanes<T>::kCount; ++i) bits |= (uint64_t)(bool)f(i) << i;
  return bits;
}
template <class T> __m512i blend(uint64_t chosen, __m512i a, __m512i b) {
  const auto x = lanes<T>(a), y = lanes<T>(b);
  return make<T>([&](int i) { return chosen >> i & 1 ? y[i] : x[i]; });
}
template <class T> __m512i look_up(__m512i places, __m512i first, __m512i second) {
  const auto place = lanes<T>(places), x = lanes<T>(first), y = lanes<T>(second);
  constexpr int kCount = Lanes<T>::kCount;
  return make<T>([&](int i) { return place[i] & kCount ? y[place[i] & (kCount - 1)] : x[place[i] & (kCount - 1)]; });
}

inline __m512i by_truth_table(__m512i a, __m512i b, __m512i c, int table) {
  const Qwords x = (Qwords)a, y = (Qwords)b, z = (Qwords)c;
  Qwords found{};
  for (int i = 0; i < 8; ++i)
    if (table >> i & 1) found |= (i & 4 ? x : ~x) & (i & 2 ? y : ~y) & (i & 1 ? z : ~z);
  return (__m512i)found;
}

// Halves of the vector, then halves of the result, and so on.
template <class F> float fold(__m512 x, F&& f) {
  auto at = lanes<float>(x);
  for (int width = 8; width; width /= 2)
    for (int i = 0; i < width; ++i) at.at[i] = f(at.at[i], at.at[i + width]);
  return at[0];
}

inline uint16_t to_bfloat16(float x) {
  const uint32_t bits = same_bits<uint32_t>(x);
  if (x != x) return (uint16_t)(bits >> 16 | 0x40);
  if (!(bits & 0x7f800000u)) return (uint16_t)(bits >> 16 & 0x8000);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float scale(float x, float exponent) {
  if (exponent >= -126 && exponent < 128) return x * same_bits<float>(((int32_t)std::floor(exponent) + 127) << 23);
  if (std::isnan(exponent)) return exponent;
  if (std::isinf(exponent)) return exponent > 0 ? x * INFINITY : x * 0;
  return std::ldexp(x, (int)std::floor(std::fmax(-1000, std::fmin(1000, exponent))));
}

}  // namespace emulated

// Loads and stores.
inline __m512i _mm512_loadu_si512(const void* from) {
  __m512i x;
  std::memcpy(&x, from, sizeof x);
  return x;
}
inline __m512i _mm512_load_si512(const void* from) { return *(const __m512i*)from; }
inline void _mm512_storeu_si512(void* to, __m512i x) { std::memcpy(to, &x, sizeof x); }
inline void _mm512_storeu_ps(void* to, __m512 x) { std::memcpy(to, &x, sizeof x); }
inline void _mm512_store_si512(void* to, __m512i x) { *(__m512i*)to = x; }
inline void _mm512_stream_si512(void* to, __m512i x) { *(__m512i*)to = x; }

// Constants and casts.
inline __m512i _mm512_setzero_si512() { return __m512i{}; }
inline __m512 _mm512_set1_ps(float x) { return x - __m512{}; }
inline __m512i _mm512_set1_epi8(char x) { return emulated::make<char>([&](int) { return x; }); }
inline __m512i _mm512_set1_epi16(short x) { return emulated::make<short>([&](int) { return x; }); }
inline __m512i _mm512_set1_epi32(int x) { return emulated::make<int>([&](int) { return x; }); }
inline __m512i _mm512_setr_epi64(
    long long a, long long b, long long c, long long d, long long e, long long f, long long g, long long h) {
  return __m512i{a, b, c, d, e, f, g, h};
}
inline __m512i _mm512_inserti64x4(__m512i x, __m256i part, int place) {
  ((__m256i*)&x)[place & 1] = part;
  return x;
}
inline __m512i _mm512_castsi256_si512(__m256i x) { return _mm512_inserti64x4(__m512i{}, x, 0); }
inline __m512i _mm512_broadcast_i64x4(__m256i x) { return _mm512_inserti64x4(_mm512_castsi256_si512(x), x, 1); }

// What AVX2 has for both halves.
#define LSV_BY_HALVES_1(type, name, half) \
  inline type name(type a) { return emulated::by_halves<type>([](auto x) { return half(x); }, a); }
#define LSV_BY_HALVES_2(type, name, half) \
  inline type name(type a, type b) { \
    return emulated::by_halves<type>([](auto x, auto y) { return half(x, y); }, a, b); \
  }
#define LSV_SHIFT(name, half) \
  inline __m512i name(__m512i a, int count) { \
    return emulated::by_halves<__m512i>([&](auto x) { return half(x, count); }, a); \
  }
LSV_BY_HALVES_1(__m512i, _mm512_abs_epi8, _mm256_abs_epi8)
LSV_BY_HALVES_2(__m512i, _mm512_and_si512, _mm256_and_si256)
LSV_BY_HALVES_2(__m512i, _mm512_xor_si512, _mm256_xor_si256)
LSV_BY_HALVES_2(__m512i, _mm512_madd_epi16, _mm256_madd_epi16)
LSV_BY_HALVES_2(__m512i, _mm512_maddubs_epi16, _mm256_maddubs_epi16)
LSV_BY_HALVES_2(__m512i, _mm512_unpacklo_epi8, _mm256_unpacklo_epi8)
LSV_BY_HALVES_2(__m512i, _mm512_unpackhi_epi8, _mm256_unpackhi_epi8)
LSV_BY_HALVES_2(__m512i, _mm512_unpacklo_epi16, _mm256_unpacklo_epi16)
LSV_BY_HALVES_2(__m512i, _mm512_unpackhi_epi16, _mm256_unpackhi_epi16)
LSV_BY_HALVES_2(__m512i, _mm512_unpacklo_epi32, _mm256_unpacklo_epi32)
LSV_BY_HALVES_2(__m512i, _mm512_unpackhi_epi32, _mm256_unpackhi_epi32)
LSV_BY_HALVES_2(__m512i, _mm512_unpacklo_epi64, _mm256_unpacklo_epi64)
LSV_BY_HALVES_2(__m512i, _mm512_unpackhi_epi64, _mm256_unpackhi_epi64)
LSV_BY_HALVES_2(__m512, _mm512_max_ps, _mm256_max_ps)
LSV_SHIFT(_mm512_slli_epi32, _mm256_slli_epi32)
LSV_SHIFT(_mm512_srli_epi16, _mm256_srli_epi16)
#undef LSV_BY_HALVES_1
#undef LSV_BY_HALVES_2
#undef LSV_SHIFT

inline __m512i _mm512_cvtps_epi32(__m512 a) {
  return emulated::by_halves<__m512i>([](auto x) { return _mm256_cvtps_epi32(x); }, a);
}
inline __m512 _mm512_cvtph_ps(__m256i a) {
  __m512 to;
  for (int i = 0; i < 2; ++i) ((__m256*)&to)[i] = _mm256_cvtph_ps(((const __m128i*)&a)[i]);
  return to;
}
inline __m256i _mm512_cvtps_ph(__m512 a, int) {  // to nearest even: the only rounding that kernels ask for
  __m256i to;
  for (int i = 0; i < 2; ++i)
    ((__m128i*)&to)[i] = _mm256_cvtps_ph(emulated::half(a, i), _MM_FROUND_TO_NEAREST_INT);
  return to;
}

// The others are called, not inlined: kernels have hundreds of instantiations, and compiling them would take long.
#define LSV_APART [[gnu::noinline]] inline

// Permutations.
LSV_APART __m512i _mm512_permutexvar_epi16(__m512i places, __m512i from) {
  return emulated::look_up<uint16_t>(places, from, from);
}
LSV_APART __m512i _mm512_permutexvar_epi64(__m512i places, __m512i from) {
  return emulated::look_up<uint64_t>(places, from, from);
}
LSV_APART __m512i _mm512_permutex2var_epi16(__m512i first, __m512i places, __m512i second) {
  return emulated::look_up<uint16_t>(places, first, second);
}
LSV_APART __m512i _mm512_permutex2var_epi8(__m512i first, __m512i places, __m512i second) {
  return emulated::look_up<uint8_t>(places, first, second);
}
LSV_APART __m512i _mm512_shuffle_i32x4(__m512i a, __m512i b, int places) {
  const auto x = emulated::lanes<__m128i>(a), y = emulated::lanes<__m128i>(b);
  return emulated::make<__m128i>([&](int i) { return (i < 2 ? x : y)[places >> 2 * i & 3]; });
}
LSV_APART __m256i _mm512_cvtepi16_epi8(__m512i a) {
  const auto x = emulated::lanes<uint16_t>(a);
  uint8_t to[32];
  for (int i = 0; i < 32; ++i) to[i] = (uint8_t)x[i];
  return _mm256_loadu_si256((const __m256i*)to);
}
LSV_APART __m512 _mm512_maskz_compress_ps(__mmask16 kept, __m512 a) {
  const auto x = emulated::lanes<float>(a);
  emulated::Lanes<float> to{};
  for (int i = 0, count = 0; i < to.kCount; ++i)
    if (kept >> i & 1) to.at[count++] = x[i];
  return emulated::same_bits<__m512>(to);
}

// Masks.
LSV_APART __mmask64 _mm512_movepi8_mask(__m512i a) {
  const auto x = emulated::lanes<int8_t>(a);
  return emulated::mask<int8_t>([&](int i) { return x[i] < 0; });
}
LSV_APART __mmask32 _mm512_test_epi16_mask(__m512i a, __m512i b) {
  const auto x = emulated::lanes<uint16_t>(_mm512_and_si512(a, b));
  return (__mmask32)emulated::mask<uint16_t>([&](int i) { return x[i] != 0; });
}
LSV_APART __mmask16 _mm512_mask_cmp_ps_mask(__mmask16 among, __m512 a, __m512 b, int compare) {
  if (compare != _CMP_GE_OQ) __builtin_trap();  // the only comparison that kernels ask for
  const auto x = emulated::lanes<float>(a), y = emulated::lanes<float>(b);
  return (__mmask16)(among & emulated::mask<float>([&](int i) { return x[i] >= y[i]; }));
}
LSV_APART __m512i _mm512_mask_blend_epi8(__mmask64 chosen, __m512i a, __m512i b) {
  return emulated::blend<uint8_t>(chosen, a, b);
}
LSV_APART __m512i _mm512_mask_blend_epi16(__mmask32 chosen, __m512i a, __m512i b) {
  return emulated::blend<uint16_t>(chosen, a, b);
}
LSV_APART __m512i _mm512_mask_sub_epi8(__m512i otherwise, __mmask64 chosen, __m512i a, __m512i b) {
  const auto difference = emulated::by_halves<__m512i>([](auto x, auto y) { return _mm256_sub_epi8(x, y); }, a, b);
  return emulated::blend<uint8_t>(chosen, otherwise, difference);
}
LSV_APART __m512i _mm512_ternarylogic_epi32(__m512i a, __m512i b, __m512i c, int table) {
  return emulated::by_truth_table(a, b, c, table);
}
LSV_APART __m512i _mm512_ternarylogic_epi64(__m512i a, __m512i b, __m512i c, int table) {
  return emulated::by_truth_table(a, b, c, table);
}

// Arithmetic. This one is inlined after all: products are made of it.
[[gnu::always_inline]] inline __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
  return emulated::by_halves<__m512>([](auto x, auto y, auto z) { return _mm256_fmadd_ps(x, y, z); }, a, b, c);
}
LSV_APART float _mm512_reduce_add_ps(__m512 a) {
  return emulated::fold(a, [](float x, float y) { return x + y; });
}
LSV_APART float _mm512_reduce_max_ps(__m512 a) {
  return emulated::fold(a, [](float x, float y) { return x > y ? x : y; });
}
LSV_APART uint32_t _mm512_reduce_max_epu32(__m512i a) {
  const auto x = emulated::lanes<uint32_t>(a);
  uint32_t most = 0;
  for (uint32_t one : x.at) most = one > most ? one : most;
  return most;
}
LSV_APART __m512 _mm512_reduce_ps(__m512 a, int) {  // what rounding to whole numbers leaves; nothing of infinity
  auto x = emulated::lanes<float>(a);
  for (float& one : x.at) one = std::isinf(one) ? 0 : one - std::nearbyint(one);
  return emulated::same_bits<__m512>(x);
}
LSV_APART __m512 _mm512_scalef_ps(__m512 a, __m512 b) {
  auto x = emulated::lanes<float>(a), y = emulated::lanes<float>(b);
  for (int i = 0; i < x.kCount; ++i) x.at[i] = emulated::scale(x[i], y[i]);
  return emulated::same_bits<__m512>(x);
}

#if defined(LSV_EMULATE_VNNI)
LSV_APART __m512i _mm512_dpbusd_epi32(__m512i sums, __m512i a, __m512i b) {
  return emulated::by_halves<__m512i>(emulated::dpbusd, sums, a, b);
}
#endif

#if defined(LSV_EMULATE_BF16)
LSV_APART __m256i _mm512_cvtneps_pbh(__m512 a) {
  const auto x = emulated::lanes<float>(a);
  uint16_t to[16];
  for (int i = 0; i < 16; ++i) to[i] = emulated::to_bfloat16(x[i]);
  return _mm256_loadu_si256((const __m256i*)to);
}
LSV_APART __m512 add_pairs(__m512 sums, __m512i x, __m512i y) {
  using namespace emulated;
  return by_halves<__m512>(
      [](__m256 sum, __m256i x, __m256i y) {
        return _mm256_fmadd_ps(even(x), even(y), _mm256_fmadd_ps(odd(x), odd(y), sum));
      },
      sums, x, y);
}
inline __m512 _mm512_dpbf16_ps(__m512 sums, __m512bh a, __m512bh b) {
  const emulated::WithoutDenormals scope;
  return add_pairs(sums, (__m512i)a, (__m512i)b);
}
#endif

#undef LSV_APART

}  // namespace lsv
