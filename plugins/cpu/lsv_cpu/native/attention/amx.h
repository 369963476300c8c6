// Attention with tile instructions. Only where LSV_AMX is defined.
#pragma once

#include "attention/attention.h"

namespace lsv {
namespace amx {

// By layer alone, never by the number of rows: sums of bfloat16 products depend on the instruction that adds them up.
bool attends(int dtype, const Layer& layer);

// As lsv::attention_scratch and lsv::attend, for layers that `attends` takes.
int64_t attention_scratch(const Layer& layer, const Plan& plan, int members, bool cached);
void attend(Member& me, const Layer& layer, const Plan& plan, const Cache* cache, const Tensors& tensors, char* scratch);

}  // namespace amx
}  // namespace lsv
