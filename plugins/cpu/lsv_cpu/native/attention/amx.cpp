// Attention with tile instructions: scores of 32 rows with a whole split of keys, their weights, and these times the
// values. K and V lie as tiles take them, so that nothing is packed but the queries. One token of a long context and a
// thousand of a prompt run the same instructions in the same order of keys.
#if defined(LSV_AMX)

#include "attention/amx.h"

#include "attention/walk.h"
#include "gemm/tiles.h"

namespace lsv {
namespace amx {
namespace {

constexpr int kRows = tiles::kRows;      // of a tile
constexpr int kPairRows = 2 * kRows;     // that are multiplied at once
constexpr int kTileKeys = 16;            // of a tile of K
constexpr int kBlockKeys = 32;           // of a tile of V: 16 pairs
constexpr int kWideKeys = 64;            // that one block of rows is scored with at once
constexpr int kTileFeatures = 32;        // of a tile of queries or keys
constexpr int kStride = kSplit + 16;     // floats from row to row of scores: no power of two, for the cache's sets
constexpr int kStrideBytes = kStride * sizeof(float);

static_assert(kTileKeys == kGroup, "the lines of a tile's keys lie in one block");

// The lines of a split's keys: 16 of them from `groups[i]` on, `line` bytes from one pair of features to the next.
struct Keys {
  const BFloat16* groups[kSplit / kTileKeys];
  int64_t line;
};

// The values of a split: 32 of them from `blocks[i]` on, `line` bytes from one pair of keys to the next.
struct Values {
  const BFloat16* blocks[kSplit / kBlockKeys];
  int64_t line;
};

void zero_sums() {
  tiles::zero<0>();
  tiles::zero<1>();
  tiles::zero<2>();
  tiles::zero<3>();
}

// Two blocks of rows, 16 columns in tiles 0 and 2, the next 16 in tiles 1 and 3.
void store_pair(float* sums, int64_t stride) {
  char* to = (char*)sums;
  tiles::store<0>(to, stride);
  tiles::store<1>(to + tiles::kLineBytes, stride);
  tiles::store<2>(to + kRows * stride, stride);
  tiles::store<3>(to + kRows * stride + tiles::kLineBytes, stride);
}

// One block of rows, 16 columns in each of the first `kCount` tiles.
template <int kCount> void store_wide(float* sums, int64_t stride) {
  char* to = (char*)sums;
  tiles::store<0>(to, stride);
  tiles::store<1>(to + tiles::kLineBytes, stride);
  if constexpr (kCount == 4) {
    tiles::store<2>(to + 2 * tiles::kLineBytes, stride);
    tiles::store<3>(to + 3 * tiles::kLineBytes, stride);
  }
}

// Scores of two blocks of rows with 32 keys. q: [2][count] tiles.
void score_pair(const char* q, int count, const Keys& keys, int at, float* scores) {
  const char *first = (const char*)keys.groups[at / kTileKeys], *second = (const char*)keys.groups[at / kTileKeys + 1];
  const int64_t step = kRows * keys.line;
  zero_sums();
  for (int d = 0; d < count; ++d) {
    tiles::load<6>(first + d * step, keys.line);
    tiles::load<4>(q + d * kTileBytes, tiles::kLineBytes);
    tiles::multiply_bf16<0, 4, 6>();
    tiles::load<7>(second + d * step, keys.line);
    tiles::multiply_bf16<1, 4, 7>();
    tiles::load<5>(q + (count + d) * kTileBytes, tiles::kLineBytes);
    tiles::multiply_bf16<2, 5, 6>();
    tiles::multiply_bf16<3, 5, 7>();
    tiles::stay_awake();
  }
  store_pair(scores + at, kStrideBytes);
}

// Scores of one block of rows with 64 keys. q: [count] tiles.
void score_wide(const char* q, int count, const Keys& keys, int at, float* scores) {
  const BFloat16* const* groups = keys.groups + at / kTileKeys;
  const int64_t step = kRows * keys.line;
  zero_sums();
  for (int d = 0; d < count; ++d) {
    const int64_t offset = d * step;
    tiles::load<4>(q + d * kTileBytes, tiles::kLineBytes);
    tiles::load<6>((const char*)groups[0] + offset, keys.line);
    tiles::multiply_bf16<0, 4, 6>();
    tiles::load<7>((const char*)groups[1] + offset, keys.line);
    tiles::multiply_bf16<1, 4, 7>();
    tiles::load<6>((const char*)groups[2] + offset, keys.line);
    tiles::multiply_bf16<2, 4, 6>();
    tiles::load<7>((const char*)groups[3] + offset, keys.line);
    tiles::multiply_bf16<3, 4, 7>();
    tiles::stay_awake();
  }
  store_wide<4>(scores + at, kStrideBytes);
}

// The weights of a block of rows with the keys of `blocks`, and what they are multiplied by from `feature` on.
struct Weighing {
  const char* weights;  // [rows][blocks * 32], kStrideBytes apart
  const BFloat16* const* blocks;
  int count;
  int64_t line;  // of values, in bytes

  const char* values(int block, int feature) const { return (const char*)(blocks[block] + 2 * feature); }
};

// Two blocks of rows, 32 features.
void weigh_pair(const Weighing& w, int feature, float* sums, int64_t stride) {
  zero_sums();
  for (int i = 0; i < w.count; ++i) {
    const char *values = w.values(i, feature), *weights = w.weights + i * tiles::kLineBytes;
    tiles::load<6>(values, w.line);
    tiles::load<4>(weights, kStrideBytes);
    tiles::multiply_bf16<0, 4, 6>();
    tiles::load<7>(values + tiles::kLineBytes, w.line);
    tiles::multiply_bf16<1, 4, 7>();
    tiles::load<5>(weights + kRows * kStrideBytes, kStrideBytes);
    tiles::multiply_bf16<2, 5, 6>();
    tiles::multiply_bf16<3, 5, 7>();
    tiles::stay_awake();
  }
  store_pair(sums + feature, stride);
}

// One block of rows, 16 features for each of `kCount` tiles.
template <int kCount> void weigh_wide(const Weighing& w, int feature, float* sums, int64_t stride) {
  zero_sums();
  for (int i = 0; i < w.count; ++i) {
    const char* values = w.values(i, feature);
    tiles::load<4>(w.weights + i * tiles::kLineBytes, kStrideBytes);
    tiles::load<6>(values, w.line);
    tiles::multiply_bf16<0, 4, 6>();
    tiles::load<7>(values + tiles::kLineBytes, w.line);
    tiles::multiply_bf16<1, 4, 7>();
    if constexpr (kCount == 4) {
      tiles::load<6>(values + 2 * tiles::kLineBytes, w.line);
      tiles::multiply_bf16<2, 4, 6>();
      tiles::load<7>(values + 3 * tiles::kLineBytes, w.line);
      tiles::multiply_bf16<3, 4, 7>();
    }
    tiles::stay_awake();
  }
  store_wide<kCount>(sums + feature, stride);
}

// S: what the cache stores.
template <class S> class TileKernel : public QueryRows<BFloat16, S> {
  static constexpr bool kCoded = Pages<S>::kCoded;
  using Base = QueryRows<BFloat16, S>;
  using Base::layer_, Base::pages_, Base::read_scales, Base::scaled_, Base::stride_, Base::tiles_, Base::values_of_;

 public:
  using Element = BFloat16;
  using Stored = S;
  static constexpr int kTileRows = 128, kLongTileRows = 256;

  static int64_t bytes(const Layer& layer, int64_t rows) { return Buffers(layer, rows).end; }

  TileKernel(const Step& step, char* own_pages, char* own) : Base(step, own_pages) {
    const Buffers at(step.layer, step.tiles.max_rows);
    q_ = own;
    scores_ = (float*)(own + at.scores);
    own_keys_ = (BFloat16*)(own + at.keys);
    own_values_ = (BFloat16*)(own + at.values);
    keys_.line = pages_.key_line() * sizeof(BFloat16);
    values_.line = pages_.value_line() * sizeof(BFloat16);
  }

  void read_queries(const Tile& tile) {
    for (int r = 0; r < tiles_.rows(tile); ++r) {
      const BFloat16* from = this->query(tile, r);
      char* to = queries_of(r) + r % kRows * tiles::kLineBytes;
      for (int d = 0; d < layer_.dim; d += kTileFeatures, to += kTileBytes)
        std::memcpy(to, from + d, tiles::kLineBytes);
    }
  }

  void attend(const Tile& tile, int split, Partial to) {
    const int start = split * kSplit, rows = tiles_.rows(tile);
    const Span seen = seen_of_split(tiles_.span(tile), start);
    if (scaled_) read_scales(tile, start, seen);
    find_keys(tile, start, seen);
    find_values(tile, start, seen);
    for (int row = 0; row < rows; row += kPairRows) attend_rows(tile, start, row, std::min(kPairRows, rows - row), to);
  }

 private:
  // Places in the working memory; queries come first.
  struct Buffers {
    int64_t scores, keys, values, end;

    Buffers(const Layer& layer, int64_t rows) {
      const int64_t split = (int64_t)kSplit * layer.dim * sizeof(BFloat16);
      scores = (rows + kRows - 1) / kRows * kRows * layer.dim * sizeof(BFloat16);
      keys = scores + kPairRows * kStrideBytes;
      values = keys + split;
      end = values + split;
    }
  };

  static Span seen_of_split(Span seen, int start) {
    return {std::max(seen.first - start, 0), std::min(seen.last - start, kSplit)};
  }

  char* queries_of(int row) const { return q_ + row / kRows * (layer_.dim / kTileFeatures) * kTileBytes; }

  // Some rows of a tile with the keys that any of them sees; the others of their first and last block weigh nothing.
  void attend_rows(const Tile& tile, int start, int row, int count, Partial to) {
    float* sums = to.sums + (int64_t)row * stride_;
    for (int r = 0; r < count; ++r) {
      std::fill_n(sums + (int64_t)(r + 1) * stride_ - kLanes, kLanes, 0.0f);
      to.peak[row + r] = kMinusInfinity;
    }
    const int first = row / tiles_.ratio, last = (row + count - 1) / tiles_.ratio;
    const Span seen = seen_of_split({tiles_.span(tile, first).first, tiles_.span(tile, last).last}, start);
    if (seen.first >= seen.last) {
      for (int r = 0; r < count; ++r) std::fill_n(sums + (int64_t)r * stride_, values_of_, 0.0f);
      return;
    }
    const Span whole = {seen.first / kBlockKeys * kBlockKeys, round_up(seen.last, kBlockKeys)};
    shapes_.set_pair(count, tiles::kLineBytes);
    score_rows(tile, start, row, count, whole);
    for (int r = 0; r < count; ++r)
      Base::template soften_row<BFloat16>(tile, row + r, start + whole.first, whole.last - whole.first, whole.first,
                                          scores_ + r * kStride + whole.first, to.peak + row + r,
                                          sums + (int64_t)(r + 1) * stride_ - kLanes);
    weigh_rows(count, whole, sums);
  }

  void score_rows(const Tile& tile, int start, int row, int count, Span whole) {
    const bool pair = count > kRows;
    const int step = pair ? kBlockKeys : kWideKeys, parts = (tiles_.rows(tile) + kPairRows - 1) / kPairRows;
    const int last = tiles_.span(tile).last;
    for (int at = whole.first / step * step; at < whole.last; at += step) {
      (pair ? score_pair : score_wide)(queries_of(row), layer_.dim / kTileFeatures, keys_, at, scores_);
      if constexpr (!kCoded)
        for (int key = start + kSplit + at; key < std::min(start + kSplit + at + step, last); key += kGroup)
          fetch(tile, key, row / kPairRows, parts);
    }
  }

  // One of equal parts of the lines of 16 keys and their values, into the second-level cache: the rows of a tile together
  // fetch what they read after this split.
  void fetch(const Tile& tile, int key, int part, int parts) const {
    const char* keys = (const char*)pages_.key(tile.request, tile.kv_head, key);
    const char* values = (const char*)pages_.values(tile.request, tile.kv_head, key);
    const int lines = layer_.dim / 2;
    for (int i = lines * part / parts; i < lines * (part + 1) / parts; ++i) {
      __builtin_prefetch(keys + i * keys_.line, 0, kSecondLevel);
      __builtin_prefetch(values + i * tiles::kLineBytes, 0, kSecondLevel);
    }
  }

  void weigh_rows(int count, Span whole, float* sums) const {
    const Weighing weighing = {(const char*)(scores_ + whole.first), values_.blocks + whole.first / kBlockKeys,
                               (whole.last - whole.first) / kBlockKeys, values_.line};
    const int64_t stride = stride_ * sizeof(float);
    int at = 0;
    if (count > kRows) {
      for (; at < values_of_; at += 2 * kRows) weigh_pair(weighing, at, sums, stride);
      return;
    }
    for (; at + 4 * kRows <= values_of_; at += 4 * kRows) weigh_wide<4>(weighing, at, sums, stride);
    if (at < values_of_) weigh_wide<2>(weighing, at, sums, stride);
  }

  // Where the keys `seen` lie, in tiles; what a wide block has beside them repeats others.
  void find_keys(const Tile& tile, int start, Span seen) {
    if constexpr (kCoded)
      this->widen_blocks(start, seen, [&](int at) { return pages_.key(tile.request, tile.kv_head, at); }, own_keys_);
    const int first = seen.first / kTileKeys, last = (seen.last - 1) / kTileKeys;
    for (int i = seen.first / kWideKeys * kWideKeys / kTileKeys; i < round_up(seen.last, kWideKeys) / kTileKeys; ++i) {
      const int at = std::clamp(i, first, last) * kTileKeys;
      if constexpr (kCoded) keys_.groups[i] = this->widened_key(own_keys_, at);
      else keys_.groups[i] = pages_.key(tile.request, tile.kv_head, start + at);
    }
  }

  // Where the values of the keys `seen` lie. Values are copied where 32 of them don't lie together, and where some of the
  // 32 are not seen: these may be anything, an earlier tenant's NaN too, and become zeros.
  void find_values(const Tile& tile, int start, Span seen) {
    if constexpr (kCoded)
      this->widen_blocks(start, seen, [&](int at) { return pages_.values(tile.request, tile.kv_head, at); }, own_values_);
    for (int at = seen.first / kBlockKeys * kBlockKeys; at < seen.last; at += kBlockKeys) {
      const BFloat16*& block = values_.blocks[at / kBlockKeys];
      const Span inside = {std::max(seen.first - at, 0), std::min(seen.last - at, kBlockKeys)};
      const bool whole = inside.last - inside.first == kBlockKeys;
      BFloat16* own = own_values_ + (int64_t)at * layer_.dim;
      block = own;
      if constexpr (!kCoded) {
        if (whole && pages_.block >= kBlockKeys) {
          block = pages_.values(tile.request, tile.kv_head, start + at);
          continue;
        }
        copy_values(tile, start + at, inside, own);
      }
      clear_values({0, inside.first}, own);
      clear_values({inside.last, kBlockKeys}, own);
    }
  }

  void copy_values(const Tile& tile, int start, Span keys, BFloat16* to) const {
    const int64_t line = pages_.value_line();
    for (int at = keys.first / 2 * 2; at < keys.last; at += 2)
      std::memcpy(to + at / 2 * line, pages_.values(tile.request, tile.kv_head, start + at), line * sizeof(BFloat16));
  }

  // Zeros in place of the values of `keys`: whole pairs, or one member of a pair.
  void clear_values(Span keys, BFloat16* block) const {
    constexpr uint32_t kEven = 0xffff;  // of a pair, in its lower half
    const int64_t line = pages_.value_line();
    auto keep = [&](int key, uint32_t mask) {
      BFloat16* pair = block + key / 2 * line;
      for (int64_t at = 0; at < line; at += 2 * kLanes) store_as(pair + at, load_as<Words>(pair + at) & mask);
    };
    if (keys.first >= keys.last) return;
    const int begin = round_up(keys.first, 2), end = keys.last / 2 * 2;  // of whole pairs
    if (keys.first < begin) keep(keys.first, kEven);
    if (begin < end) std::fill_n(block + begin / 2 * line, (end - begin) / 2 * line, BFloat16{});
    if (end < keys.last) keep(end, ~kEven);
  }

  char* q_;                             // [rows / 16][dim / 32] tiles
  float* scores_;                       // [kPairRows][kStride]; weights take their place
  BFloat16 *own_keys_, *own_values_;    // of a split [kSplit * dim]: what does not lie as numbers, or not together
  Keys keys_;
  Values values_;
  tiles::Shapes shapes_;
};

}  // namespace

bool attends(int dtype, const Layer& layer) {
  return dtype == kBFloat16 && !layer.shares() && layer.dim % kTileFeatures == 0;
}

int64_t attention_scratch(const Layer& layer, const Plan& plan, int members, bool cached) {
  return scratch_of<TileKernel<BFloat16>>(layer, plan, members, cached);
}

void attend(Member& me, const Layer& layer, const Plan& plan, const Cache* cache, const Tensors& tensors,
            char* scratch) {
  if (cache && cache->form != kAsTensors) attend_with<TileKernel<Code>>(me, layer, plan, cache, tensors, scratch);
  else attend_with<TileKernel<BFloat16>>(me, layer, plan, cache, tensors, scratch);
}

}  // namespace amx
}  // namespace lsv

#endif
