// Rows times a panel of int8 weights.
#include <utility>

#include "gemm_integer.h"
#include "products.h"

namespace lsv {
namespace integer {
namespace {

template <int kRows> void multiply_rows(const Product& p, float* result) {
  Ints sums[kRows][kVectors] = {};
  const char *lines = p.panel, *ahead = p.ahead;
  const int8_t* codes = p.codes;
  for (int64_t at = 0; at < p.inputs; at += kBlockInputs, lines += 2 * kTileBytes) {
#pragma GCC unroll 4
    for (int i = 0; i < 16; ++i, ahead += p.step, codes += kRows * 4) {
      __builtin_prefetch(ahead);
      __builtin_prefetch(ahead + 64);
      Bytes weights[kVectors];
      for (int v = 0; v < kVectors; ++v) weights[v] = load_as<Bytes>(lines + i * 64 + line_offset(v, kTileBytes));
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row) {
        Bytes quad = broadcast_quad(codes + row * 4);
        for (int v = 0; v < kVectors; ++v) sums[row][v] = add_int8(sums[row][v], weights[v], quad);
      }
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

Kernel int8_kernel(int rows) { return kernel_for(rows, std::make_integer_sequence<int, kMostRows>()); }

}  // namespace integer
}  // namespace lsv
