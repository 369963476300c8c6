// The multiply-accumulate step of plain weights, by dtype and instruction set: a line of weights (16 outputs x 4 bytes
// of consecutive inputs) times those inputs of a row, added to the outputs' sums.
#pragma once

#include "gemm/gemm.h"
#include "vector.h"

namespace lsv {

#if defined(__AVX512F__)
constexpr int kTileRows = 12;  // rows of a register tile: 12 x 2 vectors of sums beside the weights in 32 registers
inline Floats multiply_add(Floats x, Floats y, Floats sum) {
  return (Floats)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)sum);
}
#elif defined(__AVX2__)
constexpr int kTileRows = 3;  // 3 x 4 of 16
inline Floats multiply_add(Floats x, Floats y, Floats sum) {
  return (Floats)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)sum);
}
#else
constexpr int kTileRows = 2;
inline Floats multiply_add(Floats x, Floats y, Floats sum) { return sum + x * y; }
#endif

// kInputs: inputs of a step. Input: the form the operand holds one in. Weights: those of kLanes outputs, ready to
// multiply. Every `add` is the same instructions in the same order wherever it is compiled: the row rule rests on it.
template <class T> struct Dot;

template <> struct Dot<float> {
  static constexpr int kInputs = 1;
  using Input = float;
  using Weights = Floats;
  static Weights weights(const float* from) { return load(from); }
  static void convert(const float* x, int size, Input* to) { std::memcpy(to, x, size * sizeof(float)); }
  static Floats add(Floats sum, const Weights& weights, const Input* x) {
    return multiply_add(weights, broadcast(*x), sum);
  }
};

// Two half-width inputs a step, multiplied as floats: the even ones of a line, then the odd ones.
template <class T> struct FloatPairs {
  static constexpr int kInputs = 2;
  using Input = float;
  struct Weights { Floats even, odd; };
  static void convert(const T* x, int size, Input* to) {
    for (int i = 0; i < size; i += kLanes) store(to + i, load(x + i));
  }
  static Floats add(Floats sum, const Weights& weights, const Input* x) {
    return multiply_add(weights.odd, broadcast(x[1]), multiply_add(weights.even, broadcast(x[0]), sum));
  }
};

#if defined(__AVX512BF16__)
template <> struct Dot<BFloat16> {
  static constexpr int kInputs = 2;
  using Input = BFloat16;
  using Weights = __m512i;
  static Weights weights(const BFloat16* from) { return load_as<__m512i>(from); }
  static void convert(const BFloat16* x, int size, Input* to) { std::memcpy(to, x, size * sizeof(BFloat16)); }
  static Floats add(Floats sum, const Weights& weights, const Input* x) {
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)weights, (__m512bh)_mm512_set1_epi32(load_as<int>(x)));
  }
};
#else
template <> struct Dot<BFloat16> : FloatPairs<BFloat16> {
  static Weights weights(const BFloat16* from) {
    Words pairs = load_as<Words>(from);
    return {(Floats)(pairs << 16), (Floats)(pairs & 0xffff0000u)};
  }
};
#endif

template <> struct Dot<Float16> : FloatPairs<Float16> {
  static Weights weights(const Float16* from) {
    Words pairs = load_as<Words>(from);
    return {widen(pairs), widen(pairs >> 16)};
  }

 private:
  static Floats widen(Words low) {  // the low half of each word
    Halves halves = __builtin_convertvector(low, Halves);
    return load((const Float16*)&halves);
  }
};

}  // namespace lsv
