// A table of embeddings: rows of a packed linear layer.
#pragma once

#include "gemm/gemm.h"

namespace lsv {

// Reads `count` outputs' weights back out of the panels of a layer without a gate -> out [count][inputs], dense.
void look_up(Member& me, const Linear& linear, const int64_t* ids, int64_t count, void* out);

}  // namespace lsv
