// Operations on one token's features at a time, computed in float and rounded once at the end.
#include "attention/attention.h"
#include "gemm/epilogue.h"
#include "norm.h"
#include "team.h"
#include "vector.h"

namespace lsv {
namespace {

template <class T>
void rms_norm(const T* x, const T* weight, T* out, int64_t rows, int64_t heads, int64_t stride, int64_t size, float eps) {
  run_if_worth(rows * heads * size / 8, [&](Member& me) {
    Range mine = me.share(rows * heads);
    for (int64_t i = mine.begin; i < mine.end; ++i)
      normalise(x + i / heads * stride + i % heads * size, weight, eps, (int)size, out + i * size);
  });
}

template <class T> void silu_mul(const T* x, T* out, int64_t rows, int64_t size) {
  run_if_worth(rows * size / 4, [&](Member& me) {
    int64_t pieces = rows < me.size ? me.size : 1;  // few rows are cut, at whole vectors
    int64_t piece = (size / pieces + kLanes - 1) / kLanes * kLanes;
    Range mine = me.share(rows * pieces);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      int64_t begin = i % pieces * piece, end = begin + piece < size ? begin + piece : size;
      const T *gate = x + i / pieces * 2 * size + begin, *up = gate + size;
      T* to = out + i / pieces * size + begin;
      for_vectors((int)(end - begin), [&](int at, int n) {
        Floats g = load_up_to(gate + at, n);
        store_up_to(to + at, g / (1.0f + exp(-g)) * load_up_to(up + at, n), n);
      });
    }
  });
}

// table: for each position the cosines of `rotary` features, then their sines, the first half of which is negated.
template <class T>
void rotate(const T* x, const int64_t* positions, const T* table, T* out, int64_t tokens, int64_t heads, int64_t dim,
            int64_t rotary, int64_t stride) {
  int64_t half = rotary / 2;
  run_if_worth(tokens * heads * dim / 8, [&](Member& me) {
    Range mine = me.share(tokens);
    for (int64_t token = mine.begin; token < mine.end; ++token) {
      const T *cosines = table + positions[token] * 2 * rotary, *sines = cosines + rotary;
      for (int64_t head = 0; head < heads; ++head) {
        const T* from = x + token * stride + head * dim;
        T* to = out + (token * heads + head) * dim;
        for_vectors((int)half, [&](int at, int n) {
          Floats low = load_up_to(from + at, n), high = load_up_to(from + half + at, n);
          Floats c0 = load_up_to(cosines + at, n), c1 = load_up_to(cosines + half + at, n);
          Floats s0 = load_up_to(sines + at, n), s1 = load_up_to(sines + half + at, n);
          store_up_to(to + at, low * c0 + high * s0, n);
          store_up_to(to + half + at, high * c1 + low * s1, n);
        });
        if (rotary < dim) std::memcpy(to + rotary, from + rotary, (dim - rotary) * sizeof(T));
      }
    }
  });
}

}  // namespace
}  // namespace lsv

using namespace lsv;

extern "C" {

// x [rows][heads][size], rows `stride` apart -> out, dense; weight [size].
void lsv_rms_norm(int dtype, const void* x, const void* weight, void* out, int64_t rows, int64_t heads, int64_t stride,
                  int64_t size, float eps) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    rms_norm((const T*)x, (const T*)weight, (T*)out, rows, heads, stride, size, eps);
  });
}

// x [rows][2 * size] -> out [rows][size]: silu of the first half times the second.
void lsv_silu_mul(int dtype, const void* x, void* out, int64_t rows, int64_t size) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    silu_mul((const T*)x, (T*)out, rows, size);
  });
}

// x [tokens][heads][dim], tokens `stride` apart -> out, dense, the first `rotary` features of each head rotated.
void lsv_rotate(int dtype, const void* x, const void* positions, const void* table, void* out, int64_t tokens,
                int64_t heads, int64_t dim, int64_t rotary, int64_t stride) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    rotate((const T*)x, (const int64_t*)positions, (const T*)table, (T*)out, tokens, heads, dim, rotary, stride);
  });
}

}  // extern "C"
