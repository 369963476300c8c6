// Coded weights with tile instructions: a piece of a panel is decoded to bfloat16 once and multiplied with 32 rows at a
// time. A span's products are added up in tiles; its scales then meet the sums, as in the vector kernels.
#if defined(LSV_AMX)

#include "gemm/amx.h"
#include "gemm/coded.h"
#include "gemm/epilogue.h"

namespace lsv {
namespace coded {
namespace {

using amx::kBlock, amx::kPair;

constexpr int64_t kMostRows = 512;         // that share a piece
constexpr int64_t kOperandKept = 1 << 20;  // bytes of their operand, in the second-level cache
constexpr int kLineBytes = tiles::kLineBytes;

// Some spans of a panel with a pair of blocks of rows, as tiles take them.
struct TilePass {
  const char* weights;        // decoded: the first span's header and rows
  const char* rows[2];        // the blocks' inputs of the first span; the second is null for up to kBlock rows
  int64_t stride;             // bytes from row to row
  int64_t header;             // bytes
  int64_t spans, inputs;      // of each of these
  int count;                  // rows
  const float* sums;          // of the first row's inputs in each span; null where there are no offsets
  int64_t sums_stride;
  const char* ahead;          // what to prefetch meanwhile, `lines` cache lines with each tile of inputs
  int lines;
  float* totals;              // [count][kPanel], added to
};

// The products of one span, kInputs at a time.
template <int kBlocks, int kInputs>
const char* add_span(const TilePass& p, const char* weights, int64_t at, const char* ahead) {
  constexpr int kWeightBytes = kInputs / 2 * kRowBytes, kInputBytes = kInputs * sizeof(BFloat16);
  amx::zero_sums<kBlocks>();
  for (int64_t input = 0; input < p.inputs; input += kInputs, weights += kWeightBytes, at += kInputBytes) {
    for (int i = 0; i < p.lines; ++i, ahead += kLineBytes) __builtin_prefetch(ahead);
    tiles::load<6>(weights, kRowBytes);
    tiles::load_past<4>(p.rows[0] + at, p.stride);
    tiles::multiply_bf16<0, 4, 6>();
    tiles::load<7>(weights + kLineBytes, kRowBytes);
    tiles::multiply_bf16<1, 4, 7>();
    tiles::stay_awake();
    if constexpr (kBlocks == 1) continue;
    tiles::load_past<5>(p.rows[1] + at, p.stride);
    tiles::multiply_bf16<2, 5, 6>();
    tiles::multiply_bf16<3, 5, 7>();
  }
  return ahead;
}

// A span's sums, scaled, and what its offsets make of the sums of its inputs.
void add_to_totals(const TilePass& p, int64_t span, const char* header, const float* sums) {
  for (int v = 0; v < kVectors; ++v) {
    const int at = v * kLanes;
    const Floats scales = load((const float*)header + at);
    const Floats offsets = p.sums ? load((const float*)(header + kRowBytes) + at) : Floats{};
#pragma GCC unroll 4
    for (int row = 0; row < p.count; ++row) {
      float* total = p.totals + row * kPanel + at;
      Floats value = multiply_add(load(sums + row * kPanel + at), scales, load(total));
      if (p.sums) value = multiply_add(broadcast(p.sums[row * p.sums_stride + span]), offsets, value);
      store(total, value);
    }
  }
}

// Sums meet their scales one span after the tiles have found them: neither waits for the other.
template <int kBlocks, int kInputs> void run(const TilePass& p) {
  alignas(kLineBytes) float sums[2][kPair * kPanel];
  const int64_t span_bytes = p.header + p.inputs / 2 * kRowBytes;
  const char *weights = p.weights, *ahead = p.ahead;
  for (int64_t span = 0; span < p.spans; ++span, weights += span_bytes) {
    ahead = add_span<kBlocks, kInputs>(p, weights + p.header, span * p.inputs * (int64_t)sizeof(BFloat16), ahead);
    amx::store_sums<kBlocks>(sums[span % 2]);
    if (span) add_to_totals(p, span - 1, weights - span_bytes, sums[(span - 1) % 2]);
  }
  add_to_totals(p, p.spans - 1, weights - span_bytes, sums[(p.spans - 1) % 2]);
}

class TileProduct {
  using P = Products<BFloat16>;

 public:
  TileProduct(const Linear& linear, const void* data, int64_t rows, Rows out, Rows residual)
      : operand_(linear, rows, (void*)data), cut_(operand_.cut), rows_(rows), panels_(panels_of(linear)),
        bytes_(cut_.panel_bytes()), codes_((const char*)linear.panels), table_(linear.table), offset_(linear.offset),
        step_(cut_.inputs % 32 || cut_.last % 32 ? kUnit : 32), decode_(decoding<P>(linear.bits, linear.table).decode),
        epilogue_(linear, out, residual) {}

  void share(Member& me) {
    const int64_t most = std::clamp(kOperandKept / row_bytes() / kPair * kPair, int64_t(kPair), kMostRows);
    const int64_t groups = (rows_ + most - 1) / most, pieces = std::min((16 * me.size + groups - 1) / groups, panels_);
    for (int64_t item; (item = me.claim()) < groups * pieces;) {
      const int64_t group = item / pieces, piece = item % pieces, first = group * most;
      multiply({first, std::min(first + most, rows_)}, {panels_ * piece / pieces, panels_ * (piece + 1) / pieces});
    }
  }

 private:
  int64_t row_bytes() const { return operand_.stride * (int64_t)sizeof(BFloat16); }

  void multiply(Range rows, Range panels) {
    alignas(kLineBytes) float totals[kMostRows * kPanel];
    alignas(kLineBytes) char decoded[kMostDecoded];
    for (int64_t number = panels.begin; number < panels.end; ++number) {
      std::memset(totals, 0, (rows.end - rows.begin) * kPanel * sizeof(float));
      const char* panel = codes_ + number * bytes_;
      for_spans(cut_, std::max<int64_t>(kMostSpan / cut_.inputs, 1), [&](int64_t span, int64_t spans, int64_t inputs) {
        const char* from = panel + span * cut_.bytes(cut_.inputs);
        decode_(table_, from, cut_.header, spans, inputs, decoded);
        add_piece(rows, decoded, span, spans, inputs, from + spans * cut_.bytes(inputs), totals);
      });
      finish(rows, number, totals);
    }
  }

  // A decoded piece with all rows; meanwhile they fetch the next one together.
  void add_piece(Range rows, const char* decoded, int64_t span, int64_t spans, int64_t inputs, const char* next,
                 float* totals) {
    const int64_t tiles_of_pair = spans * inputs / step_, pairs = (rows.end - rows.begin + kPair - 1) / kPair;
    const int64_t all_lines = spans * cut_.bytes(inputs) / kLineBytes;
    const int lines = (int)((all_lines + pairs * tiles_of_pair - 1) / (pairs * tiles_of_pair));
    for (int64_t row = rows.begin; row < rows.end; row += kPair, next += tiles_of_pair * lines * kLineBytes) {
      const int count = (int)std::min<int64_t>(kPair, rows.end - row);
      const bool two = count > kBlock;
      shapes_.set_pair(count, (int)(step_ * sizeof(BFloat16)));
      const char* x = (const char*)(operand_.x + row * operand_.stride + span * cut_.inputs);
      const float* sums = offset_ ? operand_.sums + row * cut_.spans + span : nullptr;
      const TilePass pass = {decoded, {x, two ? x + kBlock * row_bytes() : nullptr}, row_bytes(), cut_.header, spans,
                             inputs, count, sums, cut_.spans, next, lines, totals + (row - rows.begin) * kPanel};
      if (step_ == 32) (two ? run<2, 32> : run<1, 32>)(pass);
      else (two ? run<2, kUnit> : run<1, kUnit>)(pass);
    }
  }

  void finish(Range rows, int64_t panel, const float* totals) const {
    for (int64_t row = rows.begin; row < rows.end; ++row, totals += kPanel) {
      Floats vectors[kVectors];
      for (int v = 0; v < kVectors; ++v) vectors[v] = load(totals + v * kLanes);
      epilogue_.store_row(row, panel, vectors);
    }
  }

  const Operand<BFloat16> operand_;
  const Cut& cut_;
  const int64_t rows_, panels_, bytes_;  // bytes of a panel
  const char* codes_;
  const void* table_;
  const bool offset_;
  const int64_t step_;  // inputs of a tile: whole spans are cut into these
  void (*const decode_)(const void*, const char*, int64_t, int64_t, int64_t, char*);
  const Epilogue<BFloat16> epilogue_;
  tiles::Shapes shapes_;
};

}  // namespace

void multiply_on_tiles(Member& me, const Linear& linear, const void* operand, int64_t rows, Rows out, Rows residual) {
  if (rows) TileProduct(linear, operand, rows, out, residual).share(me);
}

}  // namespace coded
}  // namespace lsv

#endif
