// Attention over a paged cache. The records are those that lsv_cpu.attention hands over. Strides and offsets count
// elements; tensors are dense but for the token axis.
#pragma once

#include <cstdint>

#include "gemm/gemm.h"

namespace lsv {

struct Layer {
  int32_t heads, kv_heads, dim;
  int32_t window;  // keys a token sees, itself included; 0: all
  int32_t causal;
  int32_t distances;  // of biases
  int32_t value_dim;  // values are so many first features of keys; 0: they lie on their own, with dim features
  float scale, soft_cap;  // soft_cap 0: none
  const float *sinks, *alibi;  // [heads] or null
  const float* biases;  // [heads, distances] or null: by how far a key is before its query
  float key_scale, value_scale;  // what a code of one stands for in a cache of 8-bit floats
  int64_t key_offset, value_offset;  // within a page

  bool shares() const { return value_dim != 0; }
  int values() const { return value_dim ? value_dim : dim; }  // features of values and of outputs
};

struct Plan {
  int32_t requests, width;
  const int32_t *starts, *context, *tables;  // [requests + 1], [requests], [requests, width]
};

struct Cache {
  void* data;
  int64_t page;
  int32_t block, form;  // Form
};

struct Tensors {
  const void *q, *k, *v;  // [tokens, heads, dim]; k and v null: only read the cache; v null too where k has the values
  void* out;
  int64_t q_stride, k_stride, v_stride;
};

// What happens to heads before attention: RMS norm of q and k, then rotation. table: see lsv_rotate.
struct HeadTurn {
  const void *q_norm, *k_norm;  // [dim] or null
  float eps;
  const void* table;  // null: no rotation
  int32_t rotary;
  const int64_t* positions;  // of each token
};

// Bytes that `attend` needs for the time of the call, for all members together.
int64_t attention_scratch(int dtype, const Layer& layer, const Plan& plan, int members, bool cached = true);

// Turns the heads of q and k where they lie, and writes k and v to the cache if there is one. A barrier must follow.
void place_heads(Member& me, int dtype, const Layer& layer, const Plan& plan, const Cache* cache, const Tensors& tensors,
                 const HeadTurn& turn);

// Attends to the cache or, if that is null, to the step's own k and v. Nothing may have been claimed since the last
// barrier; a barrier must follow before the output is read.
void attend(Member& me, int dtype, const Layer& layer, const Plan& plan, const Cache* cache, const Tensors& tensors,
            char* scratch);

}  // namespace lsv
