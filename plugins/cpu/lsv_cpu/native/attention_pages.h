// Where K and V lie. A page has for each layer the K blocks of all KV heads, then their V blocks, [block * dim] each:
// K [dim / pair][block][pair] (and behind it [block], the last features of an odd dim), V [block / pair][dim][pair]. A
// pair fills 4 bytes: consecutive features of a key, or values of consecutive tokens. So both are read in lines of
// Dot<T>::weights; scores need no sums across lanes, and weights of consecutive keys meet their values.
#pragma once

#include <cstring>

#include "attention.h"

namespace lsv {

template <class T> class Pages {
 public:
  static constexpr int kPair = 4 / sizeof(T);

  // Without a cache, the pages lie in `own`, of own_bytes(), and are for the step's own tokens.
  Pages(const Layer& layer, const Plan& plan, const Cache* cache, void* own)
      : plan_(plan), dim_(layer.dim), block_(cache ? cache->block : kOwnBlock), shift_(__builtin_ctz(block_)), tables_(cache ? plan.tables : nullptr),
        data_(cache ? (T*)cache->data : (T*)own), page_(cache ? cache->page : 2ll * layer.kv_heads * dim_ * kOwnBlock),
        key_offset_(cache ? layer.key_offset : 0), value_offset_(cache ? layer.value_offset : page_ / 2) {}

  static int64_t own_bytes(const Layer& layer, const Plan& plan) {
    int64_t pages = plan.starts[plan.requests] / kOwnBlock + plan.requests;
    return 2 * pages * layer.kv_heads * layer.dim * kOwnBlock * sizeof(T);
  }

  int64_t key_line() const { return (int64_t)block_ * kPair; }  // from one pair of features to the next
  int64_t value_line() const { return (int64_t)dim_ * kPair; }  // from one pair of tokens to the next

  // First line of the key at `at` of a request's KV head; the lines of the keys after it in the block follow.
  T* key(int request, int kv_head, int at) const {
    return place(request, kv_head, at, key_offset_) + slot(at) * kPair;
  }
  // Its last feature where dim is odd.
  T* odd_key(int request, int kv_head, int at) const {
    return place(request, kv_head, at, key_offset_) + dim_ / kPair * key_line() + slot(at);
  }
  // The line of the values at `at`; in pairs.
  T* values(int request, int kv_head, int at) const {
    return place(request, kv_head, at, value_offset_) + slot(at) / kPair * value_line();
  }

  void write_key(int request, int kv_head, int at, const T* k) const {
    T* to = key(request, kv_head, at);
    for (int d = 0; d + kPair <= dim_; d += kPair, to += key_line()) std::memcpy(to, k + d, sizeof(T) * kPair);
    if (dim_ % kPair) *odd_key(request, kv_head, at) = k[dim_ - 1];
  }

  // Writes the values of a token of the step, at position `at`. A pair is written whole when its first token comes: with
  // zeros beside it if the second is not in the step, since what an earlier tenant left there must not enter sums.
  void write_values(int request, int kv_head, int at, const Tensors& tensors, int token) const {
    const T* v = (const T*)tensors.v + token * tensors.v_stride + (int64_t)kv_head * dim_;
    T* to = values(request, kv_head, at);
    if (at % kPair == 0) {
      const T* next = token + 1 < plan_.starts[request + 1] ? v + tensors.v_stride : nullptr;
      for (int d = 0; d < dim_; ++d) {
        T pair[2] = {v[d], next ? next[d] : T{}};
        std::memcpy(to + d * kPair, pair, sizeof(T) * kPair);
      }
    } else if (token == plan_.starts[request]) {
      for (int d = 0; d < dim_; ++d) to[d * kPair + 1] = v[d];
    }
  }

 private:
  static constexpr int kOwnBlock = 64;

  int slot(int at) const { return at & (block_ - 1); }

  T* place(int request, int kv_head, int at, int64_t offset) const {
    int64_t page = tables_ ? tables_[(int64_t)request * plan_.width + (at >> shift_)]
                           : plan_.starts[request] / kOwnBlock + request + at / kOwnBlock;
    return data_ + page * page_ + offset + (int64_t)kv_head * block_ * dim_;
  }

  const Plan& plan_;
  const int dim_, block_, shift_;
  const int32_t* tables_;
  T* data_;
  int64_t page_, key_offset_, value_offset_;
};

}  // namespace lsv
