// What happens to a product before it is stored: bias, gate, residual, one rounding.
#pragma once

#include "gemm/gemm.h"
#include "vector.h"

namespace lsv {

inline Floats erf_of(Floats x) {  // Abramowitz & Stegun 7.1.26, absolute error below 1.5e-7
  Floats size = x < 0.0f ? -x : x;
  Floats t = 1.0f / (1.0f + 0.3275911f * size);
  Floats poly = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
  Floats y = 1.0f - poly * exp(-size * size);
  return x < 0.0f ? -y : y;
}

inline Floats activate(int gate, Floats x) {
  switch (gate) {
    case kSilu: return x / (1.0f + exp(-x));
    case kGelu: return 0.5f * x * (1.0f + erf_of(x * 0.70710678f));
    case kGeluTanh: return 0.5f * x * (1.0f + tanh(0.79788456f * (x + 0.044715f * x * x * x)));
    default: return x < 0.0f ? Floats{} : x;  // kRelu
  }
}

// Stores panels of finished sums. T is the type behind the layer's dtype.
template <class T> class Epilogue {
 public:
  static constexpr int kVectors = kPanel / kLanes;  // of a row of a panel
  static constexpr int kHalf = kVectors / 2;

  Epilogue(const Linear& linear, Rows out, Rows residual)
      : gate_(linear.gate), width_(linear.gate ? linear.outputs / 2 : linear.outputs), bias_((const T*)linear.bias),
        added_(linear.added), adapted_(linear.adapted), rescaled_(linear.rescaled), rescale_(linear.rescale),
        outputs_(linear.outputs), out_(out), residual_(residual) {}

  // sums: the kPanel products of one row with one panel.
  void store_row(int64_t row, int64_t panel, const Floats* sums) const {
    if (!gate_) return store_vectors<kVectors>(row, panel * kPanel, sums, change_of(row));
    Floats gated[kHalf];
    gate_row(row, panel, sums, gated);
    store_vectors<kHalf>(row, panel * (kPanel / 2), gated, {});
  }

  // What the gate makes of such products: kPanel / 2 numbers; zeros in place of outputs that are padding.
  void gate_row(int64_t row, int64_t panel, const Floats* sums, Floats* gated) const {
    const Change change = change_of(row);
    for (int i = 0; i < kHalf; ++i) {
      int64_t at = panel * (kPanel / 2) + i * kLanes;
      Floats gate = sums[i] + bias(at), up = sums[kHalf + i] + bias(at, width_);
      if (change.added && left(at)) {
        gate = changed(gate, change, at, left(at));
        up = changed(up, change, width_ + at, left(at));
      }
      gated[i] = activate(gate_, gate) * up;
    }
  }

 private:
  // What adapters make of a row; null where there is nothing.
  struct Change { const float *added, *rescale; };

  Change change_of(int64_t row) const {
    if (!added_ || adapted_[row] < 0) return {};
    const int64_t number = adapted_[row];
    return {added_ + row * outputs_, rescaled_ && rescaled_[number] ? rescale_ + number * 2 * outputs_ : nullptr};
  }

  Floats changed(Floats value, const Change& change, int64_t at, int count) const {
    const float* rescale = change.rescale;
    if (rescale) value = value * load_up_to(rescale + at, count) + load_up_to(rescale + outputs_ + at, count);
    return value + load_up_to(change.added + at, count);
  }

  int left(int64_t at) const { return at + kLanes <= width_ ? kLanes : at < width_ ? (int)(width_ - at) : 0; }

  Floats bias(int64_t at, int64_t offset = 0) const {
    return bias_ && left(at) ? load_up_to(bias_ + offset + at, left(at)) : Floats{};
  }

  template <int N>
  void store_vectors(int64_t row, int64_t first, const Floats* values, const Change& change) const {
    T* out = (T*)out_.data + row * out_.stride;
    const T* residual = residual_.data ? (const T*)residual_.data + row * residual_.stride : nullptr;
    for (int i = 0; i < N; ++i) {
      int64_t at = first + i * kLanes;
      int count = left(at);
      if (!count) return;
      Floats value = values[i];
      if (!gate_) value += bias(at);
      if (change.added) value = changed(value, change, at, count);
      if (residual) value += load_up_to(residual + at, count);
      store_up_to(out + at, value, count);
    }
  }

  int gate_;
  int64_t width_;
  const T* bias_;
  const float* added_;
  const int32_t* adapted_;
  const int32_t* rescaled_;
  const float* rescale_;
  int64_t outputs_;
  Rows out_, residual_;
};

template <class F> void with_type(int dtype, F&& f) {
  switch (dtype) {
    case kFloat32: return f(float());
    case kBFloat16: return f(BFloat16());
    case kFloat16: return f(Float16());
  }
}

}  // namespace lsv
