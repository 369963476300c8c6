// Quantising the weights of a plain checkpoint while it is loaded.
#include "quantise.h"

#include "gemm/epilogue.h"
#include "team.h"

namespace lsv {
namespace {

constexpr int kMostInputs = 128;  // of an int4 group
// The largest weight of a group becomes about -8; beyond it is cut.
constexpr float kDivisors[] = {8.0f, 7.2f, 7.4f, 7.6f, 7.8f, 8.2f, 8.4f, 8.6f, 8.8f};

// A group of weights, padded with zeros, as shares of its peak.
struct Group {
  alignas(64) float shares[kMostInputs] = {};
  int padded;
  float peak;  // the value that is furthest from zero, 0 if all are nothing

  template <class T> Group(const T* weights, int size) : padded((size + kLanes - 1) / kLanes * kLanes) {
    for_vectors(size, [&](int at, int n) { store(shares + at, load_up_to(weights + at, n)); });
    peak = furthest();
    if (std::abs(peak) < kNothing) peak = 0;
    for (int at = 0; at < padded; at += kLanes) store(shares + at, peak == 0 ? Floats{} : load(shares + at) / peak);
  }

  float furthest() const {
    Floats top = {}, bottom = {};
    for (int at = 0; at < padded; at += kLanes) {
      Floats x = load(shares + at);
      top = x > top ? x : top;
      bottom = x < bottom ? x : bottom;
    }
    float highest = maximum(top), lowest = maximum(-bottom);
    return highest > lowest ? highest : -lowest;
  }

  static Ints code(Floats share, float divisor) {
    Ints whole = rounded(share * -divisor);
    whole = whole < -8 ? Ints{} - 8 : whole;
    return whole > 7 ? Ints{} + 7 : whole;
  }

  // Writes the codes whose error is smallest after the scale is fitted to them, and returns the scale. Errors count by
  // the squares of the weights.
  float write(int size, uint8_t* nibbles) const {
    using Limits = std::numeric_limits<float>;
    float best = kDivisors[0], scale = Limits::quiet_NaN(), least = Limits::infinity();
    for (float divisor : kDivisors) {
      float fitted = fit(divisor), error = this->error(divisor, fitted);
      if (error < least) best = divisor, scale = peak * fitted, least = error;
    }
    write_codes(best, size, nibbles);
    return peak == 0 ? 1 : scale;
  }

  // The scale of shares that fits the codes best.
  float fit(float divisor) const {
    Floats along = {}, length = {};
    for (int at = 0; at < padded; at += kLanes) {
      Floats share = load(shares + at), square = share * share;
      Floats whole = __builtin_convertvector(code(share, divisor), Floats);
      along += square * share * whole;
      length += square * (whole * whole);
    }
    return sum(along) / sum(length);
  }

  float error(float divisor, float scale) const {
    Floats total = {};
    for (int at = 0; at < padded; at += kLanes) {
      Floats share = load(shares + at);
      Floats off = __builtin_convertvector(code(share, divisor), Floats) * scale - share;
      total += share * share * (off * off);
    }
    return sum(total);
  }

  void write_codes(float divisor, int size, uint8_t* nibbles) const {
    int8_t codes[kMostInputs] = {};
    for (int at = 0; at < padded; at += kLanes) store_codes(codes + at, code(load(shares + at), divisor) + 8, kLanes);
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
    *scales = Group(weights + at, size).write(size, nibbles + at / 2);
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
