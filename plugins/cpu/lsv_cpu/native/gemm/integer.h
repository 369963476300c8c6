// What the kernels for int8 and int4 weights share: the form of their rows, and what they are asked.
#pragma once

#include "gemm/gemm.h"
#include "vector.h"

namespace lsv {
namespace integer {

#if defined(__AVX512F__)
constexpr int kMostRowsInt8 = 12;  // rows a kernel takes at once: 12 x 2 accumulators of the 32 registers
constexpr int kMostRowsInt4 = 6;   // 6 x 2 of a group, and as many of all groups
#elif defined(__AVX2__)
constexpr int kMostRowsInt8 = 4;  // 4 x 2, of 16
constexpr int kMostRowsInt4 = 4;
#else
constexpr int kMostRowsInt8 = 2;
constexpr int kMostRowsInt4 = 2;
#endif
constexpr int kMostRows = kMostRowsInt8;
constexpr int kFewRows = 4;
constexpr int kVectors = kPanel / kLanes;
constexpr int kVectorsOfLine = 16 / kLanes;
constexpr int kBlockInputs = 64;  // of a tile
constexpr int kLine = 64;         // bytes of a line of the cache

// Scales that each row has. The last group of int8 may be short of inputs, down to one tile.
inline int64_t groups_of(const Linear& linear) {
  return linear.group ? (inputs_padded(linear) + linear.group - 1) / linear.group : 1;
}

inline int most_rows(const Linear& linear) { return linear.format == kInt4 ? kMostRowsInt4 : kMostRowsInt8; }

// Vectors of a panel that are multiplied side by side. With many rows both tiles are: what is loaded of a row serves
// both. With few, which wait for the memory, one comes after the other as they lie: processors fetch one stream ahead
// far better than two that alternate.
constexpr int vectors_together(int rows) { return rows > kFewRows ? kVectors : kVectors / 2; }

// Rows fall into as few blocks of at most `most` as possible, as even as possible.
struct Blocks {
  Blocks(int64_t rows, int64_t most) : rows(rows), count((rows + most - 1) / most) {}

  int64_t first(int64_t block) const { return rows * block / count; }
  int rows_of(int64_t block) const { return (int)(first(block + 1) - first(block)); }

  const int64_t rows, count;
};

// Quantised rows. The rows of a block lie interleaved, for each of them in turn four inputs' codes; so do its scales
// for each group, and where there are groups the sums that take back what has been added to weights.
struct Operand {
  Operand(const Linear& linear, int64_t rows, void* data)
      : blocks(rows, most_rows(linear)), groups(groups_of(linear)), inputs(inputs_padded(linear)), codes((int8_t*)data),
        scales((float*)(codes + rows * inputs)), starts((int32_t*)(scales + rows * groups)),
        spare((char*)(starts + rows * groups)), spare_bytes(most_rows(linear) * inputs * (int64_t)sizeof(float)) {}

  int64_t bytes(int members) const { return spare + spare_bytes * members - (char*)codes; }

  const Blocks blocks;
  const int64_t groups, inputs;
  int8_t* codes;
  float* scales;
  int32_t* starts;
  char* spare;  // a block of rows for each member
  int64_t spare_bytes;
};

// What to fetch into the cache meanwhile: a line for each line that is read, and on by `step` bytes.
struct Ahead {
  const char* at;
  int64_t step;

  void fetch() {
    __builtin_prefetch(at);
    at += step;
  }
};

// A block of rows times a panel, before bias and gate.
struct Product {
  const char* panel;
  const float* scales;   // of the panel
  const int32_t* sums;
  const int8_t* codes;   // of the block
  const float* row_scales;
  const int32_t* starts;
  int64_t inputs, group;
  Ahead ahead;
};

using Kernel = void (*)(const Product&, float* result);  // result: [rows][kPanel]
Kernel int8_kernel(int rows, bool grouped);               // for 1 to kMostRowsInt8 rows
Kernel int4_kernel(int rows, int group);

}  // namespace integer
}  // namespace lsv
