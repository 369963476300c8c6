// Paged attention. K and V are read where they lie, split by split; splits lie at absolute positions, so that a query's
// arithmetic depends on its own context only, never on who shares its tile, step or thread.
#include "attention/attention.h"

#include <atomic>

#include "attention/amx.h"
#include "attention/turn.h"
#include "attention/walk.h"
#include "scratch.h"

namespace lsv {
namespace {

// Scores and weighs panels of keys with vectors. T: of the tensors; S: what the cache stores.
template <class T, class S> class VectorKernel : public QueryRows<T, S> {
  static constexpr bool kCoded = Pages<S>::kCoded;
  using Base = QueryRows<T, S>;
  using Line = std::conditional_t<kCoded, BFloat16, T>;  // what keys and values are multiplied as
  using D = std::conditional_t<std::is_same_v<Line, T>, Dot<T>, WideDot>;
  using Input = typename D::Input;
  using Base::head_of, Base::layer_, Base::pages_, Base::read_scales, Base::scaled_, Base::shared_, Base::stride_;
  using Base::tiles_, Base::values_of_;

 public:
  using Element = T;
  using Stored = S;
  static constexpr int kTileRows = 64, kLongTileRows = 64;

  static int64_t bytes(const Layer& layer, int64_t rows) { return Buffers(layer, rows).end; }

  VectorKernel(const Step& step, char* own_pages, char* own) : Base(step, own_pages) {
    const Buffers at(step.layer, step.tiles.max_rows);
    q_ = (Input*)own;
    scores_ = (float*)(own + at.scores);
    widened_ = (BFloat16*)(own + at.widened);
    turned_ = (Line*)(own + at.turned);
  }

  void read_queries(const Tile& tile) {
    const int rows = tiles_.rows(tile), pairs = (layer_.dim + D::kInputs - 1) / D::kInputs;
    Input row[kMaxDim + 1];
    row[layer_.dim] = Input{};
    for (int r = 0; r < rows; ++r) {
      convert(this->query(tile, r), row);
      for (int p = 0; p < pairs; ++p)
        std::memcpy(q_ + ((int64_t)p * rows + r) * D::kInputs, row + p * D::kInputs, sizeof(Input) * D::kInputs);
    }
  }

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

 private:
  // Places in the working memory.
  struct Buffers {
    int64_t scores, widened, turned, end;

    Buffers(const Layer& layer, int64_t rows) {
      scores = whole_lines(rows * round_up(layer.dim, 2) * 4);
      widened = scores + rows * kScoreStride * 4;
      turned = widened + whole_lines((int64_t)kPanelKeys * layer.dim * sizeof(BFloat16) + kLine);
      end = turned + whole_lines(layer.shares() ? (int64_t)kPanelKeys * layer.value_dim * sizeof(float) + kLine : 0);
    }
  };

  void convert(const T* from, Input* to) const {
    if constexpr (std::is_same_v<T, Input>) std::memcpy(to, from, layer_.dim * sizeof(T));
    else for_vectors(layer_.dim, [&](int d, int n) { store_up_to(to + d, load_up_to(from + d, n), n); });
  }

  // Where the lines of the keys that are seen begin; what a panel has beside them repeats others.
  void find_keys(const Tile& tile, int start, Span panel) {
    const int first = panel.first / kLanes, last = (panel.last - 1) / kLanes;
    if constexpr (kCoded)
      this->widen_blocks(start, panel, [&](int at) { return pages_.key(tile.request, tile.kv_head, at); }, widened_);
    for (int n = first / kBlockVectors * kBlockVectors; n < round_up(last + 1, kBlockVectors); ++n) {
      const int at = std::clamp(n, first, last) * kLanes;
      keys_[n] = key_lines(tile, start, at);
      if (layer_.dim % D::kInputs) odd_keys_[n] = odd_keys(tile, start, at);
    }
  }

  // Where the lines of the key at `at` of a panel begin; of codes, once its blocks are widened.
  const Line* key_lines(const Tile& tile, int start, int at) const {
    if constexpr (kCoded) return this->widened_key(widened_, at);
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

  void score_panel(const Tile& tile, int start, Span panel) {
    const int rows = tiles_.rows(tile);
    find_keys(tile, start, panel);
    const int64_t line = (shared_ ? pages_.key_line() : kLanes * Pages<S>::kPair) * sizeof(S);
    for (int at = panel.first / kScoreKeys * kScoreKeys; at < panel.last; at += kScoreKeys) {
      const int n = at / kLanes;
      for_row_blocks(rows, [&](auto block, int r) {
        score_keys<D, block>(q_ + r * D::kInputs, rows, keys_ + n, layer_.dim % D::kInputs ? odd_keys_ + n : nullptr,
                             layer_.dim / D::kInputs, line_of_keys(), scores_ + r * kScoreStride + at,
                             {r ? nullptr : ahead_ + n, line});
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
      this->widen_blocks(start, panel, [&](int at) { return pages_.values(tile.request, tile.kv_head, at); }, widened_);
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
    float* sums = to.sums + (int64_t)row * stride_;
    const float shrunk = Base::template soften_row<Input>(
        tile, row, start, round_up(panel.last, kLanes), 0, scores_ + row * kScoreStride, to.peak + row,
        sums + stride_ - kLanes);
    if (shrunk != 1.0f) rescale(sums, stride_ - kLanes, shrunk);
  }

  Input* q_;           // [pairs][rows][pair]
  float* scores_;      // [rows][kScoreStride]; weights take their place
  BFloat16* widened_;  // keys, then values of a panel, [kPanelKeys * dim]
  Line* turned_;       // values of a panel that are features of its keys
  const Line *keys_[kPanelKeys / kLanes], *odd_keys_[kPanelKeys / kLanes], *values_[kPanelKeys / kGroup];
  const char* ahead_[kPanelKeys / kLanes];  // stored lines that are needed next
};

std::atomic<int64_t> calls[2];  // with vectors, with tiles

void count_call(const Member& me, bool tiles) {
  if (me.rank == 0) calls[tiles].fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

int64_t attention_scratch(int dtype, const Layer& layer, const Plan& plan, int members, bool cached) {
#if defined(LSV_AMX)
  if (amx::attends(dtype, layer)) return amx::attention_scratch(layer, plan, members, cached);
#endif
  int64_t bytes = 0;
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    bytes = scratch_of<VectorKernel<T, T>>(layer, plan, members, cached);
  });
  return bytes;
}

void attend(Member& me, int dtype, const Layer& layer, const Plan& plan, const Cache* cache, const Tensors& tensors,
            char* scratch) {
#if defined(LSV_AMX)
  if (amx::attends(dtype, layer)) {
    count_call(me, true);
    return amx::attend(me, layer, plan, cache, tensors, scratch);
  }
#endif
  count_call(me, false);
  with_types(dtype, cache, [&](auto type, auto stored) {
    attend_with<VectorKernel<decltype(type), decltype(stored)>>(me, layer, plan, cache, tensors, scratch);
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

// How often this process has attended with vectors (0) or with tiles (1).
extern "C" int64_t lsv_attention_calls(int tiles) { return lsv::calls[tiles != 0]; }

// Whether a layer is attended to with tiles.
extern "C" int lsv_attends_on_tiles(int dtype, const lsv::Layer* layer) {
#if defined(LSV_AMX)
  return lsv::amx::attends(dtype, *layer);
#else
  return 0;
#endif
}
