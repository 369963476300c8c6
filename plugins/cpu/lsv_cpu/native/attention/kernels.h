// Arithmetic of attention over one split of the keys: scores, softmax weights, weighted sums of values. What a row gets
// is the same whatever rows share its tile: every sum runs over features, or over keys, in order.
#pragma once

#include <algorithm>
#include <type_traits>

#include "dot.h"

namespace lsv {

constexpr int kSplit = 512;  // keys that are summed on their own, so that members can share a long context
constexpr int kPanelKeys = 128;  // keys that are scored and weighed before those after them; no block is larger
constexpr int kGroup = 16;   // keys whose lines lie in one block, whatever its size
constexpr int kScoreStride = kPanelKeys + 16;  // floats from row to row: no power of two, for the cache's sets

constexpr int kBlockRows = kTileRows;  // of a register tile
constexpr int kBlockVectors = 32 / kLanes;
constexpr int kScoreKeys = kBlockVectors * kLanes;  // keys scored at a time

// Lines of bfloat16 times floats: what codes are widened to where rows have more bits than that.
struct WideDot : FloatPairs<BFloat16> {
  template <int kPart> static Floats part(const BFloat16* line) { return widen_pairs<kPart>(load_as<Words>(line)); }
};

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

// What is fetched meanwhile, into the second-level cache, which has more misses under way than the first: for each vector
// of keys as many lines as it has pairs of features, or null.
constexpr int kSecondLevel = 2;  // for __builtin_prefetch
struct Ahead {
  const char* const* lines;
  int64_t line;  // bytes
};

// The last features of an odd dim, [kLanes], as a line whose second halves are zero.
template <class D, class Line> void pad_odd_line(const Line* from, Line* line) {
  std::fill_n(line, kLanes * D::kInputs, Line{});
  for (int i = 0; i < kLanes; ++i) line[i * D::kInputs] = from[i];
}

// scores[r][0..N * kLanes) = q[r] . keys. q: [pairs][rows][pair]; keys: where each vector of keys has its first line.
template <class D, int R, int N, class Line>
void score(const typename D::Input* q, int rows, const Line* const* keys, const Line* const* odd, int pairs, int64_t line,
           float* scores, Ahead ahead) {
  Floats sums[R][N];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) sums[r][n] = Floats{};
  for (int p = 0; p < pairs; ++p) {
    if (ahead.lines)
      for (int n = 0; n < N; ++n) __builtin_prefetch(ahead.lines[n] + p * ahead.line, 0, kSecondLevel);
    const typename D::Input* pair = q + (int64_t)p * rows * D::kInputs;
    add_step<D>(sums, [&](int n) { return keys[n] + p * line; }, [&](int r) { return pair + r * D::kInputs; });
  }
  if (odd) {
    Line last[N][kLanes * D::kInputs];
    for (int n = 0; n < N; ++n) pad_odd_line<D>(odd[n], last[n]);
    const typename D::Input* pair = q + (int64_t)pairs * rows * D::kInputs;
    add_step<D>(sums, [&](int n) { return last[n]; }, [&](int r) { return pair + r * D::kInputs; });
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) store(scores + r * kScoreStride + n * kLanes, sums[r][n]);
}

// The same for kScoreKeys keys.
template <class D, int R, class Line>
void score_keys(const typename D::Input* q, int rows, const Line* const* keys, const Line* const* odd, int pairs,
                int64_t line, float* scores, Ahead ahead) {
  constexpr int N = vectors_together(R, kBlockVectors);
  for (int n = 0; n < kBlockVectors; n += N)
    score<D, R, N>(q, rows, keys + n, odd ? odd + n : nullptr, pairs, line, scores + n * kLanes,
                   {ahead.lines ? ahead.lines + n : nullptr, ahead.line});
}

// sums[r] += weights[r][from..to) . values, for N vectors of features. values: where each group of keys has its first line.
template <class D, int R, int N, class Line>
void weigh(const typename D::Input* weights, const Line* const* values, int feature, int from, int to, int64_t line,
           float* sums, int stride, Ahead ahead) {
  constexpr int kPair = D::kInputs, kStride = kScoreStride * sizeof(float) / sizeof(typename D::Input);
  Floats s[R][N];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) s[r][n] = load(sums + r * stride + n * kLanes);
  for (int key = from; key < to;) {
    int end = std::min(to, (key / kGroup + 1) * kGroup);
    const Line* at = values[key / kGroup] + key % kGroup / kPair * line + feature * kPair;
    for (; key < end; key += kPair, at += line) {
      if (ahead.lines)
        for (int n = 0; n < N; ++n) {
          int row = (feature + n * kLanes + key % kLanes) / kPair;
          __builtin_prefetch(ahead.lines[key / kLanes] + row * ahead.line, 0, kSecondLevel);
        }
      add_step<D>(s, [&](int n) { return at + n * kLanes * kPair; }, [&](int r) { return weights + r * kStride + key; });
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) store(sums + r * stride + n * kLanes, s[r][n]);
}

// The same for all features.
template <class D, int R, class Line>
void weigh_features(const typename D::Input* weights, const Line* const* values, int features, int from, int to,
                    int64_t line, float* sums, int stride, Ahead ahead) {
  constexpr int N = vectors_together(R, kBlockVectors);
  int at = 0;
  for (; at + N * kLanes <= features; at += N * kLanes)
    weigh<D, R, N>(weights, values, at, from, to, line, sums + at, stride, ahead);
  for (; at < features; at += kLanes) weigh<D, R, 1>(weights, values, at, from, to, line, sums + at, stride, ahead);
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

// One row's scores [0, size) of a panel, whole vectors, to weights, relative to the peak of all its panels so far and
// rounded to what meets the values; keys outside [first, last) get 0. `factor` takes scores to base 2. Adds to the sums
// of the weights, a lane each; gives what earlier sums shrink by. `scales` are those of the values, or null.
template <class Weight>
float soften(float* scores, int size, int first, int last, float factor, const float* scales, float* peak,
             float* mass) {
  Weight* weights = (Weight*)scores;
  auto visible = [&](int at) {
    Ints key = lane_numbers() + at;
    return (key >= first) & (key < last);
  };
  auto whole = [&](int at) { return at >= first && at + kLanes <= last; };
  Floats top = broadcast(kMinusInfinity);
  for (int at = 0; at < size; at += kLanes) {
    Floats x = load(scores + at);
    if (!whole(at)) x = visible(at) ? x : broadcast(kMinusInfinity);
    top = larger(x, top);
  }
  const float before = *peak, now = first < last ? std::max(before, maximum(top) * factor) : before;
  const float scale = shrink(before, now);
  Floats total = load(mass) * scale;
  for (int at = 0; at < size; at += kLanes) {
    Floats weight = {};
    if (at < last && at + kLanes > first) {
      weight = exp2(multiply_add(load(scores + at), broadcast(factor), broadcast(-now)));
      if (!whole(at)) weight = visible(at) ? weight : Floats{};
      total += weight;
      if (scales) weight *= load(scales + at);
      if (scales && !whole(at)) weight = visible(at) ? weight : Floats{};
    }
    store(weights + at, weight);
  }
  store(mass, total);
  *peak = now;
  return scale;
}

}  // namespace lsv
