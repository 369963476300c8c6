// Rows times a panel of int8 weights.
#include <utility>

#include "gemm/integer.h"
#include "gemm/products.h"

namespace lsv {
namespace integer {
namespace {

constexpr int kLines = 16;  // of an int8 tile

template <int kRows> void multiply_rows(const Product& p, float* result) {
  constexpr int kTogether = vectors_together(kRows);
  Ints sums[kRows][kVectors] = {};
  const char* lines = p.panel;
  const int8_t* codes = p.codes;
  Ahead ahead = p.ahead;
  for (int64_t at = 0; at < p.inputs; at += kBlockInputs, lines += 2 * kTileBytes, codes += kBlockInputs * kRows)
#pragma GCC unroll 4
    for (int first = 0; first < kVectors; first += kTogether)
#pragma GCC unroll 4
      for (int i = 0; i < kLines; ++i) {
        Bytes weights[kTogether];
#pragma GCC unroll 4
        for (int v = 0; v < kTogether; ++v) {
          weights[v] = load_as<Bytes>(lines + i * kLine + line_offset(first + v, kTileBytes));
          if (v % kVectorsOfLine == 0) ahead.fetch();
        }
#pragma GCC unroll 16
        for (int row = 0; row < kRows; ++row) {
          Bytes quad = broadcast_quad(codes + (i * kRows + row) * 4);
#pragma GCC unroll 4
          for (int v = 0; v < kTogether; ++v) sums[row][first + v] = add_int8(sums[row][first + v], weights[v], quad);
        }
      }
  for (int v = 0; v < kVectors; ++v) {
    Ints shifted = load_as<Ints>(p.sums + v * kLanes) * kRowFlip;
    Floats scale = load(p.scales + v * kLanes);
    for (int row = 0; row < kRows; ++row)
      store(result + row * kPanel + v * kLanes,
            __builtin_convertvector(sums[row][v] - shifted, Floats) * p.row_scales[row] * scale);
  }
}

template <int... kLess> Kernel kernel_for(int rows, std::integer_sequence<int, kLess...>) {
  static constexpr Kernel kernels[] = {multiply_rows<kLess + 1>...};
  return kernels[rows - 1];
}

}  // namespace

Kernel int8_kernel(int rows) { return kernel_for(rows, std::make_integer_sequence<int, kMostRowsInt8>()); }

}  // namespace integer
}  // namespace lsv
