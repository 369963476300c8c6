// What the ranks of one machine hold, exchanged through memory that all of them see.
#pragma once

#include <cstdint>

#include "team.h"

namespace lsv {

// One rank's view of the others; lsv_cpu.communicator fills it. All ranks make the same calls in the same order.
struct Ranks {
  int32_t rank, size;
  int64_t capacity;  // bytes of a rank's place
  char* memory;      // a line of 64 bytes for each rank, zero in the beginning; then places [2][size][capacity]
  int64_t meetings;  // so far
  double patience;   // seconds that a rank waits for another
  int32_t missing;   // 1 + the rank that did not come in time: from then on nobody waits, and no result is right
};

inline int64_t lines_bytes(const Ranks& ranks) { return 64 * (int64_t)ranks.size; }

// out = the sum of all ranks' x, added in rank order in float, + bias[i % width] + residual, rounded once; bias and
// residual may be null, and residual may be `out`. A barrier must follow before the output is read.
void sum_ranks(Member& me, Ranks& ranks, int32_t dtype, const void* x, int64_t count, const void* bias, int64_t width,
               const void* residual, void* out);

}  // namespace lsv
