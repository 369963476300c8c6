// Keys as values, for layers whose values are features of their keys: the same numbers in other places, so that sums are
// those over values which the cache holds beside the keys. A panel is turned once for all rows of a tile.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention/kernels.h"

namespace lsv {

// A group of keys [features / pair][keys][pair], whose last features may be `odd` ones [keys], to values
// [keys / pair][values][pair], from feature `from` on. `line`: from one pair of features to the next.
template <int kPair, class Line>
void turn_plainly(const Line* keys, int64_t line, int features, int values, const Line* odd, int from, Line* to) {
  const int whole = features / kPair * kPair;
  for (int d = from; d < values; ++d) {
    const Line* at = d < whole ? keys + d / kPair * line + d % kPair : odd;
    const int step = d < whole ? kPair : 1;
    for (int key = 0; key < kGroup; ++key) to[((int64_t)key / kPair * values + d) * kPair + key % kPair] = at[key * step];
  }
}

#if defined(__AVX512BW__)
// x[i][j] of 16 x 16 words to x[j][i].
inline void transpose(__m512i (&x)[16]) {
  __m512i y[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4)
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      x[i + 2 * j] = _mm512_unpacklo_epi64(y[i + j], y[i + 2 + j]);
      x[i + 2 * j + 1] = _mm512_unpackhi_epi64(y[i + j], y[i + 2 + j]);
    }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // by parts of 4 words: [0, 2], then [1, 3]
    y[4 * i] = _mm512_shuffle_i32x4(x[i], x[4 + i], 0x88);
    y[4 * i + 1] = _mm512_shuffle_i32x4(x[8 + i], x[12 + i], 0x88);
    y[4 * i + 2] = _mm512_shuffle_i32x4(x[i], x[4 + i], 0xdd);
    y[4 * i + 3] = _mm512_shuffle_i32x4(x[8 + i], x[12 + i], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm512_shuffle_i32x4(y[4 * i], y[4 * i + 1], 0x88);
    x[4 + i] = _mm512_shuffle_i32x4(y[4 * i + 2], y[4 * i + 3], 0x88);
    x[8 + i] = _mm512_shuffle_i32x4(y[4 * i], y[4 * i + 1], 0xdd);
    x[12 + i] = _mm512_shuffle_i32x4(y[4 * i + 2], y[4 * i + 3], 0xdd);
  }
}

// The same for whole blocks of 16 lines; the features done.
template <int kPair, class Line>
int turn_blocks(const Line* keys, int64_t line, int whole, int values, Line* to) {
  constexpr int kFeatures = 16 * kPair;
  const int64_t to_line = (int64_t)values * kPair;
  int d = 0;
  for (; d + kFeatures <= std::min(whole, values); d += kFeatures) {
    __m512i x[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {  // of pairs in the order that unpacking in lanes of 16 bytes undoes
      const int from = kPair == 1 ? i : i / 4 * 2 + i % 2 + (i % 4 / 2) * 8;
      x[i] = _mm512_loadu_si512(keys + (d / kPair + from) * line);
    }
    transpose(x);
    Line* at = to + (int64_t)d * kPair;
    if constexpr (kPair == 1) {
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) _mm512_storeu_si512(at + i * to_line, x[i]);
    } else {
#pragma GCC unroll 8
      for (int i = 0; i < 16; i += 2, at += to_line) {
        _mm512_storeu_si512(at, _mm512_unpacklo_epi16(x[i], x[i + 1]));
        _mm512_storeu_si512(at + kFeatures, _mm512_unpackhi_epi16(x[i], x[i + 1]));
      }
    }
  }
  return d;
}
#else
template <int kPair, class Line> int turn_blocks(const Line*, int64_t, int, int, Line*) { return 0; }
#endif

template <int kPair, class Line>
void turn(const Line* keys, int64_t line, int features, int values, const Line* odd, Line* to) {
  const int done = turn_blocks<kPair>(keys, line, features / kPair * kPair, values, to);
  turn_plainly<kPair>(keys, line, features, values, odd, done, to);
}

}  // namespace lsv
