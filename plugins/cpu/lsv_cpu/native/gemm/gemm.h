// Linear layers over packed weights. One layout serves every number of rows: panels of 32 outputs, inside a panel one
// block of kTileBytes after the other along the inputs, two tiles a block (outputs 0-15, outputs 16-31). A tile is 16
// lines of 64 bytes; a line holds 16 outputs x 4 bytes of consecutive inputs: 1 float32, 2 bfloat16 or float16, 4 int8.
// An int4 tile has 8 lines: the low nibbles of line i are those int8 would have in line i, the high ones those of
// line i + 8, both as value + 8. Inputs are padded with zeros to whole tiles, outputs to whole panels.
//
// The row rule: what a row gets does not depend on the rows beside it. Every kernel adds up an output's products in
// the same order, whatever the number of rows, members or blocks.
#pragma once

#include <cstdint>

#include "team.h"

namespace lsv {

enum Dtype { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

enum Format {
  kPlain = 0,  // weights in the layer's dtype
  kInt8 = 1,   // int8 weights with a scale per output; rows are quantised to int8 with a scale per row (and group)
  kInt4 = 2,   // int4 weights with a scale per output and group of inputs; rows to int8 with a scale per row and group
  kCoded = 3,  // codes into a table, with a scale and perhaps an offset per output and group: see gemm/coded.h
};

enum Gate { kNoGate = 0, kSilu = 1, kGelu = 2, kGeluTanh = 3, kRelu = 4 };

constexpr int kPanel = 32;       // outputs of a panel
constexpr int kTileBytes = 1024;  // a tile of any format but int4, where it has half of that

// A packed linear layer. With a gate the outputs are interleaved: a panel holds 16 of the first half (the gate) and
// the 16 of the second half (up) that belong to them, and the layer yields activation(gate) * up, outputs / 2 wide.
struct Linear {
  int32_t dtype;   // Dtype of rows, bias, output and plain weights
  int32_t format;  // Format
  int32_t gate;    // Gate
  int32_t group;   // inputs of a group: int4 32, 64 or 128; int8 a multiple of 64, codes any, or 0 for all
  int64_t outputs, inputs;
  void* panels;
  float* scales;   // int8: [panels][32], whatever the group; int4: [panels][groups][32]; else null
  int32_t* sums;   // int8: sum of each output's weights [panels][32]; else null
  const void* bias;  // [outputs] as in the checkpoint (not interleaved), or null
  const void* table;     // codes: their values in bfloat16
  const int32_t* order;  // codes: the input that each column of weights is for [inputs], or null for their own order
  int32_t bits;          // of a code, 4 or 8
  int32_t offset;        // codes: whether a group has an offset beside its scale
  const float* added;    // for the time of one product: what comes to its rows with the bias [rows][outputs], or null
  const int32_t* adapted;  // and to which: to those that have a number here that is not negative [rows]
  const int32_t* rescaled;  // by that number, whether the row is rescaled before anything comes to it; or null
  const float* rescale;     // and how: [numbers][2][outputs], what product and bias are multiplied by, and what is added
  const float* input_scale;  // codes: rows become e4m3 in units of it [1], and scales have it in them; null: rows stay
};

// RMS norm of a row before it goes into a linear layer: weight [inputs] in the layer's dtype.
struct Norm {
  const void* weight;
  float eps;
};

// Rows of a product's input or output: `stride` elements apart.
struct Rows {
  void* data;
  int64_t stride;
};

int64_t panels_of(const Linear& linear);       // with a gate each half is padded to 16s
int64_t panel_bytes(const Linear& linear);     // of one panel's weights
int64_t inputs_padded(const Linear& linear);   // to whole tiles (int4: also to whole groups; codes: to whole spans)

// Scales that each output's weights have in `scales`. Groups of int8 are of the rows alone.
int64_t scales_of_output(const Linear& linear);

// The output in lane `lane` of a panel; -1 where the panel is padded.
int64_t output_in(const Linear& linear, int64_t panel, int lane);

// Packs weights [outputs][inputs], dense: plain in the layer's dtype; int8; int4 as uint8 [outputs][inputs / 2], the
// even input in the low nibble, value + 8; codes as uint8 [outputs][ceil(inputs * bits / 8)], the even input in the low
// nibble. `scales` are taken as [outputs] or [outputs][groups] float, with as many offsets behind them.
void pack(Member& me, const Linear& linear, const void* weights, const float* scales);

// A layer of those of its outputs that are in some of its panels. With a gate it must not have a bias.
Linear part_of(const Linear& linear, Range panels);

// Input rows in the form a format's kernel reads; `operand` has operand_bytes() for a team of `members`, whose part of
// it comes last and is not needed by members with `spare`. Rows are normed first if `norm` is given. All members
// together make one operand; a barrier must follow before `multiply`.
int64_t operand_bytes(const Linear& linear, int64_t rows, int members);
void make_operand(Member& me, const Linear& linear, const Norm* norm, Rows x, int64_t rows, void* operand);

// out = product + bias (through the gate if there is one) + residual, in float and rounded once. residual.data may be
// null, and may be `out`. A barrier must follow before the output is read or another product begins.
void multiply(Member& me, const Linear& linear, const void* operand, int64_t rows, Rows out, Rows residual);

// Whether a gated product can write its output as the next layer's operand, for as many rows. Then multiply_into does,
// and no make_operand comes between them; a barrier must.
bool feeds(const Linear& linear, const Linear& next, int64_t rows);
void multiply_into(Member& me, const Linear& linear, const void* operand, int64_t rows, const Linear& next, void* fed);

// What operands of any number of rows take: at most `unit` bytes for each kOperandRows of them, begun or full, and
// `spare` for each member.
constexpr int64_t kOperandRows = 16;
struct OperandSizes { int64_t unit, spare; };
OperandSizes operand_sizes(const Linear& linear);

}  // namespace lsv
