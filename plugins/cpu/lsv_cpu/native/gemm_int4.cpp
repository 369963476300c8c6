// Rows times a panel of int4 weights: exact within a group of inputs, the groups added up in order in float.
#include <utility>

#include "gemm_integer.h"
#include "products.h"

namespace lsv {
namespace integer {
namespace {

constexpr int kLines = 8;  // of an int4 tile
constexpr int kScalesAhead = 512;  // floats between the scales in use and those being fetched

// One group's sums of kRows rows, begun with -8 times the sum of the row's codes: nibbles are values + 8.
template <int kRows> struct GroupSums {
  Ints sums[kRows][kVectors];

  void begin(const int32_t* starts) {
    for (int row = 0; row < kRows; ++row)
      for (int v = 0; v < kVectors; ++v) sums[row][v] = Ints{} + starts[row];
  }

  // The nibbles of a block of 64 inputs: low ones are inputs 0-31, high ones 32-63.
  template <bool kLow, bool kHigh> void add(const char* lines, const int8_t* codes) {
#pragma GCC unroll 4
    for (int i = 0; i < kLines; ++i, codes += kRows * 4) {
      Bytes low[kVectors], high[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        Bytes both = load_as<Bytes>(lines + i * 64 + line_offset(v, kTileBytes / 2));
        low[v] = low_nibbles(both);
        high[v] = high_nibbles(both);
      }
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row) {
        if (kLow) add_line(row, low, codes + row * 4);
        if (kHigh) add_line(row, high, codes + (kLines * kRows + row) * 4);
      }
    }
  }

  void add_line(int row, const Bytes* nibbles, const int8_t* codes) {
    Bytes quad = broadcast_quad(codes);
    for (int v = 0; v < kVectors; ++v) sums[row][v] = add_int4(sums[row][v], nibbles[v], quad);
  }

  void add_to(const float* scales, const float* row_scales, float* result) const {
    for (int v = 0; v < kVectors; ++v) {
      Floats scale = load(scales + v * kLanes);
      for (int row = 0; row < kRows; ++row) {
        float* to = result + row * kPanel + v * kLanes;
        store(to, load(to) + __builtin_convertvector(sums[row][v], Floats) * row_scales[row] * scale);
      }
    }
  }
};

template <int kRows, int kGroup> void multiply_rows(const Product& p, float* result) {
  for (int i = 0; i < kRows * kPanel; i += kLanes) store(result + i, Floats{});
  const char *lines = p.panel, *ahead = p.ahead;
  const int8_t* codes = p.codes;
  const float *scales = p.scales, *row_scales = p.row_scales;
  const int32_t* starts = p.starts;
  GroupSums<kRows> sums;
  auto begin = [&] { sums.begin(starts); };
  auto end = [&] {
    sums.add_to(scales, row_scales, result);
    __builtin_prefetch(scales + kScalesAhead);
    __builtin_prefetch(scales + kScalesAhead + 16);
    scales += kPanel, row_scales += kRows, starts += kRows;
  };
  for (int64_t at = 0; at < p.inputs; at += kBlockInputs, lines += kTileBytes, codes += kBlockInputs * kRows) {
    for (int i = 0; i < kLines; ++i, ahead += p.step) {
      __builtin_prefetch(ahead);
      __builtin_prefetch(ahead + 64);
    }
    if (at % kGroup == 0) begin();
    if constexpr (kGroup < kBlockInputs) {
      sums.template add<true, false>(lines, codes);
      end();
      begin();
      sums.template add<false, true>(lines, codes);
    } else {
      sums.template add<true, true>(lines, codes);
    }
    if ((at + kBlockInputs) % kGroup == 0) end();
  }
}

template <int kGroup, int... kLess> Kernel kernel_for(int rows, std::integer_sequence<int, kLess...>) {
  static constexpr Kernel kernels[] = {multiply_rows<kLess + 1, kGroup>...};
  return kernels[rows - 1];
}

}  // namespace

Kernel int4_kernel(int rows, int group) {
  auto less = std::make_integer_sequence<int, kMostRows>();
  if (group == 32) return kernel_for<32>(rows, less);
  return group == 64 ? kernel_for<64>(rows, less) : kernel_for<128>(rows, less);
}

}  // namespace integer
}  // namespace lsv
