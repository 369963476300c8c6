// Log probabilities and ranks of a chosen token and of the likeliest ones, as lsv/nn/sampling.py has them.
#include "sampling/sample.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "gemm/epilogue.h"
#include "scratch.h"

namespace lsv {
namespace {

struct Entry { double token, logprob, rank; };
struct Token { float logit; int64_t id; };

// How many numbers are larger than `own`.
template <class T> int64_t count_above(const T* x, int count, float own) {
  Ints above = {};
  int at = 0;
  for (; at + kLanes <= count; at += kLanes) above -= load(x + at) > own;
  int64_t total = 0;
  for (int lane = 0; lane < kLanes; ++lane) total += above[lane];
  for (; at < count; ++at) total += to_float(x[at]) > own;
  return total;
}

// The `most` largest, by descending logit, then by id.
template <class T> std::vector<Token> likeliest(const T* x, int64_t size, int64_t most, const Workspace& work) {
  float border = kth_of(x, size, most, work, work.spare);
  std::vector<Token> found;
  int64_t ties = 0;
  for (int64_t first = 0; first < size; first += kBlock) {
    if (work.maxima[first / kBlock] < border) continue;
    for (int64_t id = first; id < size && id < first + kBlock; ++id) {
      float logit = to_float(x[id]);
      if (logit > border || (logit == border && ties++ < most)) found.push_back({logit, id});
    }
  }
  std::stable_sort(found.begin(), found.end(), [](Token a, Token b) { return a.logit > b.logit; });
  found.resize(most);
  return found;
}

template <class T>
void describe(Member& me, const T* x, int64_t size, int64_t chosen, int64_t most, Entry* entries, Workspace& work) {
  constexpr float kRate = 1.44269504f;
  float best = find_best(me, x, size, false, work), own = to_float(x[chosen]);
  for_blocks(me, size, [&](int64_t block, int64_t first, int count) {
    weigh(x + first, count, best, kRate, kMinusInfinity, work.weights + first);
    work.sums[block] = sum_of(work.weights + first, 0.0f);
    work.counts[block] = count_above(x + first, count, own);
  });
  if (me.rank) return;
  double normaliser = best + std::log((double)total_of(work, size)) - kWeightBits * std::log(2.0);
  int64_t above = 0;
  for (int64_t block = 0; block < blocks_of(size); ++block) above += work.counts[block];
  *entries++ = {(double)chosen, own - normaliser, above + 1.0};
  if (!most) return;
  int64_t equal = 0;  // the first of those as likely as the i-th
  std::vector<Token> found = likeliest(x, size, most, work);
  for (int64_t i = 0; i < most; ++i) {
    if (found[i].logit != found[equal].logit) equal = i;
    entries[i] = {(double)found[i].id, found[i].logit - normaliser, equal + 1.0};
  }
}

}  // namespace
}  // namespace lsv

using namespace lsv;

extern "C" {

// logits [any][size], rows `stride` apart, of which rows[count] are meant; chosen [count], most <= size
// -> out [count][1 + most][token, log probability, rank].
void lsv_describe(int dtype, const void* logits, int64_t stride, int64_t size, int64_t count, const int64_t* rows,
                  const int64_t* chosen, int64_t most, double* out) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    Scratch scratch(Workspace::bytes(size) * team_size());
    run_if_worth(count * size / 8, [&](Member& me) {
      for_rows(me, count, size, scratch.data, [&](Member& members, int64_t i, Workspace& work) {
        const T* x = (const T*)logits + rows[i] * stride;
        describe(members, x, size, chosen[i], most, (Entry*)out + i * (1 + most), work);
      });
    });
  });
}

}
