// The parts of gemm/gemm.h by weight format. gemm/gemm.cpp chooses among them; each has the functions of gemm/gemm.h.
#pragma once

#include "gemm/gemm.h"

#define LSV_FORMAT_FUNCTIONS                                                                                         \
  void pack(Member& me, const Linear& linear, const void* weights, const float* scales);                             \
  int64_t operand_bytes(const Linear& linear, int64_t rows, int members);                                            \
  void make_operand(Member& me, const Linear& linear, const Norm* norm, Rows x, int64_t rows, void* operand);        \
  void multiply(Member& me, const Linear& linear, const void* operand, int64_t rows, Rows out, Rows residual);

namespace lsv {

namespace plain {  // gemm/plain.cpp: kPlain with vector instructions
LSV_FORMAT_FUNCTIONS
// Reads `count` outputs' weights back out of the panels, each into a row of `out`.
void unpack_rows(Member& me, const Linear& linear, const int64_t* outputs, int64_t count, Rows out);
}  // namespace plain
namespace integer { LSV_FORMAT_FUNCTIONS } // gemm/integer.cpp: kInt8 and kInt4 with vector instructions
namespace coded {  // gemm/coded.cpp: kCoded with vector instructions
LSV_FORMAT_FUNCTIONS
int64_t inputs_padded(const Linear& linear);
int64_t panel_bytes(const Linear& linear);
}  // namespace coded

// gemm/amx.cpp: tile instructions, over panels packed by the ones above. Only where LSV_AMX is defined.
namespace amx {
bool takes(const Linear& linear, int64_t rows);  // the answer must not break the row rule: see gemm/amx.cpp
int64_t operand_bytes(const Linear& linear, int64_t rows, int members);
void make_operand(Member& me, const Linear& linear, const Norm* norm, Rows x, int64_t rows, void* operand);
void multiply(Member& me, const Linear& linear, const void* operand, int64_t rows, Rows out, Rows residual);
bool feeds(const Linear& linear, const Linear& next, int64_t rows);
void multiply_into(Member& me, const Linear& linear, const void* operand, int64_t rows, const Linear& next, void* fed);
}  // namespace amx

}  // namespace lsv
