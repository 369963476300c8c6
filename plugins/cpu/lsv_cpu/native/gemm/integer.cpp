// Linear layers with int8 and int4 weights: packing, quantising rows, and walking over panels and blocks of rows.
#include "gemm/integer.h"

#include <algorithm>
#include <vector>

#include "gemm/epilogue.h"
#include "gemm/formats.h"
#include "norm.h"
#include "gemm/products.h"
#include "quantise.h"

namespace lsv {
namespace integer {
namespace {

constexpr int64_t kRowsCached = 384 << 10;  // bytes of rows that stay in the second-level cache beside a panel
constexpr int64_t kStreamAhead = 4096;      // bytes between a panel's line in use and the one being fetched

// Row `lane` of a panel's int8 tiles, `codes` padded to whole tiles; returns the sum of the weights.
int32_t pack_int8(const int8_t* codes, int64_t inputs, int lane, char* panel) {
  int32_t sum = 0;
  for (int64_t at = 0; at < inputs; ++at) sum += codes[at];
  char* to = panel + lane / 16 * kTileBytes + lane % 16 * 4;
  for (int64_t at = 0; at < inputs; at += kBlockInputs, to += 2 * kTileBytes)
    for (int i = 0; i < 16; ++i) std::memcpy(to + i * kLine, codes + at + i * 4, 4);
  return sum;
}

// Four nibbles of two bytes, each in a byte of its own.
uint32_t spread(uint32_t two) {
  two = (two | two << 8) & 0x00ff00ff;
  return (two | two << 4) & 0x0f0f0f0f;
}

// The same for int4; `nibbles` are half as many bytes.
void pack_int4(const uint8_t* nibbles, int64_t inputs, int lane, char* panel) {
  char* to = panel + lane / 16 * kTileBytes / 2 + lane % 16 * 4;
  for (int64_t at = 0; at < inputs; at += kBlockInputs, to += kTileBytes, nibbles += kBlockInputs / 2)
    for (int i = 0; i < 8; ++i) {
      uint32_t line = spread(load_as<uint16_t>(nibbles + i * 2)) | spread(load_as<uint16_t>(nibbles + i * 2 + 16)) << 4;
      std::memcpy(to + i * kLine, &line, 4);
    }
}

// A row of bytes, padded with `padding` where the layer is.
class PaddedRow {
 public:
  PaddedRow(int64_t real, int64_t padded, uint8_t padding) : real_(real), row_(padded, padding) {}

  const uint8_t* copy(const uint8_t* from) {
    std::memcpy(row_.data(), from, real_);
    return row_.data();
  }

 private:
  int64_t real_;
  std::vector<uint8_t> row_;
};

void pack_scales(const Linear& linear, int64_t panel, const float* scales) {
  int64_t groups = scales_of_output(linear), real = groups > 1 ? (linear.inputs + linear.group - 1) / linear.group : 1;
  float* to = linear.scales + panel * groups * kPanel;
  for (int lane = 0; lane < kPanel; ++lane) {
    int64_t output = output_in(linear, panel, lane);
    for (int64_t g = 0; g < groups; ++g)
      to[g * kPanel + lane] = output >= 0 && g < real ? scales[output * real + g] : 0;
  }
}

// Quantises the rows of a block and lays them interleaved.
template <class T> class BlockWriter {
 public:
  BlockWriter(const Linear& linear, const Operand& operand, int64_t block)
      : group_(linear.group), lift_(linear.format == kInt4 ? kNibbleLift : kByteLift), inputs_(linear.inputs),
        rows_(operand.blocks.rows_of(block)),
        codes_(operand.codes + operand.blocks.first(block) * operand.inputs),
        scales_(operand.scales + operand.blocks.first(block) * operand.groups),
        starts_(operand.starts + operand.blocks.first(block) * operand.groups) {}

  // Columns of all rows: whole groups, or without any blocks of inputs.
  void write(Rows x, Range columns) {
    if (!group_) {
      scale_rows(x, {0, inputs_}, scales_);
      return write_codes(x, columns, kRowFlip);
    }
    for (int64_t at = columns.begin; at < columns.end; at += group_) {
      const Range group = {at, std::min(at + group_, columns.end)};
      const int64_t place = at / group_ * rows_;
      scale_rows(x, group, scales_ + place);
      write_codes(x, group, 0);
      write_starts(group, starts_ + place);
    }
  }

 private:
  static constexpr int kStep = 32;

  static const T* row_of(Rows x, int row) { return (const T*)x.data + row * x.stride; }

  int left(Range columns) const {  // how many of them are inputs, not padding
    return (int)std::max<int64_t>(0, std::min(columns.end, inputs_) - columns.begin);
  }

  void scale_rows(Rows x, Range columns, float* scales) {  // rows are the lanes
    static_assert(kMostRows <= kLanes, "a row has a lane");
    float largest[kLanes] = {};
    for (int row = 0; row < rows_; ++row) largest[row] = largest_of(row_of(x, row) + columns.begin, left(columns));
    Scales found = scales_of(load(largest));
    store(inverse_, found.inverse);
    std::memcpy(scales, &found.scale, rows_ * sizeof(float));
  }

  void write_codes(Rows x, Range columns, uint8_t flip) {
    int8_t codes[kStep];
    for (int64_t at = columns.begin; at < columns.end; at += kStep) {
      int count = left({at, at + kStep});
      if (count < kStep) std::memset(codes, flip, kStep);
      for (int row = 0; row < rows_; ++row) {
        if (count == kStep) quantise(row_of(x, row) + at, kStep, inverse_[row], flip, codes);
        else quantise(row_of(x, row) + at, count, inverse_[row], flip, codes);
        for (int i = 0; i < kStep; i += 4) std::memcpy(codes_ + (at + i) * rows_ + row * 4, codes + i, 4);
      }
    }
  }

  // What takes back the lift of the weights, by each row's codes: rows are the lanes. The last vector reads past the
  // codes, into the scales.
  void write_starts(Range columns, int32_t* starts) {
    Ints sums = {};
    for (int64_t at = columns.begin; at < columns.end; at += 4)
      sums = add_int4(sums, Bytes{} + 1, load_as<Bytes>(codes_ + at * rows_));
    sums *= -lift_;
    std::memcpy(starts, &sums, rows_ * sizeof(int32_t));
  }

  const int group_, lift_;
  const int64_t inputs_;
  const int rows_;
  int8_t* codes_;
  float* scales_;
  int32_t* starts_;
  float inverse_[kLanes];
};

// Kept out of line: wherever it is called from, the arithmetic is the same to the bit.
template <class T>
__attribute__((noinline)) void store_tile(const Epilogue<T>& epilogue, int64_t row, int rows, int64_t panel,
                                          const float* tile) {
  for (int i = 0; i < rows; ++i) {
    Floats sums[kVectors];
    for (int v = 0; v < kVectors; ++v) sums[v] = load(tile + i * kPanel + v * kLanes);
    epilogue.store_row(row + i, panel, sums);
  }
}

// What a block of rows prefetches while it reads a panel: where one block is all there is, the panel itself a little
// ahead; else its part of the next panel, since this one is in the cache after the first block.
Ahead look_ahead(const char* panel, int64_t bytes, int64_t block, int64_t blocks) {
  return {blocks == 1 ? panel + kStreamAhead : panel + bytes + bytes * block / blocks, kLine / blocks};
}

Kernel kernel_for(const Linear& linear, int rows) {
  return linear.format == kInt4 ? int4_kernel(rows, linear.group) : int8_kernel(rows, linear.group != 0);
}

}  // namespace

void pack(Member& me, const Linear& linear, const void* weights, const float* scales) {
  bool int4 = linear.format == kInt4;
  int64_t padded = inputs_padded(linear), real = int4 ? (linear.inputs + 1) / 2 : linear.inputs;
  PaddedRow row(real, int4 ? padded / 2 : padded, int4 ? 0x88 : 0);
  std::vector<uint8_t> nothing(padded, int4 ? 0x88 : 0);
  Range mine = me.share(panels_of(linear));
  for (int64_t panel = mine.begin; panel < mine.end; ++panel) {
    char* to = (char*)linear.panels + panel * panel_bytes(linear);
    pack_scales(linear, panel, scales);
    for (int lane = 0; lane < kPanel; ++lane) {
      int64_t output = output_in(linear, panel, lane);
      const uint8_t* from = output < 0 ? nothing.data() : row.copy((const uint8_t*)weights + output * real);
      if (int4) pack_int4(from, padded, lane, to);
      else linear.sums[panel * kPanel + lane] = pack_int8((const int8_t*)from, padded, lane, to);
    }
  }
}

int64_t operand_bytes(const Linear& linear, int64_t rows, int members) {
  return Operand(linear, rows, nullptr).bytes(members);
}

// Members take blocks of rows; where there are fewer blocks than members, each takes some columns of all rows. A scale
// of whole rows they then find and write all of them, the same.
void make_operand(Member& me, const Linear& linear, const Norm* norm, Rows x, int64_t rows, void* data) {
  Operand operand(linear, rows, data);
  bool by_columns = operand.blocks.count < me.size;
  Range blocks = by_columns ? Range{0, operand.blocks.count} : me.share(operand.blocks.count);
  Range columns = {0, operand.inputs};
  if (by_columns) columns = me.share(operand.inputs, std::max(linear.group, kBlockInputs));
  with_type(linear.dtype, [&](auto type) {
    using T = decltype(type);
    T* normed = (T*)(me.spare ? me.spare : operand.spare + me.rank * operand.spare_bytes);
    for (int64_t block = blocks.begin; block < blocks.end; ++block) {
      Rows from = {(T*)x.data + operand.blocks.first(block) * x.stride, x.stride};
      if (norm) {
        for (int row = 0; row < operand.blocks.rows_of(block); ++row)
          normalise((const T*)from.data + row * x.stride, (const T*)norm->weight, norm->eps, (int)linear.inputs,
                    normed + row * operand.inputs);
        from = {normed, operand.inputs};
      }
      BlockWriter<T>(linear, operand, block).write(from, columns);
    }
  });
}

void multiply(Member& me, const Linear& linear, const void* data, int64_t rows, Rows out, Rows residual) {
  const Operand operand(linear, rows, (void*)data);
  const Blocks& blocks = operand.blocks;
  Range mine = me.share(panels_of(linear));
  int64_t bytes = panel_bytes(linear), groups = operand.groups, scales = scales_of_output(linear) * kPanel;
  int64_t cached = std::max<int64_t>(1, kRowsCached / (operand.inputs * most_rows(linear)));  // blocks
  with_type(linear.dtype, [&](auto type) {
    Epilogue<decltype(type)> epilogue(linear, out, residual);
    alignas(64) float tile[kMostRows * kPanel];
    for (int64_t begin = 0; begin < blocks.count; begin += cached) {
      int64_t end = std::min(begin + cached, blocks.count);
      for (int64_t panel = mine.begin; panel < mine.end; ++panel)
        for (int64_t block = begin; block < end; ++block) {
          int64_t first = blocks.first(block);
          int count = blocks.rows_of(block);
          const char* weights = (char*)linear.panels + panel * bytes;
          Product product = {weights, linear.scales + panel * scales, linear.sums + panel * kPanel,
                             operand.codes + first * operand.inputs, operand.scales + first * groups,
                             operand.starts + first * groups, operand.inputs, linear.group,
                             look_ahead(weights, bytes, block - begin, end - begin)};
          kernel_for(linear, count)(product, tile);
          store_tile(epilogue, first, count, panel, tile);
        }
    }
  });
}

}  // namespace integer
}  // namespace lsv
