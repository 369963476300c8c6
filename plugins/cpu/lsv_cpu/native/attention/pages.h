// Where K and V lie. A page has for each layer the K blocks of all KV heads, then their V blocks, [block * dim] each:
// K [dim / pair][block][pair] (and behind it [block], the last features of an odd dim), V [block / pair][dim][pair]. A
// pair are consecutive features of a key, or values of consecutive tokens: as many as fill 4 bytes, or two codes. So both
// are read in lines of Dot<T>::weights; scores need no sums across lanes, and weights of consecutive keys meet their
// values. Behind V int8 has the scales [block] of each KV head's keys, then those of its values. Layers whose values are
// features of keys have no V blocks, and no scales of these.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "attention/attention.h"
#include "attention/codes.h"
#include "gemm/epilogue.h"

namespace lsv {

constexpr int kMaxDim = 576;

// S: what is stored, the tensors' own type or Code.
template <class S> class Pages {
 public:
  static constexpr bool kCoded = std::is_same_v<S, Code>;
  static constexpr int kPair = kCoded ? 2 : 4 / sizeof(S);

  // Without a cache, the pages lie in `own`, of own_bytes(), and are for the step's own tokens.
  Pages(const Layer& layer, const Plan& plan, const Cache* cache, void* own)
      : form(cache ? cache->form : kAsTensors), block(cache ? cache->block : kOwnBlock), layer_(layer), plan_(plan),
        dim_(layer.dim), shift_(__builtin_ctz(block)), tables_(cache ? plan.tables : nullptr),
        data_(cache ? (S*)cache->data : (S*)own), page_(cache ? cache->page : (int64_t)halves(layer) * layer.kv_heads * dim_ * kOwnBlock),
        key_offset_(cache ? layer.key_offset : 0), value_offset_(cache ? layer.value_offset : page_ / 2) {}

  static int64_t own_bytes(const Layer& layer, const Plan& plan) {
    int64_t pages = plan.starts[plan.requests] / kOwnBlock + plan.requests;
    return halves(layer) * pages * layer.kv_heads * layer.dim * kOwnBlock * sizeof(S);
  }

  const int form, block;

  int64_t key_line() const { return (int64_t)block * kPair; }   // from one pair of features to the next
  int64_t value_line() const { return (int64_t)dim_ * kPair; }  // from one pair of tokens to the next
  int slot(int at) const { return at & (block - 1); }

  // First line of the key at `at` of a request's KV head; the lines of the keys after it in the block follow.
  S* key(int request, int kv_head, int at) const {
    return place(request, kv_head, at, key_offset_) + slot(at) * kPair;
  }
  // Its last feature where dim is odd.
  S* odd_key(int request, int kv_head, int at) const {
    return place(request, kv_head, at, key_offset_) + dim_ / kPair * key_line() + slot(at);
  }
  // The line of the values at `at`; in pairs.
  S* values(int request, int kv_head, int at) const {
    return place(request, kv_head, at, value_offset_) + slot(at) / kPair * value_line();
  }
  // The scales of int8 at `at`; those of the tokens after it in the block follow.
  float* key_scales(int request, int kv_head, int at) const { return scales(request, kv_head, at); }
  float* value_scales(int request, int kv_head, int at) const {
    return scales(request, kv_head, at) + (layer_.shares() ? 0 : (int64_t)layer_.kv_heads * block);
  }

  template <class T> void write_key(int request, int kv_head, int at, const T* k) const {
    S row[kMaxDim];
    float scale = store(k, layer_.key_scale, row);
    S* to = key(request, kv_head, at);
    for (int d = 0; d + kPair <= dim_; d += kPair, to += key_line()) std::memcpy(to, row + d, sizeof(S) * kPair);
    if (dim_ % kPair) *odd_key(request, kv_head, at) = row[dim_ - 1];
    if (form == kScaledInt8) *key_scales(request, kv_head, at) = scale;
  }

  // Writes the values of a token of the step, at position `at`. A pair is written whole when its first token comes: with
  // zeros beside it if the second is not in the step, since what an earlier tenant left there must not enter sums.
  template <class T> void write_values(int request, int kv_head, int at, const Tensors& tensors, int token) const {
    if (layer_.shares()) return;
    const T* v = (const T*)tensors.v + token * tensors.v_stride + (int64_t)kv_head * dim_;
    if (at % kPair && token != plan_.starts[request]) return;
    const int count = at % kPair || token + 1 == plan_.starts[request + 1] ? 1 : kPair;
    S rows[2][kMaxDim];
    if (count < kPair) std::fill_n(rows[1], dim_, S{});
    for (int i = 0; i < count; ++i) {
      float scale = store(v + i * tensors.v_stride, layer_.value_scale, rows[i]);
      if (form == kScaledInt8) value_scales(request, kv_head, at)[i] = scale;
    }
    S* to = values(request, kv_head, at) + at % kPair;
    if (at % kPair) {
      for (int d = 0; d < dim_; ++d) to[d * kPair] = rows[0][d];
    } else {
      for (int d = 0; d < dim_; ++d)
        for (int i = 0; i < kPair; ++i) to[d * kPair + i] = rows[i][d];
    }
  }

 private:
  static constexpr int kOwnBlock = 64;

  static int halves(const Layer& layer) { return layer.shares() ? 1 : 2; }

  // A head's row in the form it is stored in; the scale that int8 gives it.
  template <class T> float store(const T* from, float scale, S* to) const {
    if constexpr (!kCoded) {
      std::memcpy(to, from, dim_ * sizeof(S));
    } else {
      float row[kMaxDim + kLanes];
      for_vectors(dim_, [&](int d, int n) { lsv::store(row + d, load_up_to(from + d, n)); });
      if (form == kScaledInt8) scale = scale_of(row);
      const bool zeros = !(scale >= std::numeric_limits<float>::min());
      for (int d = 0; d < dim_; ++d) to[d] = narrow(form, zeros ? 0.0f : row[d] / scale);
    }
    return scale;
  }

  // That takes the largest number to the largest code; no number where one of them is none.
  float scale_of(const float* row) const {
    float most = 0.0f;
    for (int d = 0; d < dim_ && most == most; ++d) most = std::fabs(row[d]) <= most ? most : std::fabs(row[d]);
    return most / kLargestInt8;
  }

  float* scales(int request, int kv_head, int at) const {
    int64_t behind = (layer_.shares() ? key_offset_ : value_offset_) + (int64_t)layer_.kv_heads * block * dim_;
    return (float*)(page(request, at) + behind) + (int64_t)kv_head * block + slot(at);
  }

  S* page(int request, int at) const {
    int64_t number = tables_ ? tables_[(int64_t)request * plan_.width + (at >> shift_)]
                             : plan_.starts[request] / kOwnBlock + request + at / kOwnBlock;
    return data_ + number * page_;
  }
  S* place(int request, int kv_head, int at, int64_t offset) const {
    return page(request, at) + offset + (int64_t)kv_head * block * dim_;
  }

  const Layer& layer_;
  const Plan& plan_;
  const int dim_, shift_;
  const int32_t* tables_;
  S* data_;
  int64_t page_, key_offset_, value_offset_;
};

// f(type of the tensors, type that the cache stores).
template <class F> void with_types(int dtype, const Cache* cache, F&& f) {
  with_type(dtype, [&](auto type) {
    if (cache && cache->form != kAsTensors) f(type, Code());
    else f(type, type);
  });
}

}  // namespace lsv
