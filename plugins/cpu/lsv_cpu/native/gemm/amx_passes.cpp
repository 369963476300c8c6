// The innermost loops of the tile kernels. Sums stay in tiles for the length of a pass; storing and loading them again
// between passes changes no bit, so that the order of additions is that of the inputs, however they are cut.
#if defined(LSV_AMX)

#include "dot.h"
#include "gemm/amx.h"
#include "vector.h"

namespace lsv {
namespace amx {
namespace {

constexpr int64_t kStreamAhead = 1024;      // bytes between the tile in use and the one being fetched from memory
constexpr int64_t kStreamAheadInt4 = 2048;
constexpr int kVectors = kPanel / kLanes;

struct BFloat16Product {
  template <int kSums, int kLeft, int kRight> static void add() { tiles::multiply_bf16<kSums, kLeft, kRight>(); }
};
struct Int8Product {
  template <int kSums, int kLeft, int kRight> static void add() { tiles::multiply_int8<kSums, kLeft, kRight>(); }
};

inline void fetch(const char* from, int lines) {
  for (int i = 0; i < lines; ++i) __builtin_prefetch(from + i * kLine, 0, 3);
}
inline void fetch_to_second(const char* from, int lines) {
  for (int i = 0; i < lines; ++i) __builtin_prefetch(from + i * kLine, 0, 2);
}

template <int kBlocks> void load_sums(const float* sums) {
  tiles::load<0>(sums, kSumsStride);
  tiles::load<1>(sums + kBlock, kSumsStride);
  if (kBlocks == 1) return;
  tiles::load<2>(sums + kBlock * kPanel, kSumsStride);
  tiles::load<3>(sums + kBlock * kPanel + kBlock, kSumsStride);
}

// One tile of inputs: each block's rows times both tiles of the panel. Rows pass by the first-level cache, where the
// panel stays for all of them.
template <class Product, int kBlocks> inline void add_tile(const char* rows0, const char* rows1, const char* weights) {
  tiles::load<6>(weights, kLine);
  tiles::load_past<4>(rows0, kLine);
  Product::template add<0, 4, 6>();
  tiles::load<7>(weights + kTileBytes, kLine);
  Product::template add<1, 4, 7>();
  tiles::stay_awake();
  if (kBlocks == 1) return;
  tiles::load_past<5>(rows1, kLine);
  Product::template add<2, 5, 6>();
  Product::template add<3, 5, 7>();
}

template <class Product, int kBlocks, bool kStreaming> void multiply(const Pass& pass) {
  const char *rows0 = pass.rows[0], *rows1 = pass.rows[1], *weights = pass.weights, *ahead = pass.ahead;
  const int lines = pass.lines;
  if (pass.first) zero_sums<kBlocks>();
  else load_sums<kBlocks>(pass.sums);
  for (int64_t left = pass.tiles; left > 0; --left) {
    if (kStreaming) {
      fetch(weights + kStreamAhead, 2 * kTileBytes / kLine);
    } else {
      fetch_to_second(ahead, lines);
      ahead += lines * kLine;
    }
    add_tile<Product, kBlocks>(rows0, rows1, weights);
    rows0 += kTileBytes;
    if (kBlocks == 2) rows1 += kTileBytes;
    weights += 2 * kTileBytes;
  }
  store_sums<kBlocks>(pass.sums);
}

template <class Product> void multiply(const Pass& pass, bool streaming) {
  if (pass.rows[1]) streaming ? multiply<Product, 2, true>(pass) : multiply<Product, 2, false>(pass);
  else streaming ? multiply<Product, 1, true>(pass) : multiply<Product, 1, false>(pass);
}

template <class Product>
void stream(const char* rows, const char* const weights[2], int64_t count, float* const sums[2]) {
  const char *first = weights[0], *second = weights[1];
  zero_sums<2>();
  for (; count > 0; --count) {
    fetch(first + kStreamAhead, 2 * kTileBytes / kLine);
    fetch(second + kStreamAhead, 2 * kTileBytes / kLine);
    tiles::load<4>(rows, kLine);
    tiles::load<6>(first, kLine);
    Product::template add<0, 4, 6>();
    tiles::load<7>(first + kTileBytes, kLine);
    Product::template add<1, 4, 7>();
    tiles::load<6>(second, kLine);
    Product::template add<2, 4, 6>();
    tiles::load<7>(second + kTileBytes, kLine);
    Product::template add<3, 4, 7>();
    tiles::stay_awake();
    rows += kTileBytes;
    first += 2 * kTileBytes;
    second += 2 * kTileBytes;
  }
  tiles::store<0>(sums[0], kSumsStride);
  tiles::store<1>(sums[0] + kBlock, kSumsStride);
  tiles::store<2>(sums[1], kSumsStride);
  tiles::store<3>(sums[1] + kBlock, kSumsStride);
}

// A tile of a panel, 16 lines of nibbles, to two int8 tiles that hold 16 times the weights: with its top bit turned,
// a nibble in the upper half of a byte is that, and the rows' scales have the 1/16.
void unpack_tile(const char* nibbles, int8_t* to) {
  constexpr int kLines = 8;
  const __m512i top_bits = _mm512_set1_epi8((char)0x88), upper = _mm512_set1_epi8((char)0xf0);
  fetch(nibbles + kStreamAheadInt4, 2 * kLines);
  for (int tile = 0; tile < 2; ++tile)
    for (int i = 0; i < kLines; ++i) {
      __m512i both = _mm512_xor_si512(_mm512_loadu_si512(nibbles + (tile * kLines + i) * kLine), top_bits);
      int8_t* line = to + tile * kTileBytes + i * kLine;
      _mm512_store_si512(line, _mm512_and_si512(_mm512_slli_epi32(both, 4), upper));
      _mm512_store_si512(line + kLines * kLine, _mm512_and_si512(both, upper));
    }
}

// The weights of a pass, as multiply_groups takes them. `add` adds a group's products with a block of rows, scaled, in
// the operations of the vector kernel and in its order. The first group is added to zeros, which need not be stored.

template <bool kFirst> Floats sums_before(const float* sums) { return kFirst ? Floats{} : load(sums); }

// int4: unpacked one group ahead of their use, so that neither waits for the other.
class Int4Weights {
 public:
  explicit Int4Weights(const Int4Pass& pass) : p_(pass), unpacked_(pass.unpack ? 0 : pass.pass.tiles) {}

  void prepare(int64_t group) {
    const int64_t ahead = std::min(p_.pass.tiles, ((group + 2) * p_.group + 63) / 64);
    for (; unpacked_ < ahead; ++unpacked_)
      unpack_tile(p_.pass.weights + unpacked_ * kTileBytes, p_.unpacked + unpacked_ * 2 * kTileBytes);
  }

  const char* take(int64_t input) const {
    return (const char*)p_.unpacked + input / 64 * 2 * kTileBytes + input % 64 / 4 * kLine;
  }

  template <bool kFirst>
  void add(int64_t group, const float* row_scales, int rows, const int32_t* products, float* sums) const {
    const float* scales = p_.scales + group * kPanel;
    Floats columns[kVectors];
    for (int v = 0; v < kVectors; ++v) columns[v] = load(scales + v * kLanes);
#pragma GCC unroll 4
    for (int row = 0; row < rows; ++row)
      for (int v = 0; v < kVectors; ++v) {
        const int at = row * kPanel + v * kLanes;
        Floats product = __builtin_convertvector(load_as<Ints>(products + at), Floats) * row_scales[row];
        store(sums + at, multiply_add(product, columns[v], sums_before<kFirst>(sums + at)));
      }
  }

 private:
  const Int4Pass& p_;
  int64_t unpacked_;
};

// int8: taken as they lie. They have one scale for all groups, which comes after the last.
template <bool kStreaming> class Int8Weights {
 public:
  explicit Int8Weights(const GroupPass& pass) : p_(pass.pass), ahead_(pass.pass.ahead) {}

  void prepare(int64_t) {}

  const char* take(int64_t input) {
    const char* weights = p_.weights + input / 64 * 2 * kTileBytes;
    if (kStreaming) {
      fetch(weights + kStreamAhead, 2 * kTileBytes / kLine);
    } else {
      fetch_to_second(ahead_, p_.lines);
      ahead_ += p_.lines * kLine;
    }
    return weights;
  }

  template <bool kFirst>
  void add(int64_t, const float* row_scales, int rows, const int32_t* products, float* sums) const {
#pragma GCC unroll 4
    for (int row = 0; row < rows; ++row)
      for (int v = 0; v < kVectors; ++v) {
        const int at = row * kPanel + v * kLanes;
        Floats product = __builtin_convertvector(load_as<Ints>(products + at), Floats);
        store(sums + at, multiply_add(product, broadcast(row_scales[row]), sums_before<kFirst>(sums + at)));
      }
  }

 private:
  const Pass& p_;
  const char* ahead_;
};

template <int kBlocks, bool kFirst, class Weights>
void add_blocks(const Weights& weights, const GroupPass& p, int64_t group, int rows, const int32_t* products) {
  const float* row_scales = p.row_scales[0] + group * kBlock;
  weights.template add<kFirst>(group, row_scales, kBlocks == 2 ? kBlock : rows, products, p.pass.sums);
  if (kBlocks == 1) return;
  constexpr int kNext = kBlock * kPanel;
  row_scales = p.row_scales[1] + group * kBlock;
  weights.template add<kFirst>(group, row_scales, rows - kBlock, products + kNext, p.pass.sums + kNext);
}

template <int kBlocks, class Weights>
void add_group(const Weights& weights, const GroupPass& p, int64_t group, int rows, const int32_t* products) {
  if (p.pass.first && !group) add_blocks<kBlocks, true>(weights, p, group, rows, products);
  else add_blocks<kBlocks, false>(weights, p, group, rows, products);
}

// Products are scaled one group after the tiles have found them: neither waits for the other.
template <class Weights, int kBlocks, class T> void multiply_groups(const T& p, int rows) {
  Weights weights(p);
  alignas(kLine) int32_t products[2][kPair * kPanel];
  const Pass& pass = p.pass;
  const int64_t inputs = pass.tiles * 64, groups = (inputs + p.group - 1) / p.group;
  const int step = std::min(p.group, 64);  // inputs of a tile multiplication
  for (int64_t group = 0; group < groups; ++group) {
    weights.prepare(group);
    zero_sums<kBlocks>();
    const int64_t end = std::min(inputs, (group + 1) * p.group);
    for (int64_t at = group * p.group; at < end; at += step) {
      const int64_t offset = at / 64 * kTileBytes + at % 64;
      add_tile<Int8Product, kBlocks>(pass.rows[0] + offset, kBlocks == 2 ? pass.rows[1] + offset : nullptr,
                                     weights.take(at));
    }
    store_sums<kBlocks>(products[group % 2]);
    if (group) add_group<kBlocks>(weights, p, group - 1, rows, products[(group - 1) % 2]);
  }
  add_group<kBlocks>(weights, p, groups - 1, rows, products[(groups - 1) % 2]);
}

template <class Weights, class T> void multiply_groups(const T& pass, int rows) {
  if (pass.pass.rows[1]) multiply_groups<Weights, 2>(pass, rows);
  else multiply_groups<Weights, 1>(pass, rows);
}

}  // namespace

void pass_bf16(const Pass& pass, bool streaming) { multiply<BFloat16Product>(pass, streaming); }
void pass_int8(const Pass& pass, bool streaming) { multiply<Int8Product>(pass, streaming); }

void pass_int8_groups(const GroupPass& pass, int rows, bool streaming) {
  if (streaming) multiply_groups<Int8Weights<true>>(pass, rows);
  else multiply_groups<Int8Weights<false>>(pass, rows);
}

void pass_int4(const Int4Pass& pass, int rows) { multiply_groups<Int4Weights>(pass, rows); }

void stream_bf16(const char* rows, const char* const weights[2], int64_t count, float* const sums[2]) {
  stream<BFloat16Product>(rows, weights, count, sums);
}
void stream_int8(const char* rows, const char* const weights[2], int64_t count, float* const sums[2]) {
  stream<Int8Product>(rows, weights, count, sums);
}

}  // namespace amx
}  // namespace lsv

#endif
