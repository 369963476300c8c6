// Paged attention. K and V are read where they lie, a chunk of 32 positions at a time; chunks and splits lie at absolute
// positions, so that a query's arithmetic depends on its own context only, never on who shares its tile, step or thread.
#include "attention.h"

#include <omp.h>

#include <algorithm>
#include <memory>
#include <type_traits>
#include <vector>

#include "vector.h"

namespace lsv {
namespace {

constexpr int kChunk = 32;         // keys scored at a time
constexpr int kSplit = 512;        // keys summed on their own, so that threads can share a long context
constexpr int kTileRows = 48;      // query rows (tokens x heads of one KV head) that share each chunk read
constexpr int64_t kParallel = 1 << 17;  // multiply-adds below which waking threads costs more than it saves

int round_up(int n, int to) { return (n + to - 1) / to * to; }

// Calls f(integral_constant R, at) for blocks of R <= kRowBlock rows.
template <int R, class F> void for_rest(int rows, int at, F& f) {
  if (rows - at == R) f(std::integral_constant<int, R>{}, at);
  else if constexpr (R > 1) for_rest<R - 1>(rows, at, f);
}
template <class F> void for_row_blocks(int first, int rows, F&& f) {
  int at = first;
  for (; at + kRowBlock <= rows; at += kRowBlock) f(std::integral_constant<int, kRowBlock>{}, at);
  if constexpr (kRowBlock > 1) for_rest<kRowBlock - 1>(rows, at, f);
}

// scores[r][0..kChunk) = q[r] . keys, with keys [dim][kChunk].
template <int R> void score(const float* q, int stride, const float* keys, int dim, float* scores) {
  constexpr int kVectors = kChunk / kLanes;
  Floats sums[R][kVectors] = {};
  for (int d = 0; d < dim; ++d)
    for (int r = 0; r < R; ++r)
      for (int n = 0; n < kVectors; ++n) sums[r][n] += q[r * stride + d] * load(keys + d * kChunk + n * kLanes);
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < kVectors; ++n) store(scores + r * kChunk + n * kLanes, sums[r][n]);
}

// sums[r] = sums[r] * scale[r] + weights[r][from..to) . values, for N vectors of features; values [kChunk][stride].
template <int R, int N>
void weigh(const float* weights, const float* scale, const float* values, int from, int to, int stride, float* sums) {
  Floats s[R][N];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) s[r][n] = load(sums + r * stride + n * kLanes) * scale[r];
  for (int j = from; j < to; ++j)
    for (int r = 0; r < R; ++r)
      for (int n = 0; n < N; ++n) s[r][n] += weights[r * kChunk + j] * load(values + j * stride + n * kLanes);
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) store(sums + r * stride + n * kLanes, s[r][n]);
}

// A softmax-weighted sum over some keys, not yet divided: exp(score - peak) summed, with and without values.
struct Partial {
  float *sums, *peak, *mass;  // [rows][stride], [rows], [rows]

  static int size(int rows, int stride) { return round_up(rows * (stride + 2), kLanes); }
  static Partial at(float* place, int rows, int stride) {
    return {place, place + rows * stride, place + rows * (stride + 1)};
  }
  void clear(int rows, int stride) {
    std::fill_n(sums, rows * stride, 0.0f);
    std::fill_n(peak, rows, kMinusInfinity);
    std::fill_n(mass, rows, 0.0f);
  }
};

float exp_of(float x) { return exp(broadcast(x))[0]; }
float shrink(float from, float to) { return from == to ? 1.0f : from == kMinusInfinity ? 0.0f : exp_of(from - to); }

void merge(Partial into, Partial part, int rows, int stride) {
  for (int r = 0; r < rows; ++r) {
    float peak = std::max(into.peak[r], part.peak[r]);
    float a = shrink(into.peak[r], peak), b = shrink(part.peak[r], peak);
    for (int d = 0; d < stride; d += kLanes) {
      float* to = into.sums + r * stride + d;
      store(to, load(to) * a + load(part.sums + r * stride + d) * b);
    }
    into.mass[r] = into.mass[r] * a + part.mass[r] * b;
    into.peak[r] = peak;
  }
}

// Tokens [first, first + count) of one request, for all query heads of one KV head.
struct Tile { int request, first, count, kv_head; };

// The keys a token at `position` sees: [first, last).
struct Span { int first, last; };

template <class T> class Attention {
 public:
  Attention(const Layer& layer, const Plan& plan, const Cache* cache, const Tensors& tensors)
      : layer_(layer), plan_(plan), cache_(cache), tensors_(tensors), ratio_(layer.heads / layer.kv_heads),
        stride_(round_up(layer.dim, kLanes)) {
    const int tokens = std::max(1, kTileRows / ratio_);
    for (int request = 0; request < plan.requests; ++request) {
      int query = plan.starts[request + 1] - plan.starts[request];
      splits_ = std::max(splits_, (plan.context[request] + kSplit - 1) / kSplit);
      tile_rows_ = std::max(tile_rows_, std::min(tokens, query) * ratio_);
      for (int first = 0; first < query; first += tokens)
        for (int head = 0; head < layer.kv_heads; ++head)
          tiles_.push_back({request, first, std::min(tokens, query - first), head});
    }
  }

  void run() {
    int threads = work() < kParallel ? 1 : omp_get_max_threads();
    bool shared = (int)tiles_.size() < 2 * threads && splits_ > 1;
    int part = Partial::size(tile_rows_, stride_);
    std::unique_ptr<float[]> parts(shared ? new float[tiles_.size() * splits_ * part] : nullptr);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
      Scratch scratch(*this);
      if (cache_ && tensors_.k) {
#pragma omp for schedule(static)
        for (size_t i = 0; i < tiles_.size(); ++i) write(tiles_[i]);
      }
      if (shared) {
#pragma omp for schedule(dynamic)
        for (size_t i = 0; i < tiles_.size() * splits_; ++i)
          attend(tiles_[i / splits_], i % splits_, Partial::at(&parts[i * part], tile_rows_, stride_), scratch);
      }
#pragma omp for schedule(dynamic)
      for (size_t i = 0; i < tiles_.size(); ++i) {
        const Tile& tile = tiles_[i];
        scratch.total.clear(tile.count * ratio_, stride_);
        Span seen = span(tile);
        for (int split = seen.first / kSplit; split * kSplit < seen.last; ++split) {
          Partial one = shared ? Partial::at(&parts[(i * splits_ + split) * part], tile_rows_, stride_) : scratch.part;
          if (!shared) attend(tile, split, one, scratch);
          merge(scratch.total, one, tile.count * ratio_, stride_);
        }
        finish(tile, scratch.total);
      }
    }
  }

 private:
  // One thread's working memory, kept between calls, on cache lines of its own.
  struct Scratch {
    float *q, *keys, *values, *scores, *scale;
    Partial part, total;

    explicit Scratch(const Attention& a) {
      static thread_local std::vector<float> memory;
      int rows = a.tile_rows_, partial = Partial::size(rows, a.stride_);
      constexpr uintptr_t kLine = 64;
      size_t size = (size_t)rows * (a.stride_ + kChunk + 1) + 2 * kChunk * a.stride_ + 2 * partial + kLine;
      if (memory.size() < size) memory.resize(size);
      q = (float*)(((uintptr_t)memory.data() + kLine - 1) / kLine * kLine);
      keys = q + rows * a.stride_;
      values = keys + kChunk * a.stride_;
      scores = values + kChunk * a.stride_;
      part = Partial::at(scores + rows * kChunk, rows, a.stride_);
      total = Partial::at(part.sums + partial, rows, a.stride_);
      scale = total.sums + partial;
    }
  };

  int64_t work() const {
    int64_t keys = 0;
    for (const Tile& tile : tiles_) keys += (int64_t)tile.count * plan_.context[tile.request];
    return keys * ratio_ * layer_.dim * 2;
  }

  int position(const Tile& tile, int token) const {
    int request = tile.request;
    return plan_.context[request] - (plan_.starts[request + 1] - plan_.starts[request]) + tile.first + token;
  }

  Span span(const Tile& tile, int token) const {
    int at = position(tile, token), context = plan_.context[tile.request];
    int first = layer_.window ? std::max(0, at - layer_.window + 1) : 0;
    if (layer_.causal) return {first, at + 1};
    return {first, layer_.window ? std::min(context, at + layer_.window) : context};
  }
  Span span(const Tile& tile) const { return {span(tile, 0).first, span(tile, tile.count - 1).last}; }

  int token_index(const Tile& tile, int token) const { return plan_.starts[tile.request] + tile.first + token; }

  // The block of a request that holds `at`: keys [dim][block], or values [block][dim] of one KV head.
  T* block(const Tile& tile, int at, int64_t offset) const {
    int64_t page = plan_.tables[(int64_t)tile.request * plan_.width + at / cache_->block];
    return (T*)cache_->data + page * cache_->page + offset + (int64_t)tile.kv_head * cache_->block * layer_.dim;
  }

  void write(const Tile& tile) const {
    for (int token = 0; token < tile.count; ++token) {
      int at = position(tile, token), place = at % cache_->block, index = token_index(tile, token);
      const T* k = (const T*)tensors_.k + index * tensors_.k_stride + tile.kv_head * layer_.dim;
      const T* v = (const T*)tensors_.v + index * tensors_.v_stride + tile.kv_head * layer_.dim;
      T* keys = block(tile, at, layer_.key_offset) + place;
      for (int d = 0; d < layer_.dim; ++d) keys[(int64_t)d * cache_->block] = k[d];
      std::copy_n(v, layer_.dim, block(tile, at, layer_.value_offset) + place * layer_.dim);
    }
  }

  void read_queries(const Tile& tile, float* q) const {
    for (int token = 0; token < tile.count; ++token) {
      const T* from = (const T*)tensors_.q + token_index(tile, token) * tensors_.q_stride;
      for (int head = 0; head < ratio_; ++head)
        convert(from + (tile.kv_head * ratio_ + head) * layer_.dim, q + (token * ratio_ + head) * stride_);
    }
  }

  void convert(const T* from, float* to) const {
    for_vectors(layer_.dim, [&](int d, int n) { store(to + d, load_up_to(from + d, n)); });
  }

  // Keys and values at [from + first, from + last) of the chunk that begins at `from`, as floats.
  void read_chunk(const Tile& tile, int from, int first, int last, float* keys, float* values) const {
    if (!cache_) return read_step(tile, from, first, last, keys, values);
    int width = std::min(kChunk, cache_->block);
    for (int at = 0; at < last; at += width) {
      if (at + width <= first) continue;
      int place = (from + at) % cache_->block;
      const T* k = block(tile, from + at, layer_.key_offset) + place;
      for (int d = 0; d < layer_.dim; ++d)
        for (int i = 0; i < width; i += kLanes)
          store(keys + d * kChunk + at + i, load(k + (int64_t)d * cache_->block + i));
      const T* v = block(tile, from + at, layer_.value_offset) + place * layer_.dim;
      for (int i = std::max(0, first - at); i < std::min(width, last - at); ++i)
        convert(v + i * layer_.dim, values + (at + i) * stride_);
    }
  }

  // The same from the step's own tensors, for layers without a cache.
  void read_step(const Tile& tile, int from, int first, int last, float* keys, float* values) const {
    for (int i = first; i < last; ++i) {
      int64_t index = plan_.starts[tile.request] + from + i;
      const T* k = (const T*)tensors_.k + index * tensors_.k_stride + tile.kv_head * layer_.dim;
      convert(k, values + i * stride_);
      for (int d = 0; d < layer_.dim; ++d) keys[d * kChunk + i] = values[i * stride_ + d];
      convert((const T*)tensors_.v + index * tensors_.v_stride + tile.kv_head * layer_.dim, values + i * stride_);
    }
  }

  // Scores to softmax weights, relative to the new peak; `scale` is what earlier sums must shrink by.
  void soften(float* scores, int from, Span seen, int at, int head, float* peak, float* mass, float* scale) const {
    constexpr int kVectors = kChunk / kLanes;
    Floats x[kVectors], top = broadcast(kMinusInfinity);
    Ints visible[kVectors];
    for (int n = 0; n < kVectors; ++n) {
      Ints key = lane_numbers() + (from + n * kLanes);
      visible[n] = (key >= seen.first) & (key < seen.last);
      x[n] = load(scores + n * kLanes) * layer_.scale;
      if (layer_.soft_cap) x[n] = tanh(x[n] / layer_.soft_cap) * layer_.soft_cap;
      if (layer_.alibi) {
        Ints distance = at > key ? at - key : key - at;
        x[n] -= __builtin_convertvector(distance, Floats) * layer_.alibi[head];
      }
      x[n] = visible[n] ? x[n] : broadcast(kMinusInfinity);
      top = x[n] > top ? x[n] : top;
    }
    float new_peak = std::max(*peak, maximum(top));
    Floats total = {};
    for (int n = 0; n < kVectors; ++n) {
      Floats weight = visible[n] ? exp(x[n] - new_peak) : Floats{};
      store(scores + n * kLanes, weight);
      total += weight;
    }
    *scale = shrink(*peak, new_peak);
    *mass = *mass * *scale + sum(total);
    *peak = new_peak;
  }

  static Ints lane_numbers() {
    Ints lanes;
    for (int i = 0; i < kLanes; ++i) lanes[i] = i;
    return lanes;
  }

  // Everything a tile's rows see of keys [split * kSplit, (split + 1) * kSplit), into `part`.
  void attend(const Tile& tile, int split, Partial part, Scratch& scratch) const {
    part.clear(tile.count * ratio_, stride_);
    Span seen = span(tile);
    int begin = std::max(split * kSplit, seen.first), end = std::min((split + 1) * kSplit, seen.last);
    if (begin >= end) return;
    read_queries(tile, scratch.q);
    for (int from = begin / kChunk * kChunk; from < end; from += kChunk) {
      int first = std::max(0, begin - from), last = std::min(kChunk, end - from);
      read_chunk(tile, from, first, last, scratch.keys, scratch.values);
      int token = 0, tokens = tile.count;  // later tokens see later keys: skip those at both ends that see none of these
      while (token < tokens && span(tile, token).last <= from) ++token;
      while (tokens > token && span(tile, tokens - 1).first >= from + kChunk) --tokens;
      add_chunk(tile, from, first, last, token, tokens, part, scratch);
    }
  }

  void add_chunk(const Tile& tile, int from, int first, int last, int token, int tokens, Partial part, Scratch& s) const {
    int begin = token * ratio_, rows = tokens * ratio_;
    for_row_blocks(begin, rows, [&](auto block, int r) {
      score<block>(s.q + r * stride_, stride_, s.keys, layer_.dim, s.scores + r * kChunk);
    });
    for (int r = begin; r < rows; ++r)
      soften(s.scores + r * kChunk, from, span(tile, r / ratio_), position(tile, r / ratio_),
             tile.kv_head * ratio_ + r % ratio_, part.peak + r, part.mass + r, s.scale + r);
    for_row_blocks(begin, rows, [&](auto block, int r) {
      weigh_features<block>(s.scores + r * kChunk, s.scale + r, s.values, first, last, part.sums + r * stride_);
    });
  }

  template <int R>
  void weigh_features(const float* weights, const float* scale, const float* values, int from, int to, float* sums) const {
    int d = 0;
    for (; d + 4 * kLanes <= stride_; d += 4 * kLanes) weigh<R, 4>(weights, scale, values + d, from, to, stride_, sums + d);
    for (; d < stride_; d += kLanes) weigh<R, 1>(weights, scale, values + d, from, to, stride_, sums + d);
  }

  void finish(const Tile& tile, Partial total) const {
    for (int r = 0; r < tile.count * ratio_; ++r) {
      int head = tile.kv_head * ratio_ + r % ratio_;
      float mass = total.mass[r], scale = 1.0f;
      if (layer_.sinks) {
        float peak = std::max(total.peak[r], layer_.sinks[head]);
        scale = shrink(total.peak[r], peak);
        mass = mass * scale + exp_of(layer_.sinks[head] - peak);
      }
      scale = mass == 0.0f ? 0.0f : scale / mass;
      T* out = (T*)tensors_.out + ((int64_t)token_index(tile, r / ratio_) * layer_.heads + head) * layer_.dim;
      const float* sums = total.sums + r * stride_;
      for_vectors(layer_.dim, [&](int d, int n) { store_up_to(out + d, load(sums + d) * scale, n); });
    }
  }

  const Layer& layer_;
  const Plan& plan_;
  const Cache* cache_;
  const Tensors& tensors_;
  int ratio_, stride_, tile_rows_ = 0, splits_ = 1;
  std::vector<Tile> tiles_;
};

}  // namespace
}  // namespace lsv

extern "C" void lsv_attend(
    int dtype, const lsv::Layer* layer, const lsv::Plan* plan, const lsv::Cache* cache, const lsv::Tensors* tensors) {
  switch (dtype) {
    case lsv::kFloat32: return lsv::Attention<float>(*layer, *plan, cache, *tensors).run();
    case lsv::kBFloat16: return lsv::Attention<lsv::BFloat16>(*layer, *plan, cache, *tensors).run();
    case lsv::kFloat16: return lsv::Attention<lsv::Float16>(*layer, *plan, cache, *tensors).run();
  }
}
