// The rows of a tile and what becomes of their scores, whatever instructions find these and weigh values by them.
#pragma once

#include "attention/pages.h"
#include "attention/partial.h"
#include "attention/tiles.h"
#include "gemm/epilogue.h"

namespace lsv {

// A call's arguments, and how its work is cut.
struct Step {
  const Layer& layer;
  const Plan& plan;
  const Cache* cache;  // null: the step's own keys and values
  const Tensors& tensors;
  const Tiles& tiles;
};

// T: of the tensors; S: what the cache stores.
template <class T, class S> class QueryRows {
 public:
  // `own_pages` are for the step's keys and values where there is no cache.
  QueryRows(const Step& step, void* own_pages)
      : layer_(step.layer), plan_(step.plan), tensors_(step.tensors), tiles_(step.tiles),
        pages_(step.layer, step.plan, step.cache, own_pages), stride_(Partial::stride(step.layer)),
        values_of_(step.layer.values()), shared_(step.layer.shares()), scaled_(pages_.form == kScaledInt8),
        plain_(!layer_.soft_cap && !layer_.alibi && !layer_.biases && layer_.scale > 0 && !scaled_) {
    const bool floats = pages_.form == kE4M3 || pages_.form == kE5M2;
    scale_ = floats ? layer_.scale * layer_.key_scale : layer_.scale;
    value_factor_ = !floats ? 1.0f : shared_ ? layer_.key_scale : layer_.value_scale;
  }

  // Writes the step's keys and values to pages of its own.
  void write(Range tokens) const {
    for (int64_t token = tokens.begin, request = 0; token < tokens.end; ++token) {
      while (token >= plan_.starts[request + 1]) ++request;
      for (int head = 0; head < layer_.kv_heads; ++head) {
        int at = (int)token - plan_.starts[request];
        const T* k = (const T*)tensors_.k + token * tensors_.k_stride + (int64_t)head * layer_.dim;
        pages_.write_key(request, head, at, k);
        pages_.template write_values<T>(request, head, at, tensors_, token);
      }
    }
  }

  // A row's sums over all of its keys to the output.
  void finish(const Tile& tile, int row, Partial total, int at) const {
    const int head = head_of(tile, row), token = tiles_.token_index(tile, row / tiles_.ratio);
    const float* sums = total.sums + (int64_t)at * stride_;
    float mass = sum(load(sums + stride_ - kLanes)), scale = 1.0f;
    if (layer_.sinks) {
      float sink = layer_.sinks[head] * kLog2E, peak = std::max(total.peak[at], sink);
      scale = shrink(total.peak[at], peak);
      mass = mass * scale + shrink(sink, peak);
    }
    scale = mass == 0.0f ? 0.0f : scale * value_factor_ / mass;
    T* out = (T*)tensors_.out + ((int64_t)token * layer_.heads + head) * values_of_;
    for_vectors(values_of_, [&](int d, int n) { store_up_to(out + d, load(sums + d) * scale, n); });
  }

 protected:
  int head_of(const Tile& tile, int row) const { return tile.kv_head * tiles_.ratio + row % tiles_.ratio; }

  const T* query(const Tile& tile, int row) const {
    return (const T*)tensors_.q + tiles_.token_index(tile, row / tiles_.ratio) * tensors_.q_stride +
           (int64_t)head_of(tile, row) * layer_.dim;
  }

  // Scales of the keys `seen` from `start` on; those of others in their groups may be anything.
  void read_scales(const Tile& tile, int start, Span seen) {
    for (int at = seen.first / kGroup * kGroup; at < seen.last; at += kGroup) {
      std::memcpy(key_scales_ + at, pages_.key_scales(tile.request, tile.kv_head, start + at), kGroup * 4);
      std::memcpy(value_scales_ + at, pages_.value_scales(tile.request, tile.kv_head, start + at), kGroup * 4);
    }
  }

  // Codes as numbers, in the same order: the blocks of the keys `seen` from `start` on, one after the other. `block_at`
  // says where one lies.
  template <class F> void widen_blocks(int start, Span seen, F&& block_at, BFloat16* to) const {
    const int64_t size = (int64_t)pages_.block * layer_.dim;
    for (int at = seen.first / pages_.block * pages_.block; at < seen.last; at += pages_.block)
      widen(pages_.form, block_at(start + at), size, to + (int64_t)at * layer_.dim);
  }

  // Where the lines of a key begin in what they have been widened to.
  const BFloat16* widened_key(const BFloat16* widened, int at) const {
    const int slot = pages_.slot(at);
    return widened + (int64_t)(at - slot) * layer_.dim + slot * 2;
  }

  // Scores of a row with the keys [start, start + count) to weights, which take their place; those it does not see get
  // 0. Scales are read from `scales_at` on. Gives what the row's sums over earlier keys shrink by.
  template <class Weight>
  float soften_row(const Tile& tile, int row, int start, int count, int scales_at, float* scores, float* peak,
                   float* mass) const {
    const int token = row / tiles_.ratio;
    float factor = scale_ * kLog2E;
    if (!plain_) {
      shape(scores, count, start, tiles_.position(tile, token), head_of(tile, row), key_scales_ + scales_at);
      factor = kLog2E;
    }
    const Span seen = tiles_.span(tile, token);
    return soften<Weight>(scores, count, seen.first - start, seen.last - start, factor,
                          scaled_ ? value_scales_ + scales_at : nullptr, peak, mass);
  }

  const Layer& layer_;
  const Plan& plan_;
  const Tensors& tensors_;
  const Tiles& tiles_;
  const Pages<S> pages_;
  const int stride_, values_of_;  // features of a value, and of an output
  const bool shared_;  // values are features of keys
  const bool scaled_;  // each key and value has a scale of its own
  const bool plain_;   // scores are only scaled, and all alike

 private:
  // What some layers do to scores: soft cap, and a penalty on or a bias by the distance between key and query.
  void shape(float* scores, int to, int start, int at, int head, const float* key_scales) const {
    for (int i = 0; i < to; i += kLanes) {
      Floats x = load(scores + i) * scale_;
      if (scaled_) x *= load(key_scales + i);
      if (layer_.soft_cap) x = tanh(x / layer_.soft_cap) * layer_.soft_cap;
      if (layer_.alibi) {
        Ints key = lane_numbers() + (start + i), distance = at > key ? at - key : key - at;
        x -= __builtin_convertvector(distance, Floats) * layer_.alibi[head];
      }
      if (layer_.biases) {
        const float* biases = layer_.biases + (int64_t)head * layer_.distances;
        for (int lane = 0; lane < kLanes; ++lane) {  // keys behind the query are not seen: any bias will do
          x[lane] += biases[std::clamp(at - (start + i + lane), 0, layer_.distances - 1)];
        }
      }
      store(scores + i, x);
    }
  }

  float scale_, value_factor_;
  float key_scales_[kSplit], value_scales_[kSplit];
};

}  // namespace lsv
