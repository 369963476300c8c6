// Rotation of one head's features (RoFormer, Su et al. 2021), in float and rounded once.
#pragma once

#include "vector.h"

namespace lsv {

// The first `rotary` features of x, x and out may be the same. place: the table's line of the token's position, cosines of `rotary`
// features, then their sines, the first half of which is negated.
template <class T> void rotate_head(const T* x, const T* line, int rotary, T* out) {
  int half = rotary / 2;
  const T *cosines = line, *sines = line + rotary;
  for_vectors(half, [&](int at, int n) {
    Floats low = load_up_to(x + at, n), high = load_up_to(x + half + at, n);
    Floats c0 = load_up_to(cosines + at, n), c1 = load_up_to(cosines + half + at, n);
    Floats s0 = load_up_to(sines + at, n), s1 = load_up_to(sines + half + at, n);
    store_up_to(out + at, low * c0 + high * s0, n);
    store_up_to(out + half + at, high * c1 + low * s1, n);
  });
}

}  // namespace lsv
