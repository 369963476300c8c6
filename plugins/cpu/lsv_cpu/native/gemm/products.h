// Products of bytes, four inputs of kLanes outputs at a time, exact in int32 under every instruction set.
#pragma once

#include "vector.h"

namespace lsv {

typedef int8_t Bytes __attribute__((vector_size(4 * kLanes)));  // four inputs of each of kLanes outputs

// Where vector `v` of a panel lies in a line of 64 bytes, in tiles of `tile_bytes`.
inline constexpr int line_offset(int v, int tile_bytes) {
  int lane = v * kLanes;
  return lane / 16 * tile_bytes + lane % 16 * 4;
}

inline Bytes broadcast_quad(const int8_t* four) { return (Bytes)(Ints{} + load_as<int32_t>(four)); }

constexpr int kNibbleLift = 8;  // nibbles are weights + 8

inline Bytes low_nibbles(Bytes packed) { return packed & 15; }
inline Bytes high_nibbles(Bytes packed) { return (Bytes)((Words)packed >> 4) & 15; }

// Adds the products of four unsigned and four signed bytes to each sum.
#if defined(__AVX512VNNI__)
#define LSV_DPBUSD
inline Ints dpbusd(Ints sums, Bytes x, Bytes y) {
  return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)x, (__m512i)y);
}
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
#define LSV_DPBUSD
inline Ints dpbusd(Ints sums, Bytes x, Bytes y) {
  return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)x, (__m256i)y);
}
#endif

#if defined(LSV_DPBUSD)

// One factor must be unsigned. Rows meet int8 weights as code + 128, which the weights' sums take back. Weights have no
// sums of groups: there the weights are lifted by 128, which the sums of the rows' codes take back.
constexpr uint8_t kRowFlip = 0x80;
constexpr int kByteLift = 128;

inline Bytes lifted(Bytes weights) { return weights ^ -128; }

inline Ints add_int8(Ints sums, Bytes weights, Bytes row) { return dpbusd(sums, row, weights); }
inline Ints add_int4(Ints sums, Bytes nibbles, Bytes row) { return dpbusd(sums, nibbles, row); }
inline Ints add_lifted(Ints sums, Bytes weights, Bytes row) { return add_int4(sums, weights, row); }

#else

constexpr uint8_t kRowFlip = 0;
constexpr int kByteLift = 0;

inline Bytes lifted(Bytes weights) { return weights; }

// Sums of two products in 16 bits: the unsigned factor is a weight's magnitude (<= 128) or a nibble, the other at most
// 127 in magnitude, so that nothing saturates.
#if defined(__AVX512BW__)
inline Ints add_unsigned(Ints sums, __m512i magnitudes, __m512i row) {
  __m512i pairs = _mm512_maddubs_epi16(magnitudes, row);
  return sums + (Ints)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
}
inline Ints add_int8(Ints sums, Bytes weights, Bytes row) {
  __mmask64 negative = _mm512_movepi8_mask((__m512i)weights);
  __m512i turned = _mm512_mask_sub_epi8((__m512i)row, negative, _mm512_setzero_si512(), (__m512i)row);
  return add_unsigned(sums, _mm512_abs_epi8((__m512i)weights), turned);
}
inline Ints add_int4(Ints sums, Bytes nibbles, Bytes row) { return add_unsigned(sums, (__m512i)nibbles, (__m512i)row); }
#elif defined(__AVX2__)
inline Ints add_unsigned(Ints sums, __m256i magnitudes, __m256i row) {
  __m256i pairs = _mm256_maddubs_epi16(magnitudes, row);
  return sums + (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
inline Ints add_int8(Ints sums, Bytes weights, Bytes row) {
  __m256i turned = _mm256_sign_epi8((__m256i)row, (__m256i)weights);
  return add_unsigned(sums, _mm256_abs_epi8((__m256i)weights), turned);
}
inline Ints add_int4(Ints sums, Bytes nibbles, Bytes row) { return add_unsigned(sums, (__m256i)nibbles, (__m256i)row); }
#else
inline Ints add_int8(Ints sums, Bytes weights, Bytes row) {
  for (int shift = 0; shift < 32; shift += 8) sums += ((Ints)weights << shift >> 24) * ((Ints)row << shift >> 24);
  return sums;
}
inline Ints add_int4(Ints sums, Bytes nibbles, Bytes row) { return add_int8(sums, nibbles, row); }
#endif
inline Ints add_lifted(Ints sums, Bytes weights, Bytes row) { return add_int8(sums, weights, row); }

#endif

}  // namespace lsv
