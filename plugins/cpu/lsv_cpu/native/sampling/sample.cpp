// Choosing tokens: finite check, edits, top-k, temperature, top-p, min-p and the draw, as lsv_runtime/nn/sampling.py has it.
#include "sampling/sample.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include "gemm/epilogue.h"
#include "sampling/choose.h"
#include "sampling/philox.h"
#include "scratch.h"

namespace lsv {
namespace {

enum Kind { kAllow = 0, kForbid = 1, kAdd = 2, kPenalize = 3 };

constexpr int64_t kWhole = 1LL << 32;
constexpr int64_t kNotFinite = -1, kNoTokenLeft = -2;

float edited(float x, const Edit& edit) {
  switch (edit.kind) {
    case kForbid: return kMinusInfinity;
    case kAdd: return x + edit.first;
    case kPenalize: return (x > 0.0f ? x / edit.first : x * edit.first) - edit.second;
    default: return x;
  }
}

// The row as floats in `out`, with its edits.
template <class T>
void edit_row(Member& me, const T* x, int64_t size, const Choice& choice, const Edit* edits, float* out) {
  for_blocks(me, size, [&](int64_t, int64_t first, int count) {
    for_vectors(count, [&](int at, int n) {
      store(out + first + at, choice.only ? broadcast(kMinusInfinity) : load_up_to(x + first + at, n));
    });
  });
  if (me.rank == 0)
    for (const Edit* edit = edits; edit < edits + choice.edits; ++edit)
      out[edit->token] = edited(edit->kind == kAllow ? to_float(x[edit->token]) : out[edit->token], *edit);
  me.barrier();
}

template <class T> int64_t first_at(const T* x, int64_t size, float best, const Workspace& work) {
  int64_t at = 0;
  while (work.maxima[at / kBlock] != best) at += kBlock;
  while (at < size && to_float(x[at]) != best) ++at;
  return at;
}

// The least of the heaviest tokens that together hold their share of the weight.
float top_p_threshold(const Workspace& work, int64_t size, int64_t total, int64_t fraction) {
  int64_t limit = scale(total, fraction);
  limit = limit < 1 ? 1 : limit;
  int64_t dispensable = (total - limit) / size;  // all tokens not heavier than this hold no more than the rest
  float least = (float)(dispensable / 2) / (float)(1LL << kWeightBits);  // half of it: whatever the rounding
  int64_t count = keep(work.spare, work.weights, (int)size, least);
  return select(work.spare, count, limit, work.bins, [](float weight) { return whole(weight); });
}

// The least float that is not below a share of the best token's weight.
float min_p_threshold(int64_t fraction) {
  double exact = (double)fraction / (double)kWhole;
  float threshold = (float)exact;
  return (double)threshold < exact ? std::nextafter(threshold, 2.0f) : threshold;
}

// The token at which the running sum of weights passes `target`.
int64_t token_at(const Workspace& work, int64_t target, float threshold) {
  int64_t at = 0;
  while (work.sums[at / kBlock] <= target) target -= work.sums[at / kBlock], at += kBlock;
  for (;; ++at) {
    float weight = work.weights[at];
    if (weight >= threshold && (target -= whole(weight)) < 0) return at;
  }
}

// Temperature, filters and draw of a row with its maxima known. All members of the row find the same token.
template <class T>
int64_t draw(Member& me, const T* x, int64_t size, const Choice& choice, float best, Workspace& work) {
  float least = kMinusInfinity;
  if (choice.top_k > 0 && choice.top_k < size) {
    if (me.rank == 0) *work.threshold = kth_of(x, size, choice.top_k, work, work.weights);
    me.barrier();
    least = *work.threshold;
    me.barrier();
  }
  for_blocks(me, size, [&](int64_t block, int64_t first, int count) {
    weigh(x + first, count, best, choice.rate, least, work.weights + first);
    work.sums[block] = sum_of(work.weights + first, 0.0f);
  });
  float threshold = 0.0f;
  if (choice.top_p < kWhole) {
    if (me.rank == 0) *work.threshold = top_p_threshold(work, size, total_of(work, size), choice.top_p);
    me.barrier();
    threshold = *work.threshold;
  }
  if (choice.min_p > 0) {
    float other = min_p_threshold(choice.min_p);
    threshold = threshold < other ? other : threshold;
  }
  if (threshold > 0.0f)
    for_blocks(me, size, [&](int64_t block, int64_t first, int) {
      work.sums[block] = sum_of(work.weights + first, threshold);
    });
  int64_t target = scale(total_of(work, size), uniform(choice.seed, choice.position, 0));
  return token_at(work, target, threshold);
}

template <class T>
int64_t choose_known(Member& me, const T* x, int64_t size, const Choice& choice, float best, Workspace& work) {
  return choice.rate == 0.0f ? first_at(x, size, best, work) : draw(me, x, size, choice, best, work);
}

template <class T> T minus_infinity() {
  T one;
  store_part(&one, broadcast(kMinusInfinity), 1);
  return one;
}

bool only_forbids(const Choice& choice, const Edit* edits) {
  return !choice.only && std::all_of(edits, edits + choice.edits, [](const Edit& edit) { return edit.kind == kForbid; });
}

// Forbidden tokens are hidden in the row itself, and shown again: that takes less than a copy of the row.
template <class T>
int64_t choose_from_rest(Member& me, T* x, int64_t size, const Choice& choice, const Edit* edits, Workspace& work) {
  std::vector<T> hidden(me.rank == 0 ? choice.edits : 0);
  for (size_t i = 0; i < hidden.size(); ++i) {
    hidden[i] = x[edits[i].token];
    x[edits[i].token] = minus_infinity<T>();
  }
  me.barrier();
  float best = find_best(me, x, size, false, work);
  int64_t token = best == kMinusInfinity ? kNoTokenLeft : choose_known(me, x, size, choice, best, work);
  me.barrier();
  for (size_t i = hidden.size(); i-- > 0;) x[edits[i].token] = hidden[i];  // backwards: a token may be named twice
  return token;
}

template <class T>
int64_t choose(Member& me, T* x, int64_t size, const Choice& choice, const Edit* edits, Workspace& work) {
  float best = find_best(me, x, size, true, work);
  if (best != best) return kNotFinite;
  if (!choice.edits && !choice.only) return choose_known(me, x, size, choice, best, work);
  if (only_forbids(choice, edits)) return choose_from_rest(me, x, size, choice, edits, work);
  edit_row(me, x, size, choice, edits, work.spare);
  best = find_best(me, work.spare, size, false, work);
  if (best == kMinusInfinity) return kNoTokenLeft;
  return choose_known(me, work.spare, size, choice, best, work);
}

// A field as numpy writes it: f4@0 is a float of 4 bytes at the beginning.
template <class T> std::string field(const char* name, size_t offset) {
  const char* kind = std::is_floating_point<T>::value ? "f" : std::is_signed<T>::value ? "i" : "u";
  return std::string(name) + ":" + kind + std::to_string(sizeof(T)) + "@" + std::to_string(offset) + " ";
}

#define FIELD(record, name) field<decltype(record::name)>(#name, offsetof(record, name))

std::string layout_of_choice() {
  return FIELD(Choice, rate) + FIELD(Choice, only) + FIELD(Choice, edits) + FIELD(Choice, top_k) + FIELD(Choice, top_p)
      + FIELD(Choice, min_p) + FIELD(Choice, seed) + FIELD(Choice, position) + std::to_string(sizeof(Choice));
}

std::string layout_of_edit() {
  return FIELD(Edit, token) + FIELD(Edit, kind) + FIELD(Edit, first) + FIELD(Edit, second) + std::to_string(sizeof(Edit));
}

}  // namespace

int64_t choice_bytes(int64_t size, int members) { return Workspace::bytes(size) * members; }

void choose_tokens(Member& me, int dtype, void* logits, int64_t stride, int64_t size, int64_t rows,
                   const Choice* choices, const Edit* const* edits, int64_t* tokens, char* memory) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    for_rows(me, rows, size, memory, [&](Member& members, int64_t row, Workspace& work) {
      int64_t token = choose(members, (T*)logits + row * stride, size, choices[row], edits[row], work);
      if (members.rank == 0) tokens[row] = token;
    });
  });
}

}  // namespace lsv

using namespace lsv;

extern "C" {

// The fields of a record in their order, with type and offset, and its size: what Python's records are checked against.
const char* lsv_choice_layout() {
  static const std::string layout = layout_of_choice();
  return layout.c_str();
}

const char* lsv_edit_layout() {
  static const std::string layout = layout_of_edit();
  return layout.c_str();
}

// logits [rows][size], rows `stride` apart; choices [rows], the edits of one row after those of the other -> tokens.
// The logits are the same afterwards, but not meanwhile.
int lsv_choose(int dtype, void* logits, int64_t stride, int64_t size, int64_t rows, const void* choices,
               const void* edits, int64_t* tokens) {
  std::vector<const Edit*> edits_of(rows);
  const Edit* next = (const Edit*)edits;
  for (int64_t row = 0; row < rows; ++row) {
    edits_of[row] = next;
    next += ((const Choice*)choices)[row].edits;
  }
  return status_of([&] {
    Turn turn;
    Scratch scratch(choice_bytes(size, turn.members()));
    turn.run_if_worth(rows * size / 8, [&](Member& me) {
      choose_tokens(me, dtype, logits, stride, size, rows, (const Choice*)choices, edits_of.data(), tokens, scratch.data);
    });
  });
}

}
