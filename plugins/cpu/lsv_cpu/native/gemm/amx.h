// What the tile kernels share: the form of their rows, and the innermost piece of work, a pass.
#pragma once

#include <algorithm>

#include "gemm/integer.h"
#include "gemm/tiles.h"

namespace lsv {
namespace amx {

constexpr int kBlock = tiles::kRows;   // rows of a tile
constexpr int kPair = 2 * kBlock;      // rows that are multiplied at once
constexpr int kLine = tiles::kLineBytes;
constexpr int kSumsStride = kPanel * 4;  // bytes between the sums of two rows

inline int64_t up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// Part `i` of 0..n in `parts` equal ones, cut at multiples of `unit`.
inline Range part_of(int64_t n, int64_t parts, int64_t i, int64_t unit) {
  int64_t units = (n + unit - 1) / unit;
  return {std::min(n, units * i / parts * unit), std::min(n, units * (i + 1) / parts * unit)};
}

// The sums of one or two blocks of rows with a panel, in tiles 0 to 3: [rows][kPanel].
template <int kBlocks> void zero_sums() {
  tiles::zero<0>();
  tiles::zero<1>();
  if (kBlocks == 1) return;
  tiles::zero<2>();
  tiles::zero<3>();
}

template <int kBlocks> void store_sums(void* to) {
  float* sums = (float*)to;
  tiles::store<0>(sums, kSumsStride);
  tiles::store<1>(sums + kBlock, kSumsStride);
  if (kBlocks == 1) return;
  tiles::store<2>(sums + kBlock * kPanel, kSumsStride);
  tiles::store<3>(sums + kBlock * kPanel + kBlock, kSumsStride);
}

using integer::groups_of;
inline int64_t line_inputs(const Linear& linear) { return linear.format == kPlain ? 32 : 64; }

// A panel's sums with the rows of one or two blocks over some tiles of the inputs. Sums are [rows][kPanel], float or
// (int8) int32; what they are at the start counts unless the pass is the first.
struct Pass {
  const char* rows[2];  // first tile of each block; one is null
  const char* weights;  // first tile of the panel
  int64_t tiles;
  bool first;
  float* sums;
  const char* ahead;  // what is fetched into the second-level cache meanwhile, `lines` cache lines with each tile
  int lines;
};

// A pass over rows that have a scale for each group of inputs, the last of which may be short. Its sums are floats:
// each group's product, scaled.
struct GroupPass {
  Pass pass;
  int group;
  const float* row_scales[2];  // of each block, [groups][kBlock]
};

// Passes over int4 weights unpack them to int8 on the way, or find them unpacked by an earlier pass.
struct Int4Pass : GroupPass {
  bool unpack;
  int8_t* unpacked;     // kInt4PassTiles int8 tiles of the panel
  const float* scales;  // of the panel, [groups][kPanel]
};
constexpr int64_t kInt4PassTiles = 14;

// `streaming`: the weights come from memory and are used once; they are fetched a little ahead.
void pass_bf16(const Pass& pass, bool streaming);
void pass_int8(const Pass& pass, bool streaming);
void pass_int8_groups(const GroupPass& pass, int rows, bool streaming);  // sums are yet to be scaled by output
void pass_int4(const Int4Pass& pass, int rows);

// One block with two panels, whole rows at once: two streams of weights get more out of the memory than one.
void stream_bf16(const char* rows, const char* const weights[2], int64_t count, float* const sums[2]);
void stream_int8(const char* rows, const char* const weights[2], int64_t count, float* const sums[2]);

}  // namespace amx
}  // namespace lsv
