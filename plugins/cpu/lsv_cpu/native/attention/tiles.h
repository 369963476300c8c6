// The work of a step cut into tiles, and these into items that members claim. How it is cut changes nothing in the results.
#pragma once

#include <algorithm>
#include <vector>

#include "attention/attention.h"
#include "attention/kernels.h"

namespace lsv {

// Tokens [first, first + count) of one request, for all query heads of one KV head: `count * ratio` rows.
struct Tile { int request, first, count, kv_head; };

// The keys a token at `position` sees: [first, last).
struct Span { int first, last; };

// The splits [begin, end) of a tile. With `part` >= 0 it shares the tile with other items: its partial sums go to the
// parts from there on.
struct Item {
  Tile tile;
  int begin, end;
  int64_t part;
};

// All the splits of a tile that was cut up.
struct Cut {
  Tile tile;
  int splits;
  int64_t part;
};

class Tiles {
 public:
  // A tile has `most_rows`, or `long_rows` of requests with so many keys that they don't stay in the second-level cache.
  Tiles(const Layer& layer, const Plan& plan, int members, int most_rows, int long_rows)
      : layer_(layer), plan_(plan), ratio(layer.heads / layer.kv_heads) {
    for (int pass = 0; pass < 2; ++pass) {
      int64_t limit = pass ? total_ / (kItemsPerMember * members) : 0;
      for (int request = 0; request < plan.requests; ++request) {
        const int query = plan.starts[request + 1] - plan.starts[request];
        const int tokens = std::max(1, (plan.context[request] < kLongContext ? most_rows : long_rows) / ratio);
        // The last tokens see most: they come first, so that what is left at the end is small.
        for (int first = (query - 1) / tokens * tokens; first >= 0; first -= tokens)
          for (int head = 0; head < layer.kv_heads; ++head) {
            Tile tile = {request, first, std::min(tokens, query - first), head};
            if (pass) add(tile, limit, members);
            else total_ += cost(tile);
          }
      }
    }
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
  int rows(const Tile& tile) const { return tile.count * ratio; }

 private:
  static constexpr int kLongContext = 8192;   // keys
  static constexpr int kItemsPerMember = 8;   // so that no member waits long for the last item
  static constexpr int kRowsPerRead = 8;      // rows that take the time of reading keys and values

  int64_t cost(const Tile& tile) const {
    Span seen = span(tile);
    return (int64_t)(seen.last - seen.first + kGroup) * (rows(tile) + kRowsPerRead);
  }

  void add(const Tile& tile, int64_t limit, int members) {
    Span seen = span(tile);
    int begin = seen.first / kSplit, end = (seen.last + kSplit - 1) / kSplit, count = end - begin;
    max_rows = std::max(max_rows, rows(tile));
    int pieces = members > 1 && limit ? (int)std::min<int64_t>(count, (cost(tile) + limit - 1) / limit) : 1;
    if (pieces < 2) return items.push_back({tile, begin, end, -1});
    cuts.push_back({tile, count, parts});
    for (int i = 0; i < pieces; ++i) {
      int from = count * i / pieces, to = count * (i + 1) / pieces;
      items.push_back({tile, begin + from, begin + to, parts + (int64_t)from * rows(tile)});
    }
    parts += (int64_t)count * rows(tile);
  }

  const Layer& layer_;
  const Plan& plan_;
  int64_t total_ = 0;

 public:
  const int ratio;
  int max_rows = 0;
  int64_t parts = 0;  // rows of partial sums that items share
  std::vector<Item> items;
  std::vector<Cut> cuts;
};

}  // namespace lsv
