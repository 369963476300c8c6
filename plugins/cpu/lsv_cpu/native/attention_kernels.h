// Arithmetic of attention over one split of the keys: scores, softmax weights, weighted sums of values. What a row gets
// is the same whatever rows share its tile: every sum runs over features, or over keys, in order.
#pragma once

#include <algorithm>
#include <type_traits>

#include "dot.h"

namespace lsv {

constexpr int kSplit = 512;  // keys that are summed on their own, so that members can share a long context
constexpr int kGroup = 16;   // keys whose lines lie in one block, whatever its size
constexpr int kGroups = kSplit / kGroup;
constexpr int kScoreStride = kSplit + 16;  // floats from row to row: no power of two, for the sake of the cache's sets

#if defined(__AVX512F__)
constexpr int kBlockRows = 6;     // a register tile: 6 rows x 4 vectors of sums, of 32 registers
constexpr int kBlockVectors = 4;
#elif defined(__AVX2__)
constexpr int kBlockRows = 4;
constexpr int kBlockVectors = 2;
#else
constexpr int kBlockRows = 2;
constexpr int kBlockVectors = 2;
#endif
constexpr int kPanelKeys = kBlockVectors * kLanes;  // keys scored at a time

// Calls f(integral_constant R, at) for blocks of rows, all of R <= kBlockRows rows or one less.
template <int R, class F> void with_rows(int rows, int at, F& f) {
  if (rows == R) f(std::integral_constant<int, R>{}, at);
  else if constexpr (R > 1) with_rows<R - 1>(rows, at, f);
}
template <class F> void for_row_blocks(int rows, F&& f) {
  int blocks = (rows + kBlockRows - 1) / kBlockRows;
  for (int i = 0, at = 0; i < blocks; ++i) {
    int count = rows * (i + 1) / blocks - at;
    with_rows<kBlockRows>(count, at, f);
    at += count;
  }
}

// The last features of an odd dim, [kLanes], as a line whose second halves are zero.
template <class T> typename Dot<T>::Weights odd_line(const T* from) {
  T line[kLanes * Dot<T>::kInputs] = {};
  for (int i = 0; i < kLanes; ++i) line[i * Dot<T>::kInputs] = from[i];
  return Dot<T>::weights(line);
}

// scores[r][0..kPanelKeys) = q[r] . keys. q: [pairs][rows][pair]; keys: where each vector of keys has its first line.
template <class T, int R>
void score(const typename Dot<T>::Input* q, int rows, const T* const* keys, const T* const* odd, int pairs, int64_t line,
           float* scores) {
  using D = Dot<T>;
  Floats sums[R][kBlockVectors] = {};
  for (int p = 0; p < pairs; ++p) {
    for (int n = 0; n < kBlockVectors; ++n) {
      auto weights = D::weights(keys[n] + p * line);
      for (int r = 0; r < R; ++r) sums[r][n] = D::add(sums[r][n], weights, q + ((int64_t)p * rows + r) * D::kInputs);
    }
  }
  if (odd)
    for (int n = 0; n < kBlockVectors; ++n)
      for (int r = 0; r < R; ++r)
        sums[r][n] = D::add(sums[r][n], odd_line(odd[n]), q + ((int64_t)pairs * rows + r) * D::kInputs);
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < kBlockVectors; ++n) store(scores + r * kScoreStride + n * kLanes, sums[r][n]);
}

// sums[r] += weights[r][from..to) . values, for N vectors of features. values: where each group of keys has its first line.
template <class T, int R, int N>
void weigh(const typename Dot<T>::Input* weights, const T* const* values, int feature, int from, int to, int64_t line,
           float* sums, int stride) {
  using D = Dot<T>;
  constexpr int kPair = D::kInputs, kStride = kScoreStride * sizeof(float) / sizeof(typename D::Input);
  Floats s[R][N];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) s[r][n] = load(sums + r * stride + n * kLanes);
  for (int key = from; key < to;) {
    int end = std::min(to, (key / kGroup + 1) * kGroup);
    const T* at = values[key / kGroup] + key % kGroup / kPair * line + feature * kPair;
    for (; key < end; key += kPair, at += line)
      for (int n = 0; n < N; ++n) {
        auto vector = D::weights(at + n * kLanes * kPair);
        for (int r = 0; r < R; ++r) s[r][n] = D::add(s[r][n], vector, weights + r * kStride + key);
      }
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) store(sums + r * stride + n * kLanes, s[r][n]);
}

// The same for all features.
template <class T, int R>
void weigh_features(const typename Dot<T>::Input* weights, const T* const* values, int features, int from, int to,
                    int64_t line, float* sums, int stride) {
  int at = 0;
  for (; at + kBlockVectors * kLanes <= features; at += kBlockVectors * kLanes)
    weigh<T, R, kBlockVectors>(weights, values, at, from, to, line, sums + at, stride);
  if constexpr (kBlockVectors > 2)
    for (; at + 2 * kLanes <= features; at += 2 * kLanes)
      weigh<T, R, 2>(weights, values, at, from, to, line, sums + at, stride);
  for (; at < features; at += kLanes) weigh<T, R, 1>(weights, values, at, from, to, line, sums + at, stride);
}

inline Ints lane_numbers() {
  Ints lanes;
  for (int i = 0; i < kLanes; ++i) lanes[i] = i;
  return lanes;
}

// exp2 of one number, exactly 0 of minus infinity.
inline float shrink(float from, float to) {
  return from == to ? 1.0f : from == kMinusInfinity ? 0.0f : exp2(broadcast(from - to))[0];
}

constexpr float kLog2E = 1.44269504f;

// One row's scores of keys [first, last) of a split to weights, relative to their peak and rounded to what meets the values;
// those outside [from, to), whole vectors, become 0. `factor` takes scores to base 2. Gives peak and sum, base 2.
template <class Weight>
void soften(float* scores, int from, int to, int first, int last, float factor, float* peak, float* mass) {
  Weight* weights = (Weight*)scores;
  auto visible = [&](int at) {
    Ints key = lane_numbers() + at;
    return (key >= first) & (key < last);
  };
  auto weigh_one = [&](int at) { return exp2(multiply_add(load(scores + at), broadcast(factor), broadcast(-*peak))); };
  auto whole = [&](int at) { return at >= first && at + kLanes <= last; };
  Floats top = broadcast(kMinusInfinity);
  for (int at = from; at < to; at += kLanes) {
    Floats x = load(scores + at);
    if (!whole(at)) x = visible(at) ? x : broadcast(kMinusInfinity);
    top = larger(x, top);
  }
  *peak = first < last ? maximum(top) * factor : kMinusInfinity;
  Floats total = {};
  for (int at = from; at < to; at += kLanes) {
    Floats weight = {};
    if (whole(at)) weight = weigh_one(at);
    else if (at < last && at + kLanes > first) weight = visible(at) ? weigh_one(at) : Floats{};
    total += weight;
    store(weights + at, weight);
  }
  *mass = sum(total);
}

}  // namespace lsv
