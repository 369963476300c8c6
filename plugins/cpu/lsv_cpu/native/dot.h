// The multiply-accumulate step of plain weights, by dtype and instruction set: a line of weights (16 outputs x 4 bytes
// of consecutive inputs) times those inputs of a row, added to the outputs' sums.
#pragma once

#include "gemm/gemm.h"
#include "vector.h"

namespace lsv {

#if defined(__AVX512F__)
constexpr int kRegisters = 32, kTileRows = 12, kTileSums = 24;  // a register tile: 12 rows x 2 vectors of sums
inline Floats multiply_add(Floats x, Floats y, Floats sum) {
  return (Floats)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)sum);
}
#elif defined(__AVX2__)
constexpr int kRegisters = 16, kTileRows = 5, kTileSums = 10;  // g++ would get by with 6 rows, clang++ would not
inline Floats multiply_add(Floats x, Floats y, Floats sum) {
  return (Floats)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)sum);
}
#else
constexpr int kRegisters = 16, kTileRows = 2, kTileSums = 8;
inline Floats multiply_add(Floats x, Floats y, Floats sum) { return sum + x * y; }
#endif

// Vectors of a panel's sums that fit in a register tile with so many rows: all or half of them.
constexpr int vectors_together(int rows, int vectors) { return rows * vectors <= kTileSums ? vectors : vectors / 2; }

// A step has kInputs inputs, which an operand holds as Input. A line of weights gives kParts vectors, each multiplied by
// one vector of a row's: `spread` of the step's inputs or, with more parts than one, of the part's. Every `add` is the same
// instructions in the same order wherever it is compiled: the row rule rests on it.
template <class T> struct Dot;

template <> struct Dot<float> {
  static constexpr int kInputs = 1, kParts = 1;
  using Input = float;
  template <int kPart> static Floats part(const float* line) { return load(line); }
  static Floats spread(const Input* x) { return broadcast(*x); }
  static void convert(const float* x, int size, Input* to) { std::memcpy(to, x, size * sizeof(float)); }
  static Floats add(Floats sum, Floats weights, Floats x) { return multiply_add(weights, x, sum); }
};

// Two half-width inputs a step, multiplied as floats: the even ones of a line, then the odd ones.
template <class T> struct FloatPairs {
  static constexpr int kInputs = 2, kParts = 2;
  using Input = float;
  static Floats spread(const Input* x) { return broadcast(*x); }
  static void convert(const T* x, int size, Input* to) {
    for (int i = 0; i < size; i += kLanes) store(to + i, load(x + i));
  }
  static Floats add(Floats sum, Floats weights, Floats x) { return multiply_add(weights, x, sum); }
};

// The even or the odd ones of pairs of bfloat16.
template <int kPart> inline Floats widen_pairs(Words pairs) {
  return (Floats)(kPart ? pairs & 0xffff0000u : pairs << 16);
}

#if defined(__AVX512BF16__)
template <> struct Dot<BFloat16> {
  static constexpr int kInputs = 2, kParts = 1;
  using Input = BFloat16;
  template <int kPart> static __m512i part(const BFloat16* line) { return load_as<__m512i>(line); }
  static __m512i spread(const Input* x) { return _mm512_set1_epi32(load_as<int>(x)); }
  static void convert(const BFloat16* x, int size, Input* to) { std::memcpy(to, x, size * sizeof(BFloat16)); }
  static Floats add(Floats sum, __m512i weights, __m512i x) {
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)weights, (__m512bh)x);
  }
};
#else
template <> struct Dot<BFloat16> : FloatPairs<BFloat16> {
  template <int kPart> static Floats part(const BFloat16* line) { return widen_pairs<kPart>(load_as<Words>(line)); }
};
#endif

template <> struct Dot<Float16> : FloatPairs<Float16> {
  template <int kPart> static Floats part(const Float16* line) {
    Words pairs = load_as<Words>(line);
    Halves halves = __builtin_convertvector(kPart ? pairs >> 16 : pairs & 0xffff, Halves);
    return load((const Float16*)&halves);
  }
};

// A step of R rows by N vectors of sums. `line(n)`: what D::part takes of the n-th vector; `row(r)`: the inputs of a row.
// Part by part, and with the smaller of both sides held, so that sums and operands fit in 16 registers.
template <class D, int kPart, int R, int N, class Lines, class Rows>
[[gnu::always_inline]] inline void add_part(Floats (&sums)[R][N], const Lines& line, const Rows& row) {
  if constexpr (R < N) {
    decltype(D::spread(row(0))) x[R];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) x[r] = D::spread(row(r) + kPart);
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      auto weights = D::template part<kPart>(line(n));
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) sums[r][n] = D::add(sums[r][n], weights, x[r]);
    }
  } else {
    decltype(D::template part<kPart>(line(0))) weights[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) weights[n] = D::template part<kPart>(line(n));
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      auto x = D::spread(row(r) + kPart);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) sums[r][n] = D::add(sums[r][n], weights[n], x);
    }
  }
}

template <class D, int R, int N, class Lines, class Rows>
[[gnu::always_inline]] inline void add_step(Floats (&sums)[R][N], const Lines& line, const Rows& row) {
  add_part<D, 0>(sums, line, row);
  if constexpr (D::kParts == 2) add_part<D, 1>(sums, line, row);
}

}  // namespace lsv
