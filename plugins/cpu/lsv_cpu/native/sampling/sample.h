// A row of logits in blocks: their maxima, weights and sums, and selection without sorting. Weights are those of
// lsv_runtime/nn/sample_ops.py to the bit: products and sums are rounded one by one, so what includes this file is compiled with
// -ffp-contract=off, without which compilers make fused multiply-adds of them.
#pragma once

#include <cstdint>

#include "team.h"
#include "vector.h"

namespace lsv {

constexpr int kBlock = 1024;  // tokens that are summed together; the halves of their weights fit into 32 bits
constexpr int kWeightBits = 40;
constexpr int kBins = 2048;

inline int64_t blocks_of(int64_t size) { return (size + kBlock - 1) / kBlock; }

// One row's working memory; members that share a row share it. Floats have room for whole blocks and a vector.
struct Workspace {
  float* maxima;     // of each block; NaN where it holds a number that is not finite
  int64_t* sums;     // of each block's weights
  int64_t* counts;   // of some of each block's tokens
  int64_t* bins;     // [kBins]
  float* weights;    // of all tokens, 0 beyond the last one
  float* spare;      // edited logits, or candidates
  float* threshold;  // what one member finds for all

  static int64_t bytes(int64_t size) { return 2 * floats(size) * 4 + kBins * 8 + lines(size) * 20 + 64; }

  Workspace(char* memory, int64_t size) {
    weights = (float*)memory;
    spare = weights + floats(size);
    bins = (int64_t*)(spare + floats(size));
    sums = bins + kBins;
    counts = sums + lines(size);
    maxima = (float*)(counts + lines(size));
    threshold = maxima + lines(size);
  }

 private:
  static int64_t lines(int64_t size) { return (blocks_of(size) + 15) / 16 * 16; }
  static int64_t floats(int64_t size) { return (blocks_of(size) + 1) * kBlock; }
};

// f(members, row, their workspace) for each row, whose members then meet its barriers. Every member takes whole rows
// as long as there is one for each; the rows left are shared by all. `memory` has a workspace for each member.
template <class F> void for_rows(Member& me, int64_t rows, int64_t size, char* memory, F&& f) {
  int64_t whole_rows = rows / me.size * me.size;
  if (whole_rows) {
    Workspace own(memory + me.rank * Workspace::bytes(size), size);
    Member alone(0, 1);
    for (int64_t row = me.claim(); row < whole_rows; row = me.claim()) f(alone, row, own);
    me.barrier();
  }
  Workspace shared(memory, size);
  for (int64_t row = whole_rows; row < rows; ++row) {
    f(me, row, shared);
    me.barrier();
  }
}

// f(block, first token, tokens) for this member's blocks, then a barrier.
template <class F> void for_blocks(Member& me, int64_t size, F&& f) {
  Range mine = me.share(blocks_of(size));
  for (int64_t block = mine.begin; block < mine.end; ++block) {
    int64_t first = block * kBlock;
    f(block, first, (int)(size - first < kBlock ? size - first : kBlock));
  }
  me.barrier();
}

// The largest of `count` numbers; with `finite` NaN unless all are finite.
template <class T> float maximum_of(const T* x, int count, bool finite) {
  constexpr int kStreams = 4;
  Floats best[kStreams], poison[kStreams] = {};
  for (Floats& one : best) one = broadcast(kMinusInfinity);
  auto take = [&](Floats value, int stream) {
    best[stream] = value > best[stream] ? value : best[stream];
    poison[stream] += value * 0.0f;  // NaN from the first number on that is not finite
  };
  int at = 0;
  for (; at + kStreams * kLanes <= count; at += kStreams * kLanes)
    for (int stream = 0; stream < kStreams; ++stream) take(load(x + at + stream * kLanes), stream);
  for (; at + kLanes <= count; at += kLanes) take(load(x + at), 0);
  if (at < count) {
    T padded[kLanes];
    for (T& one : padded) one = x[at];
    std::memcpy(padded, x + at, (count - at) * sizeof(T));
    take(load(padded), 0);
  }
  for (int stream = 1; stream < kStreams; ++stream) {
    best[0] = best[stream] > best[0] ? best[stream] : best[0];
    poison[0] += poison[stream];
  }
  return maximum(best[0]) + (finite ? sum(poison[0]) : 0.0f);
}

// Fills in the maxima of a row's blocks; the largest, or NaN if one of them is.
template <class T> float find_best(Member& me, const T* x, int64_t size, bool finite, Workspace& work) {
  for_blocks(me, size, [&](int64_t block, int64_t first, int count) {
    work.maxima[block] = maximum_of(x + first, count, finite);
  });
  float best = kMinusInfinity;
  for (int64_t block = 0; block < blocks_of(size); ++block) {
    float one = work.maxima[block];
    if (!(one <= best)) best = one;
    if (one != one) break;
  }
  return best;
}

inline int64_t total_of(const Workspace& work, int64_t size) {
  int64_t total = 0;
  for (int64_t block = 0; block < blocks_of(size); ++block) total += work.sums[block];
  return total;
}

// 2^x for x <= 0, the 40 bits behind the point that matter of it.
inline Floats power_of_two(Floats x) {
  x = x < -64.0f ? broadcast(-64.0f) : x;
  const float shift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number, kept in the low bits
  Floats shifted = x + shift;
  Floats part = x - (shifted - shift);
  Floats y = part * 0.0001535336196f + 0.001339887385f;
  y = y * part + 0.009618436918f;
  y = y * part + 0.05550332367f;
  y = y * part + 0.2402264774f;
  y = y * part + 0.6931471825f;
  y = y * part + 1.0f;
  return (Floats)((Ints)y + ((Ints)shifted << 23));
}

// weights[i] = 2^((x[i] - best) * rate), 0 where x[i] is less than `least`; 0 from `count` on to the block's end.
template <class T> void weigh(const T* x, int count, float best, float rate, float least, float* weights) {
  for_vectors(count, [&](int at, int n) {
    Floats value = load_up_to(x + at, n);
    Floats weight = power_of_two((value - best) * rate);
    store(weights + at, value >= least ? weight : Floats{});
  });
  for (int at = count; at < kBlock; ++at) weights[at] = 0.0f;
}

inline int64_t whole(float weight) { return (int64_t)(weight * (float)(1LL << kWeightBits)); }

// The sum of a block's weights, as integers, that are not less than `least`.
inline int64_t sum_of(const float* weights, float least) {
  constexpr float kHalf = 1 << (kWeightBits / 2);
  Ints high = {}, low = {};
  for (int at = 0; at < kBlock; at += kLanes) {
    Floats weight = load(weights + at);
    Floats scaled = (weight >= least ? weight : Floats{}) * kHalf;
    Ints upper = __builtin_convertvector(scaled, Ints);
    high += upper;
    low += __builtin_convertvector((scaled - __builtin_convertvector(upper, Floats)) * kHalf, Ints);
  }
  int64_t total = 0;
  for (int lane = 0; lane < kLanes; ++lane) total += ((int64_t)high[lane] << (kWeightBits / 2)) + low[lane];
  return total;
}

// floor(total * fraction / 2^32)
inline int64_t scale(int64_t total, int64_t fraction) { return (int64_t)((__int128)total * fraction >> 32); }

// Appends to `to`, which has room for a vector more, those of the first n lanes that are not less than `least`.
inline int keep(float* to, Floats x, float least, int n) {
#if defined(__AVX512F__)
  __mmask16 kept = _mm512_mask_cmp_ps_mask((1u << n) - 1, (__m512)x, _mm512_set1_ps(least), _CMP_GE_OQ);
  _mm512_storeu_ps(to, _mm512_maskz_compress_ps(kept, (__m512)x));
  return __builtin_popcount(kept);
#else
  int kept = 0;
  for (int lane = 0; lane < n; ++lane) {
    to[kept] = x[lane];
    kept += x[lane] >= least;
  }
  return kept;
#endif
}
template <class T> int64_t keep(float* to, const T* x, int count, float least) {
  int64_t kept = 0;
  for_vectors(count, [&](int at, int n) { kept += keep(to + kept, load_up_to(x + at, n), least, n); });
  return kept;
}

// Floats as integers of the same order.
inline uint32_t key_of(float x) {
  uint32_t bits = load_as<uint32_t>(&x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
inline float value_of(uint32_t key) {
  uint32_t bits = key & 0x80000000u ? key & 0x7fffffffu : ~key;
  return load_as<float>(&bits);
}

// The largest of the values for which the amounts of all values not less reach `limit`, 1 or more, or the least value
// if they never do. Rearranges `values`; 0.0 and -0.0 must not both occur.
template <class Amount> float select(float* values, int64_t count, int64_t limit, int64_t* bins, Amount amount) {
  uint32_t prefix = 0;
  int known = 0;  // bits of the key, from the top
  for (int bits : {11, 11, 10}) {
    int rest = 32 - known - bits;
    uint32_t mask = (1u << bits) - 1, lowest = mask;
    std::memset(bins, 0, sizeof(int64_t) * kBins);
    for (int64_t i = 0; i < count; ++i) {
      uint32_t bin = key_of(values[i]) >> rest & mask;
      bins[bin] += amount(values[i]);
      lowest = bin < lowest ? bin : lowest;
    }
    uint32_t bin = mask;
    while (bin > lowest && limit > bins[bin]) limit -= bins[bin--];
    prefix = prefix << bits | bin;
    known += bits;
    int64_t kept = 0;
    for (int64_t i = 0; i < count; ++i) {
      float value = values[i];
      values[kept] = value;
      kept += (key_of(value) >> rest & mask) == bin;
    }
    count = kept;
  }
  return value_of(prefix);
}

// A lower bound of the k-th largest of a row's finite numbers: as many blocks have one that is not less.
inline float bound_of(const Workspace& work, int64_t size, int64_t k, float* memory) {
  int64_t blocks = blocks_of(size);
  if (k > blocks) return kMinusInfinity;
  for (int64_t block = 0; block < blocks; ++block) memory[block] = work.maxima[block] + 0.0f;
  return select(memory, blocks, k, work.bins, [](float) { return 1; });
}

// The k-th largest of a row's numbers, k at most their count; `memory` has room for a row.
template <class T> float kth_of(const T* x, int64_t size, int64_t k, const Workspace& work, float* memory) {
  float bound = bound_of(work, size, k, memory);
  int64_t count = 0;
  for (int64_t first = 0; first < size; first += kBlock)
    if (work.maxima[first / kBlock] >= bound)
      count += keep(memory + count, x + first, (int)(size - first < kBlock ? size - first : kBlock), bound);
  for (int64_t i = 0; i < count; ++i) memory[i] += 0.0f;  // no -0.0
  return select(memory, count, k, work.bins, [](float) { return 1; });
}

}  // namespace lsv
