// A mixture of experts: each row goes through the few gated MLPs that a router chooses for it. Pairs of a row and one
// of its experts are sorted by expert, every product runs over all experts at once, and a row's sum is made in the order
// of its experts: so it depends neither on the other rows nor on the team.
#pragma once

#include "gemm/gemm.h"

namespace lsv {

// Prepared once; lsv_cpu.experts fills it.
struct Experts {
  int32_t dtype;      // of rows
  int32_t count, top;
  int32_t normalise;  // whether a row's weights are rescaled to sum to one
  int64_t hidden, inner;         // features of rows, and between the two products of an expert
  const Linear* router;          // null: the caller says where rows go
  const Linear *gate_up, *down;  // [count], with a gate and without one
  OperandSizes operands;         // the most of any expert's layers
};

// Where rows go, if the caller says so: weights in the rows' dtype and the numbers of experts, both [rows][top].
struct Choice {
  const void* weights = nullptr;
  const int64_t* experts = nullptr;
};

// A row's weights after rounding, and its experts in ascending order, both [top].
struct Shares {
  float* weights;
  int32_t* experts;
};

// What lsv_runtime.nn.moe.Router chooses behind its logits [count]; `working` has choosing_bytes().
int64_t choosing_bytes(const Experts& experts);
void choose(const Experts& experts, const void* logits, Shares to, char* working);
// The same for row `row` of what the caller has chosen.
void choose(const Experts& experts, const Choice& choice, int64_t row, Shares to);

int64_t experts_bytes(const Experts& experts, int64_t rows, int members);

// out = the experts' sum + residual, rounded once; residual.data may be null. x is normed first if `norm` is given.
// `working` has experts_bytes().
void run_experts(Member& me, const Experts& experts, const Norm* norm, Rows x, const Choice& choice, int64_t rows,
                 Rows out, Rows residual, char* working);

}  // namespace lsv
