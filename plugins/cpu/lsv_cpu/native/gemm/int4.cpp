// Rows times a panel of int4 weights: exact within a group of inputs, the groups added up in order in float.
#include <utility>

#include "gemm/group_sums.h"

namespace lsv {
namespace integer {
namespace {

constexpr int kLines = 8;          // of an int4 tile
constexpr int kScalesAhead = 512;  // floats between the scales in use and those being fetched

// The sums of kRows rows, both those of a group in whole numbers and those of all groups in float: that leaves room
// in registers for half as many rows as with int8, and nothing is loaded or stored between groups.
template <int kRows> class Sums : public GroupSums<kRows, add_int4> {
 public:
  // The nibbles of a block of 64 inputs: low ones are inputs 0-31, high ones 32-63.
  template <bool kLow, bool kHigh> void add(const char* lines, const int8_t* codes, Ahead& ahead) {
#pragma GCC unroll 4
    for (int first = 0; first < kVectors; first += kTogether)
#pragma GCC unroll 4
      for (int i = 0; i < kLines; ++i) {
        const int8_t *low = codes + i * kRows * 4, *high = low + kLines * kRows * 4;
        Bytes both[kTogether], nibbles[kTogether];
#pragma GCC unroll 4
        for (int v = 0; v < kTogether; ++v) {
          both[v] = load_as<Bytes>(lines + i * kLine + line_offset(first + v, kTileBytes / 2));
          if (kLow && v % kVectorsOfLine == 0) ahead.fetch();
        }
        if (kLow) {
#pragma GCC unroll 4
          for (int v = 0; v < kTogether; ++v) nibbles[v] = low_nibbles(both[v]);
          this->add_line(nibbles, low, first);
        }
        if (kHigh) {
#pragma GCC unroll 4
          for (int v = 0; v < kTogether; ++v) nibbles[v] = high_nibbles(both[v]);
          this->add_line(nibbles, high, first);
        }
      }
  }

  void end_group(const float* scales, const float* row_scales) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Floats scale = load(scales + v * kLanes);
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        Floats sums = this->found(row, v) * row_scales[row];
        total_[row][v] = multiply_add(sums, scale, total_[row][v]);
      }
    }
  }

  void store_to(float* result) const {
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) store(result + row * kPanel + v * kLanes, total_[row][v]);
  }

 private:
  static constexpr int kTogether = vectors_together(kRows);

  Floats total_[kRows][kVectors] = {};
};

template <int kRows, int kGroup> void multiply_rows(const Product& p, float* result) {
  const char* lines = p.panel;
  const int8_t* codes = p.codes;
  const float *scales = p.scales, *row_scales = p.row_scales;
  const int32_t* starts = p.starts;
  Ahead ahead = p.ahead;
  Sums<kRows> sums;
  auto begin = [&] { sums.begin_group(starts); };
  auto end = [&] {
    sums.end_group(scales, row_scales);
    __builtin_prefetch(scales + kScalesAhead);
    __builtin_prefetch(scales + kScalesAhead + 16);
    scales += kPanel, row_scales += kRows, starts += kRows;
  };
  for (int64_t at = 0; at < p.inputs; at += kBlockInputs, lines += kTileBytes, codes += kBlockInputs * kRows) {
    if (at % kGroup == 0) begin();
    if constexpr (kGroup < kBlockInputs) {
      sums.template add<true, false>(lines, codes, ahead);
      end();
      begin();
      sums.template add<false, true>(lines, codes, ahead);
    } else {
      sums.template add<true, true>(lines, codes, ahead);
    }
    if ((at + kBlockInputs) % kGroup == 0) end();
  }
  sums.store_to(result);
}

template <int kGroup, int... kLess> Kernel kernel_for(int rows, std::integer_sequence<int, kLess...>) {
  static constexpr Kernel kernels[] = {multiply_rows<kLess + 1, kGroup>...};
  return kernels[rows - 1];
}

}  // namespace

Kernel int4_kernel(int rows, int group) {
  auto less = std::make_integer_sequence<int, kMostRowsInt4>();
  if (group == 32) return kernel_for<32>(rows, less);
  return group == 64 ? kernel_for<64>(rows, less) : kernel_for<128>(rows, less);
}

}  // namespace integer
}  // namespace lsv
