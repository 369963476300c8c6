// RMS norm of one row, in float and rounded once (Zhang & Sennrich 2019).
#pragma once

#include <cmath>

#include "vector.h"

namespace lsv {

template <class T> float inverse_rms(const T* x, float eps, int size) {
  Floats squares = {};
  for_vectors(size, [&](int at, int n) {
    Floats value = load_up_to(x + at, n);
    squares += value * value;
  });
  return 1.0f / std::sqrt(sum(squares) / size + eps);
}

// `size` features of a row, whose inverse_rms is `scale`.
template <class T> void rescale(const T* x, const T* weight, float scale, int size, T* out) {
  for_vectors(size, [&](int at, int n) {
    store_up_to(out + at, load_up_to(x + at, n) * scale * load_up_to(weight + at, n), n);
  });
}

template <class T> void normalise(const T* x, const T* weight, float eps, int size, T* out) {
  rescale(x, weight, inverse_rms(x, eps, size), size, out);
}

}  // namespace lsv
