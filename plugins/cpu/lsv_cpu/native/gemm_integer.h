// What the kernels for int8 and int4 weights share: the form of their rows, and what they are asked.
#pragma once

#include "gemm.h"
#include "vector.h"

namespace lsv {
namespace integer {

#if defined(__AVX512F__)
constexpr int kMostRows = 12;  // rows a kernel takes at once: 12 x 2 accumulators of the 32 registers
#else
constexpr int kMostRows = 2;
#endif
constexpr int kVectors = kPanel / kLanes;
constexpr int kBlockInputs = 64;  // of a tile

inline int64_t groups_of(const Linear& linear) { return linear.group ? inputs_padded(linear) / linear.group : 1; }

// Rows fall into as few blocks of at most kMostRows as possible, as even as possible.
struct Blocks {
  explicit Blocks(int64_t rows) : rows(rows), count((rows + kMostRows - 1) / kMostRows) {}

  int64_t first(int64_t block) const { return rows * block / count; }
  int rows_of(int64_t block) const { return (int)(first(block + 1) - first(block)); }

  const int64_t rows, count;
};

// Quantised rows. The rows of a block lie interleaved, for each of them in turn four inputs' codes; so do its scales
// for each group, and for int4 the sums that take back the 8 in nibbles.
struct Operand {
  Operand(const Linear& linear, int64_t rows, void* data)
      : blocks(rows), groups(groups_of(linear)), inputs(inputs_padded(linear)), codes((int8_t*)data),
        scales((float*)(codes + rows * inputs)), starts((int32_t*)(scales + rows * groups)),
        spare((char*)(starts + rows * groups)), spare_bytes(kMostRows * inputs * (int64_t)sizeof(float)) {}

  int64_t bytes() const { return spare + spare_bytes * team_size() - (char*)codes; }

  const Blocks blocks;
  const int64_t groups, inputs;
  int8_t* codes;
  float* scales;
  int32_t* starts;
  char* spare;  // a block of rows for each member
  int64_t spare_bytes;
};

// A block of rows times a panel, before bias and gate.
struct Product {
  const char* panel;
  const float* scales;   // of the panel
  const int32_t* sums;
  const int8_t* codes;   // of the block
  const float* row_scales;
  const int32_t* starts;
  int64_t inputs;
  const char* ahead;     // what to prefetch: two lines of the cache for each two that are read, and on by `step` bytes
  int64_t step;
};

using Kernel = void (*)(const Product&, float* result);  // result: [rows][kPanel]
Kernel int8_kernel(int rows);                             // for 1 to kMostRows rows
Kernel int4_kernel(int rows, int group);

}  // namespace integer
}  // namespace lsv
