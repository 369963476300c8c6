// Choosing tokens of logits inside a region.
#pragma once

#include <cstdint>

#include "team.h"

namespace lsv {

struct Choice {   // CHOICE of lsv_runtime/nn/sampling.py
  float rate;     // log2(e) / temperature; 0 takes the best token
  int32_t only;   // whether only allowed tokens stay
  int64_t edits;  // how many are the row's
  int64_t top_k;  // 0 keeps all
  int64_t top_p;  // 32-bit fractions
  int64_t min_p;
  uint64_t seed, position;
};

struct Edit {
  int32_t token, kind;
  float first, second;
};

// What choosing from rows of `size` logits needs for a team of `members`.
int64_t choice_bytes(int64_t size, int members);

// logits [rows][size], rows `stride` apart; choices [rows], and where the edits of each row begin -> tokens [rows], a
// negative one where there is none. All members together; the tokens are there for all of them afterwards. The logits
// are the same then, but not meanwhile.
void choose_tokens(Member& me, int dtype, void* logits, int64_t stride, int64_t size, int64_t rows,
                   const Choice* choices, const Edit* const* edits, int64_t* tokens, char* memory);

}  // namespace lsv
