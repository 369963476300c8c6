// The records that lsv_cpu.attention hands over. Strides and offsets count elements; tensors are dense but for the token axis.
#pragma once

#include <cstdint>

namespace lsv {

enum Dtype { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

struct Layer {
  int32_t heads, kv_heads, dim;
  int32_t window;  // keys a token sees, itself included; 0: all
  int32_t causal;
  float scale, soft_cap;  // soft_cap 0: none
  const float *sinks, *alibi;  // [heads] or null
  int64_t key_offset, value_offset;  // within a page
};

struct Plan {
  int32_t requests, width;
  const int32_t *starts, *context, *tables;  // [requests + 1], [requests], [requests, width]
};

struct Cache {
  void* data;
  int64_t page;
  int32_t block;
};

struct Tensors {
  const void *q, *k, *v;  // [tokens, heads, dim]; k and v null: only read the cache
  void* out;
  int64_t q_stride, k_stride, v_stride;
};

}  // namespace lsv
