// One member's way through the items of a step, with a kernel that attends to one split of the keys. A kernel is a
// QueryRows with `Element` and `Stored`, kTileRows and kLongTileRows for Tiles, bytes(layer, rows) of working memory,
// read_queries(tile), and attend(tile, split, partial) for keys [split * kSplit, (split + 1) * kSplit).
#pragma once

#include "attention/rows.h"

namespace lsv {

// Places in the working memory of a call: own pages, parts, then what each member has for itself.
struct Places {
  int64_t parts, member, member_bytes, total, part;

  Places(const Layer& layer, const Tiles& tiles, int64_t own_pages, int64_t kernel) {
    const int stride = Partial::stride(layer);
    const int64_t rows = whole_lines(Partial::floats(tiles.max_rows, stride) * 4);
    parts = whole_lines(own_pages + kLine);  // the last line of values is read past its end
    member = parts + whole_lines(Partial::floats(tiles.parts, stride) * 4);
    total = whole_lines(kernel);
    part = total + rows;
    member_bytes = part + rows + kLine;
  }
};

template <class Kernel> class Walk {
 public:
  Walk(const Step& step, const Places& places, char* scratch, int rank)
      : tiles_(step.tiles), stride_(Partial::stride(step.layer)),
        parts_(Partial::at((float*)(scratch + places.parts), tiles_.parts, stride_)),
        own_(scratch + places.member + rank * places.member_bytes),
        total_(Partial::at((float*)(own_ + places.total), tiles_.max_rows, stride_)),
        part_(Partial::at((float*)(own_ + places.part), tiles_.max_rows, stride_)), kernel_(step, scratch, own_) {}

  void write(Range tokens) const { kernel_.write(tokens); }

  void attend(const Item& item) {
    const Tile& tile = item.tile;
    const int rows = tiles_.rows(tile);
    kernel_.read_queries(tile);
    for (int split = item.begin; split < item.end; ++split) {
      if (item.part >= 0) {
        kernel_.attend(tile, split, part_at(item.part + (int64_t)(split - item.begin) * rows));
      } else if (split == item.begin) {
        kernel_.attend(tile, split, total_);
      } else {
        kernel_.attend(tile, split, part_);
        for (int r = 0; r < rows; ++r) merge(total_, r, part_, r, stride_);
      }
    }
    if (item.part < 0)
      for (int r = 0; r < rows; ++r) kernel_.finish(tile, r, total_, r);
  }

  // One row of a tile whose splits members have shared.
  void finish(const Cut& cut, int row) {
    Partial total = part_at(cut.part);
    const int rows = tiles_.rows(cut.tile);
    for (int split = 1; split < cut.splits; ++split) merge(total, row, total, row + split * rows, stride_);
    kernel_.finish(cut.tile, row, total, row);
  }

 private:
  Partial part_at(int64_t row) const { return {parts_.sums + row * stride_, parts_.peak + row}; }

  const Tiles& tiles_;
  const int stride_;
  const Partial parts_;
  char* const own_;
  const Partial total_, part_;
  Kernel kernel_;
};

template <class Kernel> Tiles tiles_for(const Layer& layer, const Plan& plan, int members) {
  return Tiles(layer, plan, members, Kernel::kTileRows, Kernel::kLongTileRows);
}

template <class Kernel> Places places_of(const Layer& layer, const Plan& plan, const Tiles& tiles, bool cached) {
  const int64_t own_pages = cached ? 0 : Pages<typename Kernel::Element>::own_bytes(layer, plan);
  return Places(layer, tiles, own_pages, Kernel::bytes(layer, tiles.max_rows));
}

template <class Kernel> int64_t scratch_of(const Layer& layer, const Plan& plan, int members, bool cached) {
  const Places places = places_of<Kernel>(layer, plan, tiles_for<Kernel>(layer, plan, members), cached);
  return places.member + members * places.member_bytes;
}

template <class Kernel>
void attend_with(Member& me, const Layer& layer, const Plan& plan, const Cache* cache, const Tensors& tensors,
                 char* scratch) {
  const Tiles tiles = tiles_for<Kernel>(layer, plan, me.size);
  Walk<Kernel> walk({layer, plan, cache, tensors, tiles}, places_of<Kernel>(layer, plan, tiles, cache), scratch, me.rank);
  if constexpr (std::is_same_v<typename Kernel::Element, typename Kernel::Stored>) {
    if (!cache) {
      walk.write(me.share(plan.starts[plan.requests]));
      me.barrier();
    }
  }
  for (int64_t i = me.claim(); i < (int64_t)tiles.items.size(); i = me.claim()) walk.attend(tiles.items[i]);
  if (tiles.cuts.empty()) return;
  me.barrier();
  for (const Cut& cut : tiles.cuts) {
    Range mine = me.share(tiles.rows(cut.tile));
    for (int64_t row = mine.begin; row < mine.end; ++row) walk.finish(cut, (int)row);
  }
}

}  // namespace lsv
