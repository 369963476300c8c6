// A row's bits do not depend on the others: every product is added up in the same order, whatever the number of rows or
// members.
#include "adapters.h"

#include "dot.h"
#include "gemm/epilogue.h"
#include "scratch.h"
#include "team.h"
#include "vector.h"

namespace lsv {
namespace {

constexpr int kRanks = 4;      // rows of `a` that a row of x is multiplied by at a time
constexpr int kPair = 2;       // rows that share what was read of a matrix
constexpr int kVectors = 4;    // of outputs that are added up at a time
constexpr int kBlock = kVectors * kLanes;
constexpr int64_t kRun = 512;  // outputs that a member takes at a time
constexpr int64_t kLine = 64;
constexpr int64_t kAheadA = 4096, kAheadB = 1024;  // bytes of a matrix' row to fetch ahead

// The rows of a tile that are in a range, in pairs.
struct Tile {
  Tile(const AdapterTokens& tokens, int64_t tile, Range within)
      : slot(tokens.tile_slots[tile]), rows(tokens.tiles + tile * tokens.width), count(tokens.width), first(within.begin) {
    while (count && rows[count - 1] >= within.end) --count;
    while (count && *rows < within.begin) ++rows, --count;
  }

  template <class F> void for_pairs(F&& f) const {
    int64_t i = 0;
    for (; i + kPair <= count; i += kPair) f(std::integral_constant<int, kPair>(), i);
    for (; i < count; ++i) f(std::integral_constant<int, 1>(), i);
  }
  int64_t row(int64_t i) const { return rows[i] - first; }

  const int64_t slot;
  const int64_t* rows;
  int64_t count, first;
};

// Inputs as they are multiplied, so many at a time.
template <class T> struct Inputs {
  static constexpr int kCount = kLanes;
  static Floats get(const T* from, int n) { return load_up_to(from, n); }
  static Floats add(Floats sum, Floats x, Floats weights) { return multiply_add(weights, x, sum); }
};

#if defined(__AVX512BF16__)
template <> struct Inputs<BFloat16> {
  static constexpr int kCount = 2 * kLanes;
  static __m512i get(const BFloat16* from, int n) {
    if (n == kCount) return load_as<__m512i>(from);
    BFloat16 padded[kCount] = {};
    std::memcpy(padded, from, n * sizeof(BFloat16));
    return load_as<__m512i>(padded);
  }
  static Floats add(Floats sum, __m512i x, __m512i weights) {
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)weights, (__m512bh)x);
  }
};
#endif

template <int kRows, int kCount, class T>
void multiply(const T* const* x, const T* a, int64_t inputs, float* const* low) {
  using I = Inputs<T>;
  Floats sums[kRows][kCount] = {};
  for (int64_t at = 0; at < inputs; at += I::kCount) {
    const int n = inputs - at < I::kCount ? (int)(inputs - at) : I::kCount;
    decltype(I::get(x[0], n)) values[kRows];
#pragma GCC unroll 2
    for (int row = 0; row < kRows; ++row) values[row] = I::get(x[row] + at, n);
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      const T* line = a + i * inputs + at;
      if (at * (int64_t)sizeof(T) % kLine == 0) __builtin_prefetch((const char*)line + kAheadA);
      const auto weights = I::get(line, n);
#pragma GCC unroll 2
      for (int row = 0; row < kRows; ++row) sums[row][i] = I::add(sums[row][i], values[row], weights);
    }
  }
  for (int row = 0; row < kRows; ++row)
    for (int i = 0; i < kCount; ++i) low[row][i] = sum(sums[row][i]);
}

template <class T>
void shrink(Member& me, const Adapters& layer, const AdapterTokens& tokens, Range rows, Rows x, float* low) {
  const int64_t groups = (layer.rank + kRanks - 1) / kRanks, width = (int64_t)layer.sources * layer.rank;
  Range mine = me.share(tokens.count * layer.sources * groups);
  for (int64_t item = mine.begin; item < mine.end; ++item) {
    const Tile tile(tokens, item / (layer.sources * groups), rows);
    const int64_t source = item / groups % layer.sources, first = item % groups * kRanks;
    const int64_t left = layer.ranks[tile.slot] - first, place = source * layer.rank + first;
    const T* a = (const T*)layer.a + (tile.slot * width + place) * layer.inputs;
    tile.for_pairs([&](auto count, int64_t at) {
      const T* from[kPair];
      float* to[kPair];
      for (int i = 0; i < count; ++i) {
        from[i] = (const T*)x.data + tile.row(at + i) * x.stride;
        to[i] = low + tile.row(at + i) * width + place;
      }
      if (left >= kRanks) return multiply<count, kRanks>(from, a, layer.inputs, to);
      for (int64_t rank = 0; rank < left; ++rank) {
        multiply<count, 1>(from, a + rank * layer.inputs, layer.inputs, to);
        for (int i = 0; i < count; ++i) ++to[i];
      }
    });
  }
}

// y = start(y, its output) + low b, for kVectors vectors of outputs of some rows; the last has `n` elements.
template <int kRows, int kVectors, class T, class Y, class Start>
void add(const float* const* low, const T* b, int64_t stride, int64_t rank, Y* const* y, int64_t first, int64_t at, int n,
         Start&& start) {
  Floats sums[kRows][kVectors];
#pragma GCC unroll 2
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      sums[row][v] = start(y[row] + at + v * kLanes, first + at + v * kLanes, v + 1 < kVectors ? kLanes : n);
  const T* line = b + first + at;
  for (int64_t i = 0; i < rank; ++i, line += stride) {
    for (int64_t ahead = 0; ahead < kVectors * kLanes * (int64_t)sizeof(T); ahead += kLine)
      __builtin_prefetch((const char*)line + kAheadB + ahead);
    Floats weights[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) weights[v] = load_up_to(line + v * kLanes, v + 1 < kVectors ? kLanes : n);
#pragma GCC unroll 2
    for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[row][v] = multiply_add(weights[v], broadcast(low[row][i]), sums[row][v]);
  }
#pragma GCC unroll 2
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      store_up_to(y[row] + at + v * kLanes, sums[row][v], v + 1 < kVectors ? kLanes : n);
}

// start_of(slot) gives `start` for the rows of an adapter.
template <class T, class Y, class StartOf>
void expand(Member& me, const Adapters& layer, const AdapterTokens& tokens, Range rows, const float* low, Y* y,
            StartOf&& start_of) {
  const int64_t pieces = (layer.outputs + kRun - 1) / kRun, width = (int64_t)layer.sources * layer.rank;
  Range mine = me.share(tokens.count * pieces);
  for (int64_t item = mine.begin; item < mine.end; ++item) {
    const Tile tile(tokens, item / pieces, rows);
    const int64_t begin = item % pieces * kRun, end = begin + kRun;
    const T* b = (const T*)layer.b + tile.slot * layer.rank * layer.outputs;
    const auto start = start_of(tile.slot);
    for (const int64_t* run = layer.runs; run < layer.runs + 3 * layer.parts; run += 3) {
      const int64_t from = begin > run[1] ? begin : run[1], to = end < run[2] ? end : run[2];
      if (from >= to) continue;
      tile.for_pairs([&](auto count, int64_t at) {
        const float* in[kPair];
        Y* out[kPair];
        for (int i = 0; i < count; ++i) {
          in[i] = low + tile.row(at + i) * width + run[0] * layer.rank;
          out[i] = y + tile.row(at + i) * layer.outputs + from;
        }
        const int64_t rank = layer.ranks[tile.slot], size = to - from;
        int64_t done = 0;
        for (; done + kBlock <= size; done += kBlock)
          add<count, kVectors>(in, b, layer.outputs, rank, out, from, done, kLanes, start);
        for (; done < size; done += kLanes) {
          const int64_t left = size - done;
          add<count, 1>(in, b, layer.outputs, rank, out, from, done, left < kLanes ? (int)left : kLanes, start);
        }
      });
    }
  }
}

}  // namespace

bool adds(const Adapters& layer, const AdapterTokens& tokens) {
  for (int64_t i = 0; i < tokens.count; ++i)
    if (layer.ranks[tokens.tile_slots[i]]) return true;
  return false;
}

void shrink(Member& me, const Adapters& layer, const AdapterTokens& tokens, Range rows, Rows x, float* low) {
  with_type(layer.dtype, [&](auto type) { shrink<decltype(type)>(me, layer, tokens, rows, x, low); });
}

void expand(Member& me, const Adapters& layer, const AdapterTokens& tokens, Range rows, const float* low, float* added) {
  with_type(layer.dtype, [&](auto type) {
    expand<decltype(type)>(me, layer, tokens, rows, low, added, [](int64_t) {
      return [](const float*, int64_t, int) { return Floats{}; };
    });
  });
}

}  // namespace lsv

using namespace lsv;

extern "C" {

// y += what the adapters add for x [rows][inputs]; y [rows][outputs]; both dense.
int lsv_add_adapters(const Adapters* layer, const AdapterTokens* tokens, const void* x, void* y, int64_t rows) {
  return status_of([&] {
    const Range all = {0, rows};
    Turn turn;
    Scratch scratch(rows * layer->sources * layer->rank * sizeof(float));
    float* low = (float*)scratch.data;
    turn.run_if_worth(rows * layer->rank * (layer->inputs + layer->outputs) / 8, [&](Member& me) {
      shrink(me, *layer, *tokens, all, {(void*)x, layer->inputs}, low);
      me.barrier();
      with_type(layer->dtype, [&](auto type) {
        using T = decltype(type);
        expand<T>(me, *layer, *tokens, all, low, (T*)y, [&](int64_t slot) {
          const bool rescaled = layer->rescaled && layer->rescaled[slot];
          const float* rescale = rescaled ? layer->rescale + slot * 2 * layer->outputs : nullptr;
          return [=](const T* from, int64_t output, int n) {
            const Floats own = load_up_to(from, n);
            if (!rescale) return own;
            return multiply_add(own, load_up_to(rescale + output, n), load_up_to(rescale + layer->outputs + output, n));
          };
        });
      });
    });
  });
}

}  // extern "C"
