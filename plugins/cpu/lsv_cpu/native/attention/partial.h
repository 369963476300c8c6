// What is known of a row when some of its keys have been summed, and how that of other keys comes to it.
#pragma once

#include <algorithm>

#include "attention/attention.h"
#include "attention/kernels.h"

namespace lsv {

constexpr int64_t kLine = 64;  // bytes of a cache line

inline int round_up(int n, int to) { return (n + to - 1) / to * to; }
inline int64_t whole_lines(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// Softmax-weighted sums over some keys, not yet divided: of exp2(score - peak), with values and, behind these in a row,
// without: one sum for each lane.
struct Partial {
  float *sums, *peak;  // [rows][stride], [rows]

  static int stride(const Layer& layer) { return round_up(layer.values(), kLanes) + kLanes; }
  static int64_t floats(int64_t rows, int stride) { return rows * (stride + 1); }
  static Partial at(float* place, int64_t rows, int stride) { return {place, place + rows * stride}; }
};

inline void rescale(float* sums, int stride, float factor) {
  for (int d = 0; d < stride; d += kLanes) store(sums + d, load(sums + d) * factor);
}

// Adds one row's sums over later keys.
inline void merge(Partial into, int to, Partial part, int from, int stride) {
  float peak = std::max(into.peak[to], part.peak[from]);
  float a = shrink(into.peak[to], peak), b = shrink(part.peak[from], peak);
  float *sums = into.sums + (int64_t)to * stride, *more = part.sums + (int64_t)from * stride;
  for (int d = 0; d < stride; d += kLanes)
    store(sums + d, multiply_add(load(more + d), broadcast(b), load(sums + d) * a));
  into.peak[to] = peak;
}

}  // namespace lsv
