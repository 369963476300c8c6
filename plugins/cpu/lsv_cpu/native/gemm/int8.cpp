// Rows times a panel of int8 weights.
#include <utility>

#include "gemm/group_sums.h"

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

// A block of 64 inputs.
template <int kRows>
void add_block(GroupSums<kRows, add_lifted>& sums, const char* lines, const int8_t* codes, Ahead& ahead) {
  constexpr int kTogether = vectors_together(kRows);
#pragma GCC unroll 4
  for (int first = 0; first < kVectors; first += kTogether)
#pragma GCC unroll 4
    for (int i = 0; i < kLines; ++i) {
      Bytes weights[kTogether];
#pragma GCC unroll 4
      for (int v = 0; v < kTogether; ++v) {
        weights[v] = lifted(load_as<Bytes>(lines + i * kLine + line_offset(first + v, kTileBytes)));
        if (v % kVectorsOfLine == 0) ahead.fetch();
      }
      sums.add_line(weights, codes + i * kRows * 4, first);
    }
}

// The same with a scale for each group of a row's inputs. With many rows the compiler keeps what all groups so far have
// come to in memory, and in registers one group's sums of as many rows as there would be without groups.
template <int kRows> void multiply_groups(const Product& p, float* result) {
  const char* lines = p.panel;
  const int8_t* codes = p.codes;
  const float* row_scales = p.row_scales;
  const int32_t* starts = p.starts;
  Ahead ahead = p.ahead;
  Floats total[kRows][kVectors] = {};
  for (int64_t begin = 0; begin < p.inputs; begin += p.group, row_scales += kRows, starts += kRows) {
    const int64_t end = begin + p.group < p.inputs ? begin + p.group : p.inputs;
    GroupSums<kRows, add_lifted> sums;
    sums.begin_group(starts);
    for (int64_t at = begin; at < end; at += kBlockInputs, lines += 2 * kTileBytes, codes += kBlockInputs * kRows)
      add_block(sums, lines, codes, ahead);
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        total[row][v] = multiply_add(sums.found(row, v), broadcast(row_scales[row]), total[row][v]);
  }
  for (int v = 0; v < kVectors; ++v)
    for (int row = 0; row < kRows; ++row)
      store(result + row * kPanel + v * kLanes, total[row][v] * load(p.scales + v * kLanes));
}

template <int... kLess> Kernel kernel_for(int rows, bool grouped, std::integer_sequence<int, kLess...>) {
  static constexpr Kernel whole[] = {multiply_rows<kLess + 1>...}, groups[] = {multiply_groups<kLess + 1>...};
  return (grouped ? groups : whole)[rows - 1];
}

}  // namespace

Kernel int8_kernel(int rows, bool grouped) {
  return kernel_for(rows, grouped, std::make_integer_sequence<int, kMostRowsInt8>());
}

}  // namespace integer
}  // namespace lsv
