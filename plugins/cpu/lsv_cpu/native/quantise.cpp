// Quantising the weights of a plain checkpoint while it is loaded.
#include "quantise.h"

#include "gemm/epilogue.h"
#include "team.h"

namespace lsv {
namespace {

constexpr int kMostInputs = 128;                  // of an int4 group
constexpr float kDivisors[] = {8.0f, 8.5f, 9.0f};  // the largest weight of a group becomes -8, or less and is cut

struct Scale { float scale, inverse; };

// A group of weights, padded with zeros.
struct Group {
  alignas(64) float values[kMostInputs] = {};
  int padded;

  template <class T> Group(const T* weights, int size) : padded((size + kLanes - 1) / kLanes * kLanes) {
    for_vectors(size, [&](int at, int n) { store(values + at, load_up_to(weights + at, n)); });
  }

  // The value that is furthest from zero.
  float peak() const {
    Floats top = {}, bottom = {};
    for (int at = 0; at < padded; at += kLanes) {
      Floats x = load(values + at);
      top = x > top ? x : top;
      bottom = x < bottom ? x : bottom;
    }
    float highest = maximum(top), lowest = maximum(-bottom);
    return highest > lowest ? highest : -lowest;
  }

  static Ints code(Floats x, Scale scale) {
    Ints whole = rounded(x * scale.inverse);
    whole = whole < -8 ? Ints{} - 8 : whole;
    return whole > 7 ? Ints{} + 7 : whole;
  }

  // The sum of squared errors of a scale.
  float error(Scale scale) const {
    Floats total = {};
    for (int at = 0; at < padded; at += kLanes) {
      Floats x = load(values + at);
      Floats off = __builtin_convertvector(code(x, scale), Floats) * scale.scale - x;
      total += off * off;
    }
    return sum(total);
  }

  // Of the scales tried the one with the smallest error.
  Scale best_scale() const {
    float peak = this->peak();
    Scale best = {1, 1};
    if (std::abs(peak) < kNothing) return best;
    float least = std::numeric_limits<float>::infinity();
    for (float divisor : kDivisors) {
      Scale scale = {peak / -divisor, -divisor / peak};
      float error = this->error(scale);
      if (error < least) best = scale, least = error;
    }
    return best;
  }

  void write(Scale scale, int size, uint8_t* nibbles) const {
    int8_t codes[kMostInputs] = {};
    for (int at = 0; at < padded; at += kLanes) store_codes(codes + at, code(load(values + at), scale) + 8, kLanes);
    for (int i = 0; i < (size + 1) / 2; ++i) nibbles[i] = (uint8_t)(codes[2 * i] | codes[2 * i + 1] << 4);
  }
};

template <class T> void quantise_int8_row(const T* weights, int inputs, int8_t* codes, float* scale) {
  Scales found = scales_of(broadcast(largest_of(weights, inputs)));
  *scale = found.scale[0];
  quantise(weights, inputs, found.inverse[0], 0, codes);
}

template <class T> void quantise_int4_row(const T* weights, int inputs, int group, uint8_t* nibbles, float* scales) {
  for (int at = 0; at < inputs; at += group, ++scales) {
    int size = inputs - at < group ? inputs - at : group;
    Group values(weights + at, size);
    Scale scale = values.best_scale();
    *scales = scale.scale;
    values.write(scale, size, nibbles + at / 2);
  }
}

}  // namespace
}  // namespace lsv

using namespace lsv;

extern "C" {

// weights [outputs][inputs] -> codes [outputs][inputs], scales [outputs].
void lsv_quantise_int8(int dtype, const void* weights, int64_t outputs, int64_t inputs, int8_t* codes, float* scales) {
  run([&](Member& me) {
    Range mine = me.share(outputs);
    with_type(dtype, [&](auto type) {
      for (int64_t row = mine.begin; row < mine.end; ++row)
        quantise_int8_row((const decltype(type)*)weights + row * inputs, (int)inputs, codes + row * inputs,
                          scales + row);
    });
  });
}

// The same in groups of 32, 64 or 128 inputs -> nibbles [outputs][(inputs + 1) / 2], the even input in the low one,
// value + 8; scales [outputs][groups].
void lsv_quantise_int4(int dtype, const void* weights, int64_t outputs, int64_t inputs, int group,
                       uint8_t* nibbles, float* scales) {
  int64_t width = (inputs + 1) / 2, groups = (inputs + group - 1) / group;
  run([&](Member& me) {
    Range mine = me.share(outputs);
    with_type(dtype, [&](auto type) {
      for (int64_t row = mine.begin; row < mine.end; ++row)
        quantise_int4_row((const decltype(type)*)weights + row * inputs, (int)inputs, group, nibbles + row * width,
                          scales + row * groups);
    });
  });
}

}
