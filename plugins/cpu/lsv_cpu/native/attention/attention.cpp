// Paged attention. K and V are read where they lie, split by split; splits lie at absolute positions, so that a query's
// arithmetic depends on its own context only, never on who shares its tile, step or thread.
#include "attention/attention.h"

#include "attention/kernels.h"
#include "gemm/epilogue.h"
#include "attention/pages.h"
#include "scratch.h"
#include "attention/tiles.h"
#include "attention/turn.h"

namespace lsv {
namespace {

constexpr int64_t kLine = 64;

int round_up(int n, int to) { return (n + to - 1) / to * to; }
int64_t whole_lines(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// Softmax-weighted sums over some keys, not yet divided: of exp2(score - peak), with values and, behind these in a row,
// without: one sum for each lane.
struct Partial {
  float *sums, *peak;  // [rows][stride], [rows]

  static int stride(const Layer& layer) { return round_up(layer.values(), kLanes) + kLanes; }
  static int64_t floats(int64_t rows, int stride) { return rows * (stride + 1); }
  static Partial at(float* place, int64_t rows, int stride) { return {place, place + rows * stride}; }
};

void rescale(float* sums, int stride, float factor) {
  for (int d = 0; d < stride; d += kLanes) store(sums + d, load(sums + d) * factor);
}

// Adds one row's sums over later keys.
void merge(Partial into, int to, Partial part, int from, int stride) {
  float peak = std::max(into.peak[to], part.peak[from]);
  float a = shrink(into.peak[to], peak), b = shrink(part.peak[from], peak);
  float *sums = into.sums + (int64_t)to * stride, *more = part.sums + (int64_t)from * stride;
  for (int d = 0; d < stride; d += kLanes)
    store(sums + d, multiply_add(load(more + d), broadcast(b), load(sums + d) * a));
  into.peak[to] = peak;
}

// Places in the working memory of a call: own pages, parts, then what each member has for itself.
struct Places {
  int64_t parts, member, member_bytes, q, scores, widened, turned, total, part;

  Places(const Layer& layer, const Tiles& tiles, int64_t own_bytes) {
    int stride = Partial::stride(layer);
    parts = whole_lines(own_bytes + kLine);  // the last line of values is read past its end
    member = parts + whole_lines(Partial::floats(tiles.parts, stride) * 4);
    q = 0;
    scores = q + whole_lines((int64_t)tiles.max_rows * round_up(layer.dim, 2) * 4);
    widened = scores + (int64_t)tiles.max_rows * kScoreStride * 4;
    turned = widened + whole_lines((int64_t)kPanelKeys * layer.dim * sizeof(BFloat16) + kLine);
    total = turned + whole_lines(layer.shares() ? (int64_t)kPanelKeys * layer.value_dim * sizeof(float) + kLine : 0);
    part = total + whole_lines(Partial::floats(tiles.max_rows, stride) * 4);
    member_bytes = part + part - total + kLine;
  }
};

// T: of the tensors; S: what the cache stores.
template <class T, class S> class Attention {
  static constexpr bool kCoded = Pages<S>::kCoded;
  using Line = std::conditional_t<kCoded, BFloat16, T>;  // what keys and values are multiplied as
  using D = std::conditional_t<std::is_same_v<Line, T>, Dot<T>, WideDot>;
  using Input = typename D::Input;

 public:
  Attention(const Layer& layer, const Plan& plan, const Cache* cache, const Tensors& tensors, const Tiles& tiles,
            const Places& places, char* scratch, int rank)
      : layer_(layer), plan_(plan), tensors_(tensors), tiles_(tiles), pages_(layer, plan, cache, scratch),
        stride_(Partial::stride(layer)), values_of_(layer.values()), shared_(layer.shares()),
        scaled_(pages_.form == kScaledInt8),
        plain_(!layer.soft_cap && !layer.alibi && !layer.biases && layer.scale > 0 && !scaled_) {
    const bool floats = pages_.form == kE4M3 || pages_.form == kE5M2;
    scale_ = floats ? layer.scale * layer.key_scale : layer.scale;
    value_factor_ = !floats ? 1.0f : shared_ ? layer.key_scale : layer.value_scale;
    char* own = scratch + places.member + rank * places.member_bytes;
    parts_ = Partial::at((float*)(scratch + places.parts), tiles.parts, stride_);
    q_ = (Input*)(own + places.q);
    scores_ = (float*)(own + places.scores);
    widened_ = (BFloat16*)(own + places.widened);
    turned_ = (Line*)(own + places.turned);
    total_ = Partial::at((float*)(own + places.total), tiles.max_rows, stride_);
    part_ = Partial::at((float*)(own + places.part), tiles.max_rows, stride_);
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

  void attend(const Item& item) {
    const Tile& tile = item.tile;
    const int rows = tiles_.rows(tile);
    read_queries(tile);
    for (int split = item.begin; split < item.end; ++split) {
      if (item.part >= 0) {
        attend(tile, split, part_at(item.part + (int64_t)(split - item.begin) * rows));
      } else if (split == item.begin) {
        attend(tile, split, total_);
      } else {
        attend(tile, split, part_);
        for (int r = 0; r < rows; ++r) merge(total_, r, part_, r, stride_);
      }
    }
    if (item.part < 0)
      for (int r = 0; r < rows; ++r) finish(tile, r, total_, r);
  }

  // One row of a tile whose splits members have shared.
  void finish(const Cut& cut, int row) {
    Partial total = part_at(cut.part);
    const int rows = tiles_.rows(cut.tile);
    for (int split = 1; split < cut.splits; ++split) merge(total, row, total, row + split * rows, stride_);
    finish(cut.tile, row, total, row);
  }

 private:
  Partial part_at(int64_t row) const { return {parts_.sums + row * stride_, parts_.peak + row}; }

  void read_queries(const Tile& tile) {
    const int rows = tiles_.rows(tile), pairs = (layer_.dim + D::kInputs - 1) / D::kInputs;
    Input row[kMaxDim + 1];
    row[layer_.dim] = Input{};
    for (int r = 0; r < rows; ++r) {
      const T* from = (const T*)tensors_.q + tiles_.token_index(tile, r / tiles_.ratio) * tensors_.q_stride;
      convert(from + (int64_t)head_of(tile, r) * layer_.dim, row);
      for (int p = 0; p < pairs; ++p)
        std::memcpy(q_ + ((int64_t)p * rows + r) * D::kInputs, row + p * D::kInputs, sizeof(Input) * D::kInputs);
    }
  }

  void convert(const T* from, Input* to) const {
    if constexpr (std::is_same_v<T, Input>) std::memcpy(to, from, layer_.dim * sizeof(T));
    else for_vectors(layer_.dim, [&](int d, int n) { store_up_to(to + d, load_up_to(from + d, n), n); });
  }

  int head_of(const Tile& tile, int row) const { return tile.kv_head * tiles_.ratio + row % tiles_.ratio; }

  // Everything a tile's rows see of keys [split * kSplit, (split + 1) * kSplit).
  void attend(const Tile& tile, int split, Partial to) {
    const Span all = tiles_.span(tile);
    const Span seen = {std::max(all.first, split * kSplit), std::min(all.last, (split + 1) * kSplit)};
    std::fill_n(to.sums, (int64_t)tiles_.rows(tile) * stride_, 0.0f);
    std::fill_n(to.peak, tiles_.rows(tile), kMinusInfinity);
    for (int start = seen.first / kPanelKeys * kPanelKeys; start < seen.last; start += kPanelKeys) {
      const Span panel = {std::max(seen.first - start, 0), std::min(seen.last - start, kPanelKeys)};
      if (shared_) look_ahead_to_keys(tile, start + kPanelKeys, all.last);
      else look_ahead_to_values(tile, start, panel);
      if (scaled_) read_scales(tile, start, panel);
      score_panel(tile, start, panel);
      for (int r = 0; r < tiles_.rows(tile); ++r) soften_row(tile, r, start, panel, to);
      if (shared_) turn_keys(tile, start, panel);
      else look_ahead_to_keys(tile, start + kPanelKeys, all.last);
      weigh_panel(tile, start, panel, to.sums);
    }
  }

  // Where the lines of the keys that are seen begin; what a panel has beside them repeats others.
  void find_keys(const Tile& tile, int start, Span panel) {
    const int first = panel.first / kLanes, last = (panel.last - 1) / kLanes;
    if constexpr (kCoded)
      widen_blocks(start, panel, [&](int at) { return pages_.key(tile.request, tile.kv_head, at); });
    for (int n = first / kBlockVectors * kBlockVectors; n < round_up(last + 1, kBlockVectors); ++n) {
      const int at = std::clamp(n, first, last) * kLanes;
      keys_[n] = key_lines(tile, start, at);
      if (layer_.dim % D::kInputs) odd_keys_[n] = odd_keys(tile, start, at);
    }
  }

  // Where the lines of the key at `at` of a panel begin; of codes, once its blocks are widened.
  const Line* key_lines(const Tile& tile, int start, int at) const {
    const int slot = pages_.slot(at);
    if constexpr (kCoded) return widened_ + (int64_t)(at - slot) * layer_.dim + slot * D::kInputs;
    else return pages_.key(tile.request, tile.kv_head, start + at);
  }

  const Line* odd_keys(const Tile& tile, int start, int at) const {
    const int slot = pages_.slot(at);
    if constexpr (kCoded)
      return widened_ + (int64_t)(at - slot) * layer_.dim + layer_.dim / D::kInputs * pages_.key_line() + slot;
    else return pages_.odd_key(tile.request, tile.kv_head, start + at);
  }

  // What scoring fetches meanwhile: the values of the same keys.
  void look_ahead_to_values(const Tile& tile, int start, Span panel) {
    const int first = panel.first / kLanes, last = (panel.last - 1) / kLanes;
    for (int n = first / kBlockVectors * kBlockVectors; n < round_up(last + 1, kBlockVectors); ++n)
      ahead_[n] = (const char*)pages_.values(tile.request, tile.kv_head, start + std::clamp(n, first, last) * kLanes);
  }

  // What weighing fetches meanwhile: the keys of the panel at `start`, or anything where the tile sees none there.
  void look_ahead_to_keys(const Tile& tile, int start, int last) {
    for (int n = 0; n < kPanelKeys / kLanes; ++n)
      ahead_[n] = (const char*)pages_.key(tile.request, tile.kv_head, std::min(start + n * kLanes, last - 1));
  }

  void read_scales(const Tile& tile, int start, Span panel) {
    for (int at = panel.first / kGroup * kGroup; at < panel.last; at += kGroup) {
      std::memcpy(key_scales_ + at, pages_.key_scales(tile.request, tile.kv_head, start + at), kGroup * 4);
      std::memcpy(value_scales_ + at, pages_.value_scales(tile.request, tile.kv_head, start + at), kGroup * 4);
    }
  }

  // Codes as numbers, in the same order: the blocks of a panel one after the other. `block_at` says where one lies.
  template <class F> void widen_blocks(int start, Span panel, F&& block_at) {
    const int64_t size = (int64_t)pages_.block * layer_.dim;
    for (int at = panel.first / pages_.block * pages_.block; at < panel.last; at += pages_.block)
      widen(pages_.form, block_at(start + at), size, widened_ + (int64_t)at * layer_.dim);
  }

  void score_panel(const Tile& tile, int start, Span panel) {
    const int rows = tiles_.rows(tile);
    find_keys(tile, start, panel);
    const int64_t line = (shared_ ? pages_.key_line() : kLanes * Pages<S>::kPair) * sizeof(S);
    for (int at = panel.first / kScoreKeys * kScoreKeys; at < panel.last; at += kScoreKeys) {
      const int n = at / kLanes;
      for_row_blocks(rows, [&](auto block, int r) {
        score<D, block>(q_ + r * D::kInputs, rows, keys_ + n, layer_.dim % D::kInputs ? odd_keys_ + n : nullptr,
                        layer_.dim / D::kInputs, line_of_keys(),
                        scores_ + r * kScoreStride + at, {r ? nullptr : ahead_ + n, line});
      });
    }
  }

  int64_t line_of_keys() const { return pages_.key_line() / Pages<S>::kPair * D::kInputs; }

  // Values that are features of the keys just scored, in lines like others. What is behind the last key is none: an
  // earlier tenant's.
  void turn_keys(const Tile& tile, int start, Span panel) {
    constexpr int kPair = D::kInputs;
    for (int group = panel.first / kGroup; group * kGroup < panel.last; ++group) {
      Line* to = turned_ + (int64_t)group * kGroup * values_of_;
      const Line* odd = layer_.dim % kPair ? odd_keys(tile, start, group * kGroup) : nullptr;
      turn<kPair>(key_lines(tile, start, group * kGroup), line_of_keys(), layer_.dim, values_of_, odd, to);
      values_[group] = to;
    }
    if (panel.last % kPair == 0) return;
    Line* last = turned_ + (int64_t)(panel.last - 1) * values_of_;
    for (int d = 0; d < values_of_; ++d) last[d * kPair + 1] = Line{};
  }

  void find_values(const Tile& tile, int start, Span panel) {
    if constexpr (kCoded)
      widen_blocks(start, panel, [&](int at) { return pages_.values(tile.request, tile.kv_head, at); });
    for (int group = panel.first / kGroup; group * kGroup < panel.last; ++group) {
      if constexpr (kCoded) values_[group] = widened_ + (int64_t)group * kGroup * layer_.dim;
      else values_[group] = pages_.values(tile.request, tile.kv_head, start + group * kGroup);
    }
  }

  void weigh_panel(const Tile& tile, int start, Span panel, float* sums) {
    if (!shared_) find_values(tile, start, panel);
    const int from = panel.first / D::kInputs * D::kInputs;
    const int64_t line = pages_.key_line() * sizeof(S);
    for_row_blocks(tiles_.rows(tile), [&](auto block, int r) {
      weigh_features<D, block>((const Input*)(scores_ + r * kScoreStride), values_, values_of_, from, panel.last,
                               (int64_t)values_of_ * D::kInputs, sums + (int64_t)r * stride_, stride_,
                               {r || shared_ ? nullptr : ahead_, line});
    });
  }

  void soften_row(const Tile& tile, int row, int start, Span panel, Partial to) {
    const int token = row / tiles_.ratio, until = round_up(panel.last, kLanes);
    float *scores = scores_ + row * kScoreStride, *sums = to.sums + (int64_t)row * stride_, factor = scale_ * kLog2E;
    if (!plain_) {
      shape(scores, until, start, tiles_.position(tile, token), head_of(tile, row));
      factor = kLog2E;
    }
    Span seen = tiles_.span(tile, token);
    float* mass = sums + stride_ - kLanes;
    float shrunk = soften<Input>(scores, until, seen.first - start, seen.last - start, factor,
                                  scaled_ ? value_scales_ : nullptr, to.peak + row, mass);
    if (shrunk != 1.0f) rescale(sums, stride_ - kLanes, shrunk);
  }

  // What some layers do to scores: soft cap, and a penalty on or a bias by the distance between key and query.
  void shape(float* scores, int to, int start, int at, int head) const {
    for (int i = 0; i < to; i += kLanes) {
      Floats x = load(scores + i) * scale_;
      if (scaled_) x *= load(key_scales_ + i);
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

  const Layer& layer_;
  const Plan& plan_;
  const Tensors& tensors_;
  const Tiles& tiles_;
  const Pages<S> pages_;
  const int stride_, values_of_;  // features of a value, and of an output
  const bool shared_;  // values are features of keys
  const bool scaled_;  // each key and value has a scale of its own
  const bool plain_;   // scores are only scaled, and all alike
  float scale_, value_factor_;
  Input* q_;           // [pairs][rows][pair]
  float* scores_;      // [rows][kScoreStride]; weights take their place
  BFloat16* widened_;  // keys, then values of a panel, [kPanelKeys * dim]
  Line* turned_;       // values of a panel that are features of its keys
  Partial parts_, total_, part_;
  float key_scales_[kPanelKeys], value_scales_[kPanelKeys];
  const Line *keys_[kPanelKeys / kLanes], *odd_keys_[kPanelKeys / kLanes], *values_[kPanelKeys / kGroup];
  const char* ahead_[kPanelKeys / kLanes];  // stored lines that are needed next
};

}  // namespace

int64_t attention_scratch(int dtype, const Layer& layer, const Plan& plan, int members, bool cached) {
  int64_t bytes = 0;
  with_type(dtype, [&](auto type) {
    Places places(layer, Tiles(layer, plan, members), cached ? 0 : Pages<decltype(type)>::own_bytes(layer, plan));
    bytes = places.member + members * places.member_bytes;
  });
  return bytes;
}

void attend(Member& me, int dtype, const Layer& layer, const Plan& plan, const Cache* cache, const Tensors& tensors,
            char* scratch) {
  with_types(dtype, cache, [&](auto type, auto stored) {
    using T = decltype(type);
    using S = decltype(stored);
    Tiles tiles(layer, plan, me.size);
    Places places(layer, tiles, cache ? 0 : Pages<T>::own_bytes(layer, plan));
    Attention<T, S> attention(layer, plan, cache, tensors, tiles, places, scratch, me.rank);
    if constexpr (!Pages<S>::kCoded) {
      if (!cache) {
        attention.write(me.share(plan.starts[plan.requests]));
        me.barrier();
      }
    }
    for (int64_t i = me.claim(); i < (int64_t)tiles.items.size(); i = me.claim()) attention.attend(tiles.items[i]);
    if (tiles.cuts.empty()) return;
    me.barrier();
    for (const Cut& cut : tiles.cuts) {
      Range mine = me.share(tiles.rows(cut.tile));
      for (int64_t row = mine.begin; row < mine.end; ++row) attention.finish(cut, (int)row);
    }
  });
}

}  // namespace lsv

extern "C" int lsv_attend(
    int dtype, const lsv::Layer* layer, const lsv::Plan* plan, const lsv::Cache* cache, const lsv::Tensors* tensors) {
  using namespace lsv;
  return status_of([&] {
    Turn turn;
    Scratch scratch(attention_scratch(dtype, *layer, *plan, turn.members(), cache));
    turn.run([&](Member& me) {
      if (cache && tensors->k) {
        place_heads(me, dtype, *layer, *plan, cache, *tensors, HeadTurn{});
        me.barrier();
      }
      attend(me, dtype, *layer, *plan, cache, *tensors, scratch.data);
    });
  });
}
