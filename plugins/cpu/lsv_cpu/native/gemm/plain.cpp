// Linear layers whose weights are in the layer's dtype.
//
// Rows go in blocks of up to kTileRows, whose sums stay in registers while a panel passes by. With one block each
// member reads its panels once, as one stream. With several a chunk of a panel serves all of them from the cache while
// the chunk after it is fetched. Many rows go in groups whose operand stays in the second-level cache.
#include <algorithm>
#include <array>
#include <utility>

#include "dot.h"
#include "gemm/epilogue.h"
#include "gemm/formats.h"
#include "norm.h"

namespace lsv {
namespace plain {
namespace {

constexpr int kSteps = 16;                   // of a tile
constexpr int kBlockBytes = 2 * kTileBytes;  // of a panel's block: one tile for either half of its outputs
constexpr int kLineBytes = 64;
constexpr int kVectors = kPanel / kLanes;    // of a row's sums
constexpr int64_t kRunBlocks = 8;            // of a panel that its halves go over in turn
constexpr int64_t kAhead = 8192;             // bytes to prefetch ahead where a panel is read once
constexpr int64_t kFewBlocks = 6;            // row blocks up to which weights are read once, in the order they lie
constexpr int64_t kFewChunk = 32;            // blocks of a panel's chunk then
constexpr int64_t kManyChunk = 128;          // and with more rows: as much as a group of them keeps of its operand
constexpr int64_t kManyPanels = 8;           // that go by while it does
constexpr int64_t kGroupBytes = 256 << 10;   // of the operand, for a group of row blocks

// From a row of the operand to the next, in inputs: an odd number of cache lines, as the same place in all rows of a
// block must not fall on the same set of the cache.
template <class T> int64_t operand_stride(const Linear& linear) {
  constexpr int64_t kLine = kLineBytes / sizeof(typename Dot<T>::Input);
  return (inputs_padded(linear) / kLine | 1) * kLine;
}

// The rows cut into blocks whose heights differ by one at most.
struct Blocks {
  explicit Blocks(int64_t rows) : rows(rows), count((rows + kTileRows - 1) / kTileRows) {}
  int64_t begin(int64_t block) const { return rows * block / count; }
  const int64_t rows, count;
};

// What a register tile goes over.
struct Pass {
  const char* weights;  // of the first block
  const void* inputs;   // of the block's first row, from the first step on
  int64_t stride;       // bytes from a row's inputs to the next one's
  int64_t blocks;
  const char* ahead;    // what to prefetch meanwhile
  int ahead_lines;      // of it in either tile of a block
  float* sums;          // [rows][kPanel]
  bool first;           // sums start from zero
};

// Adds up the vectors of a register tile, from `first` on, over the blocks of `run`.
template <class T, int kRows, int kTogether> void add_run(const Pass& pass, Range run, int first) {
  using D = Dot<T>;
  using Input = typename D::Input;
  constexpr int kVectorBytes = kLanes * 4, kPerLine = kLineBytes / kVectorBytes, kLines = kTogether / kPerLine;
  constexpr int64_t kStepBytes = D::kInputs * sizeof(Input);
  const bool zero = pass.first && run.begin == 0;
  float* to = pass.sums + first * kLanes;
  Floats sums[kRows][kTogether];
#pragma GCC unroll 12
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 4
    for (int v = 0; v < kTogether; ++v) sums[row][v] = zero ? Floats{} : load(to + row * kPanel + v * kLanes);

  const char* x[(kRows + 2) / 3];  // of every third row: an address may add the stride once or twice
#pragma GCC unroll 4
  for (int i = 0; i < (kRows + 2) / 3; ++i)
    x[i] = (const char*)pass.inputs + run.begin * kSteps * kStepBytes + 3 * i * pass.stride;
  const char* line = pass.weights + run.begin * kBlockBytes + first / kPerLine * kTileBytes;
  const char* ahead = pass.ahead + (run.begin * (kVectors / kPerLine) + first / kPerLine * (run.end - run.begin)) *
                                       pass.ahead_lines * kLineBytes;
  for (int64_t block = run.begin; block < run.end; ++block, line += kBlockBytes - kTileBytes)
    for (int step = 0; step < kSteps; ++step, line += kLineBytes) {
      if (step < pass.ahead_lines) {
#pragma GCC unroll 2
        for (int i = 0; i < kLines; ++i) __builtin_prefetch(ahead + i * kLineBytes);
        ahead += kLines * kLineBytes;
      }
      add_step<D>(
          sums, [&](int v) { return (const T*)(line + v / kPerLine * kTileBytes + v % kPerLine * kVectorBytes); },
          [&](int row) { return (const Input*)(x[row / 3] + row % 3 * pass.stride); });
#pragma GCC unroll 4
      for (int i = 0; i < (kRows + 2) / 3; ++i) x[i] += kStepBytes;
    }
#pragma GCC unroll 12
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 4
    for (int v = 0; v < kTogether; ++v) store(to + row * kPanel + v * kLanes, sums[row][v]);
}

// With half of a panel's vectors at a time, both halves meet a run of the rows' inputs while it is in the first-level
// cache.
template <class T, int kRows> void add_products(const Pass& pass) {
  constexpr int kTogether = vectors_together(kRows, kVectors);
  const int64_t most = kTogether < kVectors ? kRunBlocks : pass.blocks;
  for (int64_t at = 0; at < pass.blocks; at += most)
    for (int first = 0; first < kVectors; first += kTogether)
      add_run<T, kRows, kTogether>(pass, {at, std::min(at + most, pass.blocks)}, first);
}

using Kernel = void (*)(const Pass&);
template <class T, int... kRows>
constexpr std::array<Kernel, sizeof...(kRows)> kernels(std::integer_sequence<int, kRows...>) {
  return {add_products<T, kRows + 1>...};
}
template <class T> constexpr auto kKernels = kernels<T>(std::make_integer_sequence<int, kTileRows>());

struct Place {
  int64_t panel;
  int lane;
};

// Where an output is.
Place place_of(const Linear& linear, int64_t output) {
  if (!linear.gate) return {output / kPanel, (int)(output % kPanel)};
  constexpr int kHalf = kPanel / 2;
  int64_t half = linear.outputs / 2, at = output % half;
  return {at / kHalf, (int)(at % kHalf) + (output < half ? 0 : kHalf)};
}

template <class T> class Product {
 public:
  Product(const Linear& linear, const void* operand, int64_t rows, Rows out, Rows residual)
      : epilogue_(linear, out, residual), operand_((const Input*)operand), rows_(rows), panels_(panels_of(linear)),
        blocks_(panel_bytes(linear) / kBlockBytes), weights_((const char*)linear.panels),
        stride_(operand_stride<T>(linear)) {}

  // Few rows: each member's panels are one stream. Many: members claim what is next.
  void share(Member& me) const {
    if (!rows_.count) return;
    if (rows_.count <= kFewBlocks) return multiply(0, rows_.count, me.share(panels_), kFewChunk, 1);
    int64_t chunks = (blocks_ + kManyChunk - 1) / kManyChunk, chunk = (blocks_ + chunks - 1) / chunks;
    int64_t held = kTileRows * chunk * kSteps * Dot<T>::kInputs * (int64_t)sizeof(Input);
    int64_t height = std::max<int64_t>(kGroupBytes / held, 1);
    if (chunks > 1) height = std::min(height, kFewBlocks);
    int64_t groups = (rows_.count + height - 1) / height;
    int64_t pieces = std::min((16 * me.size + groups - 1) / groups, panels_);
    for (int64_t item; (item = me.claim()) < groups * pieces;) {
      int64_t group = item / pieces, piece = item % pieces;
      multiply(rows_.count * group / groups, rows_.count * (group + 1) / groups,
               {panels_ * piece / pieces, panels_ * (piece + 1) / pieces}, chunk, kManyPanels);
    }
  }

 private:
  using Input = typename Dot<T>::Input;

  // Row blocks begin..end times panels: `together` of these at a time, chunk by chunk, and each chunk with one row
  // block after the other. What more than one chunk adds to is at most kFewBlocks high.
  void multiply(int64_t begin, int64_t end, Range panels, int64_t chunk, int64_t together) const {
    int64_t passes = end - begin, next = together > 1 ? blocks_ : chunk;
    if (passes == 1) chunk = blocks_;
    int lines = (int)((kSteps + passes - 1) / passes);
    alignas(64) float sums[kManyPanels * kFewBlocks * kTileRows * kPanel];
    for (int64_t first = panels.begin; first < panels.end; first += together)
      for (int64_t at = 0; at < blocks_; at += chunk) {
        float* to = sums;
        int64_t size = std::min(chunk, blocks_ - at);
        for (int64_t panel = first; panel < std::min(first + together, panels.end); ++panel) {
          const char* weights = weights_ + (panel * blocks_ + at) * kBlockBytes;
          const char* ahead = weights + (passes == 1 ? kAhead : next * kBlockBytes);
          for (int64_t block = begin; block < end; ++block, ahead += size * lines * 2 * kLineBytes) {
            int64_t row = rows_.begin(block), height = rows_.begin(block + 1) - row;
            const Input* inputs = operand_ + row * stride_ + at * kSteps * Dot<T>::kInputs;
            int64_t stride = stride_ * sizeof(Input);
            kKernels<T>[height - 1]({weights, inputs, stride, size, ahead, lines, to, at == 0});
            if (at + size == blocks_) finish(row, height, panel, to);
            if (chunk < blocks_) to += height * kPanel;  // to be gone on with
          }
        }
      }
  }

  __attribute__((noinline)) void finish(int64_t row, int64_t height, int64_t panel, const float* sums) const {
    for (int64_t i = 0; i < height; ++i, sums += kPanel) {
      Floats vectors[kVectors];
      for (int v = 0; v < kVectors; ++v) vectors[v] = load(sums + v * kLanes);
      epilogue_.store_row(row + i, panel, vectors);
    }
  }

  Epilogue<T> epilogue_;
  const Input* operand_;
  Blocks rows_;
  int64_t panels_, blocks_;  // blocks of one panel
  const char* weights_;
  int64_t stride_;           // of the operand
};

// Copies kMost bytes, or `left` if that is less.
template <int kMost> void copy_up_to(void* to, const void* from, int64_t left) {
  if (left >= kMost) std::memcpy(to, from, kMost);
  else std::memcpy(to, from, left);
}

// Tiles of a panel are transposes of 4-byte words, whatever the dtype.
void pack_panel(const Linear& linear, int64_t panel, const char* weights, char* to) {
  int64_t row_bytes = linear.inputs * (linear.dtype == kFloat32 ? 4 : 2);
  for (int64_t at = 0; at * kLineBytes < row_bytes; ++at, to += kBlockBytes)
    for (int lane = 0; lane < kPanel; ++lane) {
      uint32_t words[kSteps] = {};
      int64_t output = output_in(linear, panel, lane), done = at * kLineBytes;
      if (output >= 0) copy_up_to<kLineBytes>(words, weights + output * row_bytes + done, row_bytes - done);
      uint32_t* tile = (uint32_t*)(to + lane / 16 * kTileBytes) + lane % 16;
      for (int step = 0; step < kSteps; ++step) tile[step * 16] = words[step];
    }
}

// Writes one row of the operand, normed and padded with zeros.
template <class T> void lay_row(const Linear& linear, const Norm* norm, const T* x, typename Dot<T>::Input* to) {
  float scale = norm ? inverse_rms(x, norm->eps, (int)linear.inputs) : 1;
  for_vectors((int)inputs_padded(linear), [&](int at, int n) {
    T part[kLanes] = {};
    int count = (int)std::min<int64_t>(n, linear.inputs - at);
    if (norm && count > 0) rescale(x + at, (const T*)norm->weight + at, scale, count, part);
    else if (count > 0) copy_up_to<kLanes * sizeof(T)>(part, x + at, count * sizeof(T));
    Dot<T>::convert(part, n, to + at);
  });
}

}  // namespace

void pack(Member& me, const Linear& linear, const void* weights, const float*) {
  Range mine = me.share(panels_of(linear));
  for (int64_t panel = mine.begin; panel < mine.end; ++panel)
    pack_panel(linear, panel, (const char*)weights, (char*)linear.panels + panel * panel_bytes(linear));
}

void unpack_rows(Member& me, const Linear& linear, const int64_t* outputs, int64_t count, Rows out) {
  int64_t size = linear.dtype == kFloat32 ? 4 : 2, row_bytes = linear.inputs * size;
  Range mine = me.share(count);
  for (int64_t i = mine.begin; i < mine.end; ++i) {
    Place place = place_of(linear, outputs[i]);
    const char* block = (const char*)linear.panels + place.panel * panel_bytes(linear) +
                        place.lane / 16 * kTileBytes + place.lane % 16 * 4;
    char* to = (char*)out.data + i * out.stride * size;
    for (int64_t at = 0; at < row_bytes; at += kLineBytes, block += kBlockBytes) {
      uint32_t words[kSteps];
      for (int step = 0; step < kSteps; ++step) words[step] = load_as<uint32_t>(block + step * kLineBytes);
      copy_up_to<kLineBytes>(to + at, words, row_bytes - at);
    }
  }
}

int64_t operand_bytes(const Linear& linear, int64_t rows, int) {
  int64_t bytes = 0;
  with_type(linear.dtype, [&](auto type) {
    using T = decltype(type);
    bytes = rows * operand_stride<T>(linear) * sizeof(typename Dot<T>::Input);
  });
  return bytes;
}

void make_operand(Member& me, const Linear& linear, const Norm* norm, Rows x, int64_t rows, void* operand) {
  with_type(linear.dtype, [&](auto type) {
    using T = decltype(type);
    using Input = typename Dot<T>::Input;
    Range mine = me.share(rows);
    for (int64_t row = mine.begin; row < mine.end; ++row)
      lay_row(linear, norm, (const T*)x.data + row * x.stride, (Input*)operand + row * operand_stride<T>(linear));
  });
}

void multiply(Member& me, const Linear& linear, const void* operand, int64_t rows, Rows out, Rows residual) {
  with_type(linear.dtype, [&](auto type) { Product<decltype(type)>(linear, operand, rows, out, residual).share(me); });
}

}  // namespace plain
}  // namespace lsv
