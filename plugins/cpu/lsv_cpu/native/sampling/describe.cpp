// What log probabilities and ranks of a row's token and of the likeliest ones are made of, as lsv_runtime/nn/sampling.py has it.
#include "sampling/sample.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "gemm/epilogue.h"
#include "scratch.h"

namespace lsv {
namespace {

struct Entry { int64_t token, logit, rank; };  // the logit's bits
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

int64_t bits_of(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

template <class T>
void describe(Member& me, const T* x, int64_t size, int64_t chosen, int64_t most, Entry* entries, Workspace& work) {
  constexpr float kRate = 1.44269504f;
  float best = find_best(me, x, size, true, work);
  if (chosen < 0 || best != best) {
    if (!me.rank) std::fill(entries, entries + 2 + most, Entry{});
    return;
  }
  float own = to_float(x[chosen]);
  for_blocks(me, size, [&](int64_t block, int64_t first, int count) {
    weigh(x + first, count, best, kRate, kMinusInfinity, work.weights + first);
    work.sums[block] = sum_of(work.weights + first, 0.0f);
    work.counts[block] = count_above(x + first, count, own);
  });
  if (me.rank) return;
  int64_t above = 0;
  for (int64_t block = 0; block < blocks_of(size); ++block) above += work.counts[block];
  *entries++ = {chosen, bits_of(own), above + 1};
  entries[most] = {total_of(work, size), bits_of(best), 1};
  if (!most) return;
  int64_t equal = 0;  // the first of those as likely as the i-th
  std::vector<Token> found = likeliest(x, size, most, work);
  for (int64_t i = 0; i < most; ++i) {
    if (found[i].logit != found[equal].logit) equal = i;
    entries[i] = {found[i].id, bits_of(found[i].logit), equal + 1};
  }
}

}  // namespace
}  // namespace lsv

using namespace lsv;

extern "C" {

// logits [any][size], rows `stride` apart, of which rows[count] are meant; tokens [any], most <= size
// -> out [count][2 + most][token, bits of the logit, rank], last [weight of all, bits of the largest logit, 1];
// zeros for rows that are not finite or whose token is negative.
int lsv_describe(int dtype, const void* logits, int64_t stride, int64_t size, int64_t count, const int64_t* rows,
                 const int64_t* tokens, int64_t most, int64_t* out) {
  return status_of([&] { with_type(dtype, [&](auto type) {
    using T = decltype(type);
    Turn turn;
    Scratch scratch(Workspace::bytes(size) * turn.members());
    turn.run_if_worth(count * size / 8, [&](Member& me) {
      for_rows(me, count, size, scratch.data, [&](Member& members, int64_t i, Workspace& work) {
        const T* x = (const T*)logits + rows[i] * stride;
        describe(members, x, size, tokens[rows[i]], most, (Entry*)out + i * (2 + most), work);
      });
    });
  }); });
}

}
