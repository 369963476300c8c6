// Which experts a row goes to, and with what weights.
#include <algorithm>
#include <cmath>

#include "gemm/epilogue.h"
#include "moe/moe.h"

namespace lsv {
namespace {

struct Chance {
  float value;
  int64_t expert;
};

// Softmax in float. What is not a number makes all of it so.
template <class T> void find_chances(const T* logits, int count, float* chances) {
  for_vectors(count, [&](int at, int n) { store_up_to(chances + at, load_up_to(logits + at, n), n); });
  const float most = *std::max_element(chances, chances + count);
  Floats sums = {};
  for_vectors(count, [&](int at, int n) {
    const Floats x = load_up_to(chances + at, n) - most, power = exp(x);
    store_up_to(chances + at, x == x ? power : x, n);
    sums += load_up_to(chances + at, n);
  });
  const float total = sum(sums);
  for_vectors(count, [&](int at, int n) { store_up_to(chances + at, load_up_to(chances + at, n) / total, n); });
}

// The `top` largest come first, in order. Equals, which are common among rounded logits, are left in the order that
// torch.topk leaves them in (ATen/native/TopKImpl.h), so that the reference's experts are chosen.
void sort_largest(Chance* chances, int count, int top) {
  auto before = [](const Chance& x, const Chance& y) {
    return (std::isnan(x.value) && !std::isnan(y.value)) || x.value > y.value;
  };
  if (top * 64 <= count) return std::partial_sort(chances, chances + top, chances + count, before);
  std::nth_element(chances, chances + top - 1, chances + count, before);
  std::sort(chances, chances + top - 1, before);
}

// Rounds to T and back.
template <class T> void round_to(float* values, int count) {
  for_vectors(count, [&](int at, int n) {
    T rounded[kLanes];
    store_up_to(rounded, load_up_to(values + at, n), n);
    store_up_to(values + at, load_up_to(rounded, n), n);
  });
}

void sort_by_expert(Shares shares, int top) {
  for (int i = 1; i < top; ++i)
    for (int k = i; k > 0 && shares.experts[k - 1] > shares.experts[k]; --k) {
      std::swap(shares.experts[k - 1], shares.experts[k]);
      std::swap(shares.weights[k - 1], shares.weights[k]);
    }
}

}  // namespace

int64_t choosing_bytes(const Experts& experts) {
  return experts.count * (int64_t)(sizeof(Chance) + sizeof(float));
}

void choose(const Experts& experts, const void* logits, Shares to, char* working) {
  Chance* chances = (Chance*)working;
  float* values = (float*)(chances + experts.count);
  with_type(experts.dtype, [&](auto type) {
    using T = decltype(type);
    find_chances((const T*)logits, experts.count, values);
    for (int i = 0; i < experts.count; ++i) chances[i] = {values[i], i};
    sort_largest(chances, experts.count, experts.top);
    float total = 0;
    for (int i = 0; i < experts.top; ++i) total += chances[i].value;
    for (int i = 0; i < experts.top; ++i) {
      to.weights[i] = experts.normalise ? chances[i].value / total : chances[i].value;
      to.experts[i] = (int32_t)chances[i].expert;
    }
    round_to<T>(to.weights, experts.top);
  });
  sort_by_expert(to, experts.top);
}

void choose(const Experts& experts, const Choice& choice, int64_t row, Shares to) {
  with_type(experts.dtype, [&](auto type) {
    const auto* weights = (const decltype(type)*)choice.weights + row * experts.top;
    for_vectors(experts.top, [&](int at, int n) { store_up_to(to.weights + at, load_up_to(weights + at, n), n); });
  });
  for (int i = 0; i < experts.top; ++i) to.experts[i] = (int32_t)choice.experts[row * experts.top + i];
  sort_by_expert(to, experts.top);
}

}  // namespace lsv
