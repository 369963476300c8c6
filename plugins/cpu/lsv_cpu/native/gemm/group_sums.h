// The whole-number sums of a group of inputs, of which the kernels add one group after the other up in float.
#pragma once

#include "dot.h"
#include "gemm/integer.h"
#include "gemm/products.h"

namespace lsv {
namespace integer {

template <int kRows, Ints (*add)(Ints sums, Bytes weights, Bytes row)> class GroupSums {
 public:
  // A group begins with what takes back the lift of the weights.
  void begin_group(const int32_t* starts) {
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums_[row][v] = Ints{} + starts[row];
  }

  // Lifted weights, those of the vectors from `first` on that are multiplied together, times four inputs of all rows.
  void add_line(const Bytes* weights, const int8_t* codes, int first) {
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      Bytes quad = broadcast_quad(codes + row * 4);
#pragma GCC unroll 4
      for (int v = 0; v < kTogether; ++v) sums_[row][first + v] = add(sums_[row][first + v], weights[v], quad);
    }
  }

  Floats found(int row, int v) const { return __builtin_convertvector(sums_[row][v], Floats); }

 private:
  static constexpr int kTogether = vectors_together(kRows);

  Ints sums_[kRows][kVectors];
};

}  // namespace integer
}  // namespace lsv
