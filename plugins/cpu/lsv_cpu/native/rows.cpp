// Operations on one token's features at a time, computed in float and rounded once at the end.
#include <omp.h>

#include "attention.h"
#include "vector.h"

namespace lsv {
namespace {

constexpr int64_t kParallel = 1 << 16;  // elements below which waking threads costs more than it saves

int threads_for(int64_t elements) { return elements < kParallel ? 1 : omp_get_max_threads(); }

template <class T>
void rms_norm(const T* x, const T* weight, T* out, int64_t rows, int64_t heads, int64_t stride, int64_t size, float eps) {
  int threads = threads_for(rows * heads * size);
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t i = 0; i < rows * heads; ++i) {
    const T* from = x + i / heads * stride + i % heads * size;
    T* to = out + i * size;
    Floats squares = {};
    for_vectors(size, [&](int at, int n) {
      Floats value = load_up_to(from + at, n);
      squares += value * value;
    });
    float scale = 1.0f / std::sqrt(sum(squares) / size + eps);
    for_vectors(size, [&](int at, int n) {
      store_up_to(to + at, load_up_to(from + at, n) * scale * load_up_to(weight + at, n), n);
    });
  }
}

template <class T> void silu_mul(const T* x, T* out, int64_t rows, int64_t size) {
  int threads = threads_for(rows * size);
  int64_t pieces = rows < threads ? threads : 1;  // few rows are cut, at whole vectors
  int64_t piece = (size / pieces + kLanes - 1) / kLanes * kLanes;
#pragma omp parallel for collapse(2) num_threads(threads) if (threads > 1)
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t part = 0; part < pieces; ++part) {
      int64_t begin = part * piece, end = begin + piece < size ? begin + piece : size;
      const T *gate = x + row * 2 * size + begin, *up = gate + size;
      T* to = out + row * size + begin;
      for_vectors((int)(end - begin), [&](int at, int n) {
        Floats g = load_up_to(gate + at, n);
        store_up_to(to + at, g / (1.0f + exp(-g)) * load_up_to(up + at, n), n);
      });
    }
}

// table: for each position the cosines of `rotary` features, then their sines, the first half of which is negated.
template <class T>
void rotate(const T* x, const int64_t* positions, const T* table, T* out, int64_t tokens, int64_t heads, int64_t dim,
            int64_t rotary, int64_t stride) {
  int threads = threads_for(tokens * heads * dim);
  int64_t half = rotary / 2;
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t token = 0; token < tokens; ++token) {
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
}

template <class F> void with_type(int dtype, F&& f) {
  switch (dtype) {
    case kFloat32: return f(float());
    case kBFloat16: return f(BFloat16());
    case kFloat16: return f(Float16());
  }
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
