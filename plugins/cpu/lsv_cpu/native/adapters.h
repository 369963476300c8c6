// Low-rank adapters: what the linear layer's slots add to a row, x A^T B with the matrices of the row's own slot.
#pragma once

#include "gemm/gemm.h"

namespace lsv {

// A layer's slots; lsv_cpu.adapters fills it.
struct Adapters {
  int32_t dtype;
  int32_t rank;     // of the slots' matrices; an adapter may use less
  int32_t sources;  // projections that have an `a` of their own
  int32_t parts;    // runs of outputs, each of a source
  int64_t inputs, outputs;
  const void* a;         // [slots][sources][rank][inputs]
  const void* b;         // [slots][rank][outputs], scaled
  const int32_t* ranks;  // [slots]: the rank of the adapter there, 0 for none
  const int64_t* runs;   // [parts][3]: source, first output, the one after the last
  const int32_t* rescaled;  // [slots]: whether the adapter there rescales the layer's own results (DoRA); null: none does
  const float* rescale;     // [slots][2][outputs]: what these are multiplied by, and what is added
};

// Through which adapters a step's rows go: in tiles of one adapter each, so that its matrices are read once for them.
struct AdapterTokens {
  const int32_t* slots;       // [rows]: -1 for none
  const int64_t* tiles;       // [count][width]: rows in order, behind them numbers that no row has
  const int64_t* tile_slots;  // [count]
  int64_t count, width;
};

// Whether any of a step's rows goes through an adapter that has something for the layer.
bool adds(const Adapters& layer, const AdapterTokens& tokens);

// Both are for the step's rows in `rows`, the first of which comes first in x, low and added. A barrier must follow.
// low [rows][sources][rank] = x A^T; added [rows][outputs] = low B. Rows without an adapter are left as they are.
void shrink(Member& me, const Adapters& layer, const AdapterTokens& tokens, Range rows, Rows x, float* low);
void expand(Member& me, const Adapters& layer, const AdapterTokens& tokens, Range rows, const float* low, float* added);

}  // namespace lsv
