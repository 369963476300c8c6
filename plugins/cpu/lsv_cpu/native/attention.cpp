// Paged attention. K and V are read where they lie, split by split; splits lie at absolute positions, so that a query's
// arithmetic depends on its own context only, never on who shares its tile, step or thread.
#include "attention.h"

#include "attention_kernels.h"
#include "epilogue.h"
#include "attention_pages.h"
#include "scratch.h"
#include "attention_tiles.h"

namespace lsv {
namespace {

constexpr int kMaxDim = 512;
constexpr int kWeighKeys = 128;  // keys whose values stay in the first cache while all rows weigh them
constexpr int64_t kLine = 64;

int round_up(int n, int to) { return (n + to - 1) / to * to; }
int64_t whole_lines(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// Softmax-weighted sums over some keys, not yet divided: of exp2(score - peak), with and without values.
struct Partial {
  float *sums, *peak, *mass;  // [rows][stride], [rows], [rows]

  static int64_t floats(int64_t rows, int stride) { return rows * (stride + 2); }
  static Partial at(float* place, int64_t rows, int stride) {
    return {place, place + rows * stride, place + rows * (stride + 1)};
  }
};

// Adds one row's sums over later keys.
void merge(Partial into, int to, Partial part, int from, int stride) {
  float peak = std::max(into.peak[to], part.peak[from]);
  float a = shrink(into.peak[to], peak), b = shrink(part.peak[from], peak);
  float *sums = into.sums + (int64_t)to * stride, *more = part.sums + (int64_t)from * stride;
  for (int d = 0; d < stride; d += kLanes)
    store(sums + d, multiply_add(load(more + d), broadcast(b), load(sums + d) * a));
  into.mass[to] = into.mass[to] * a + part.mass[from] * b;
  into.peak[to] = peak;
}

// Places in the working memory of a call: own pages, parts, then what each member has for itself.
struct Places {
  int64_t parts, member, member_bytes, q, scores, total, part;

  Places(const Layer& layer, const Tiles& tiles, int64_t own_bytes) {
    int stride = round_up(layer.dim, kLanes);
    parts = whole_lines(own_bytes + kLine);  // the last line of values is read past its end
    member = parts + whole_lines(Partial::floats(tiles.parts, stride) * 4);
    q = 0;
    scores = q + whole_lines((int64_t)tiles.max_rows * round_up(layer.dim, 2) * 4);
    total = scores + (int64_t)tiles.max_rows * kScoreStride * 4;
    part = total + whole_lines(Partial::floats(tiles.max_rows, stride) * 4);
    member_bytes = part + part - total + kLine;
  }
};

template <class T> class Attention {
  using D = Dot<T>;
  using Input = typename D::Input;

 public:
  Attention(const Layer& layer, const Plan& plan, const Cache* cache, const Tensors& tensors, const Tiles& tiles,
            const Places& places, char* scratch, int rank)
      : layer_(layer), plan_(plan), tensors_(tensors), tiles_(tiles), pages_(layer, plan, cache, scratch),
        stride_(round_up(layer.dim, kLanes)), plain_(!layer.soft_cap && !layer.alibi && layer.scale > 0) {
    char* own = scratch + places.member + rank * places.member_bytes;
    parts_ = Partial::at((float*)(scratch + places.parts), tiles.parts, stride_);
    q_ = (Input*)(own + places.q);
    scores_ = (float*)(own + places.scores);
    total_ = Partial::at((float*)(own + places.total), tiles.max_rows, stride_);
    part_ = Partial::at((float*)(own + places.part), tiles.max_rows, stride_);
  }

  // Writes the step's keys and values to pages of its own.
  void write(Range tokens) const {
    for (int64_t token = tokens.begin, request = 0; token < tokens.end; ++token) {
      while (token >= plan_.starts[request + 1]) ++request;
      for (int head = 0; head < layer_.kv_heads; ++head) {
        int at = (int)token - plan_.starts[request];
        pages_.write_key(request, head, at, (const T*)tensors_.k + token * tensors_.k_stride + (int64_t)head * layer_.dim);
        pages_.write_values(request, head, at, tensors_, token);
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
    for (int split = 1; split < cut.splits; ++split) merge(total, row, total, row + split * tiles_.rows(cut.tile), stride_);
    finish(cut.tile, row, total, row);
  }

 private:
  Partial part_at(int64_t row) const { return {parts_.sums + row * stride_, parts_.peak + row, parts_.mass + row}; }

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
    const int rows = tiles_.rows(tile), start = split * kSplit;
    Span seen = tiles_.span(tile);
    seen = {std::max(0, seen.first - start), std::min(kSplit, seen.last - start)};
    find_lines(tile, start, seen);
    for (int at = seen.first / kPanelKeys * kPanelKeys; at < seen.last; at += kPanelKeys) score_panel(rows, at);
    for (int r = 0; r < rows; ++r) soften_row(tile, r, start, seen, to);
    std::fill_n(to.sums, rows * stride_, 0.0f);
    for (int from = seen.first; from < seen.last; from = (from / kWeighKeys + 1) * kWeighKeys)
      weigh_panel(rows, from / D::kInputs * D::kInputs, std::min(seen.last, (from / kWeighKeys + 1) * kWeighKeys), to.sums);
  }

  // Where the lines of the keys and values that are seen begin; what a panel has beside them repeats others.
  void find_lines(const Tile& tile, int start, Span seen) {
    for (int group = seen.first / kGroup; group * kGroup < seen.last; ++group)
      values_[group] = pages_.values(tile.request, tile.kv_head, start + group * kGroup);
    const int first = seen.first / kLanes, last = (seen.last - 1) / kLanes, panel = kBlockVectors;
    for (int n = first / panel * panel; n < round_up(last + 1, panel); ++n) {
      int at = start + std::clamp(n, first, last) * kLanes;
      keys_[n] = pages_.key(tile.request, tile.kv_head, at);
      if (layer_.dim % D::kInputs) odd_keys_[n] = pages_.odd_key(tile.request, tile.kv_head, at);
    }
  }

  void score_panel(int rows, int at) {
    const T* const* odd = layer_.dim % D::kInputs ? odd_keys_ + at / kLanes : nullptr;
    for_row_blocks(rows, [&](auto block, int r) {
      score<T, block>(q_ + r * D::kInputs, rows, keys_ + at / kLanes, odd, layer_.dim / D::kInputs, pages_.key_line(),
                      scores_ + r * kScoreStride + at);
    });
  }

  void weigh_panel(int rows, int from, int to, float* sums) {
    for_row_blocks(rows, [&](auto block, int r) {
      weigh_features<T, block>((const Input*)(scores_ + r * kScoreStride), values_, layer_.dim, from, to,
                               pages_.value_line(), sums + (int64_t)r * stride_, stride_);
    });
  }

  void soften_row(const Tile& tile, int row, int start, Span panel, Partial to) {
    const int token = row / tiles_.ratio, from = panel.first / kLanes * kLanes, until = round_up(panel.last, kLanes);
    float *scores = scores_ + row * kScoreStride, factor = layer_.scale * kLog2E;
    if (!plain_) {
      shape(scores, from, until, start, tiles_.position(tile, token), head_of(tile, row));
      factor = kLog2E;
    }
    Span seen = tiles_.span(tile, token);
    soften<Input>(scores, from, until, seen.first - start, seen.last - start, factor, to.peak + row, to.mass + row);
  }

  // What some layers do to scores: soft cap, and a penalty on the distance between key and query.
  void shape(float* scores, int from, int to, int start, int at, int head) const {
    for (int i = from; i < to; i += kLanes) {
      Floats x = load(scores + i) * layer_.scale;
      if (layer_.soft_cap) x = tanh(x / layer_.soft_cap) * layer_.soft_cap;
      if (layer_.alibi) {
        Ints key = lane_numbers() + (start + i), distance = at > key ? at - key : key - at;
        x -= __builtin_convertvector(distance, Floats) * layer_.alibi[head];
      }
      store(scores + i, x);
    }
  }

  void finish(const Tile& tile, int row, Partial total, int at) const {
    const int head = head_of(tile, row), token = tiles_.token_index(tile, row / tiles_.ratio);
    float mass = total.mass[at], scale = 1.0f;
    if (layer_.sinks) {
      float sink = layer_.sinks[head] * kLog2E, peak = std::max(total.peak[at], sink);
      scale = shrink(total.peak[at], peak);
      mass = mass * scale + shrink(sink, peak);
    }
    scale = mass == 0.0f ? 0.0f : scale / mass;
    T* out = (T*)tensors_.out + ((int64_t)token * layer_.heads + head) * layer_.dim;
    const float* sums = total.sums + (int64_t)at * stride_;
    for_vectors(layer_.dim, [&](int d, int n) { store_up_to(out + d, load(sums + d) * scale, n); });
  }

  const Layer& layer_;
  const Plan& plan_;
  const Tensors& tensors_;
  const Tiles& tiles_;
  const Pages<T> pages_;
  const int stride_;
  const bool plain_;  // scores are only scaled
  Input* q_;          // [pairs][rows][pair]
  float* scores_;     // [rows][kScoreStride]; weights take their place
  Partial parts_, total_, part_;
  const T *keys_[kSplit / kLanes], *odd_keys_[kSplit / kLanes], *values_[kGroups];
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
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    Tiles tiles(layer, plan, me.size);
    Places places(layer, tiles, cache ? 0 : Pages<T>::own_bytes(layer, plan));
    Attention<T> attention(layer, plan, cache, tensors, tiles, places, scratch, me.rank);
    if (!cache) {
      attention.write(me.share(plan.starts[plan.requests]));
      me.barrier();
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

extern "C" void lsv_attend(
    int dtype, const lsv::Layer* layer, const lsv::Plan* plan, const lsv::Cache* cache, const lsv::Tensors* tensors) {
  using namespace lsv;
  Scratch scratch(attention_scratch(dtype, *layer, *plan, team_size(), cache));
  run([&](Member& me) {
    if (cache && tensors->k) {
      place_heads(me, dtype, *layer, *plan, cache, *tensors, HeadTurn{});
      me.barrier();
    }
    attend(me, dtype, *layer, *plan, cache, *tensors, scratch.data);
  });
}
