// What the files about coded weights share: how a panel of codes is cut, and the innermost piece of work, a pass.
//
// A panel's inputs are cut into spans: its groups, those of more than kMostSpan inputs into several. A span is a header
// (its 32 scales, then its 32 offsets if there are any, float) and rows of codes. A row has 4 bytes of each output:
// - of 4 bits 8 inputs: nibble i of an output's two halves is for the inputs 2i and 2i + 1;
// - of 8 bits 4 inputs: for every 4 outputs their inputs 0 and 1, output by output, and then their inputs 2 and 3.
// Either form makes pairs of inputs, 16 outputs in a line, by few instructions: see gemm/coded_decoders.h.
#pragma once

#include <algorithm>
#include <array>
#include <type_traits>

#include "dot.h"
#include "gemm/gemm.h"

namespace lsv {
namespace coded {

constexpr int64_t kUnit = 16;            // spans are padded to multiples of this many inputs
constexpr int64_t kMostSpan = 256;
constexpr int kRowsOfTwo = 2;            // up to which two panels go side by side, as sums of one wait for each other
constexpr int kRowBytes = kPanel * 4;    // of a row of codes, and of one of decoded weights: two inputs in bfloat16
constexpr int kVectors = kPanel / kLanes;

// How the inputs of a layer fall into spans. In the operand each span has `inputs` of them, the last one `last`.
struct Cut {
  explicit Cut(const Linear& linear)
      : bits(linear.bits), header(linear.offset ? 2 * kRowBytes : kRowBytes),
        group(linear.group ? std::min<int64_t>(linear.group, linear.inputs) : linear.inputs) {
    auto padded = [](int64_t count) { return (count + kUnit - 1) / kUnit * kUnit; };
    spans_of_group = (group + kMostSpan - 1) / kMostSpan;
    bool whole = group == linear.inputs;
    inputs = whole ? std::min(padded(group), kMostSpan) : padded((group + spans_of_group - 1) / spans_of_group);
    int64_t groups = (linear.inputs - 1) / group, left = linear.inputs - groups * group;  // in the last group
    int64_t more = (left - 1) / inputs;                                                   // whole spans there
    spans = groups * spans_of_group + more + 1;
    last = padded(left - more * inputs);
  }

  int64_t operand_inputs() const { return (spans - 1) * inputs + last; }
  int64_t bytes(int64_t span_inputs) const { return header + span_inputs / 8 * bits * kPanel; }
  int64_t panel_bytes() const { return (spans - 1) * bytes(inputs) + bytes(last); }

  // The layer's inputs in a span.
  Range range(int64_t span, int64_t all) const {
    int64_t begin = span / spans_of_group * group, end = std::min(begin + group, all);
    begin += span % spans_of_group * inputs;
    return {begin, std::min(begin + inputs, end)};
  }

  int bits;
  int64_t header;  // bytes
  int64_t group, spans_of_group, spans, inputs, last;
};

// How weights in pairs of bfloat16 are multiplied with a row's inputs: see dot.h.
struct FloatProducts : FloatPairs<float> {
  template <int kPart> static Floats part(Words pairs) { return widen_pairs<kPart>(pairs); }
};
#if defined(__AVX512BF16__)
struct PairProducts : Dot<BFloat16> {
  template <int kPart> static __m512i part(Words pairs) { return (__m512i)pairs; }
};
template <class T> using Products = std::conditional_t<std::is_same_v<T, BFloat16>, PairProducts, FloatProducts>;
#else
template <class T> using Products = FloatProducts;
#endif

// Rows as the kernels read them: span by span, padded with zeros, an odd number of cache lines apart (as the same place
// in all rows of a block must not fall on the same set of the cache); then each row's sums over its spans.
template <class T> struct Operand {
  using Input = typename Products<T>::Input;
  static constexpr int64_t kLine = 64 / sizeof(Input);

  Operand(const Linear& linear, int64_t rows, void* data)
      : cut(linear), stride(((cut.operand_inputs() + kLine - 1) / kLine | 1) * kLine), x((Input*)data),
        sums((float*)(x + rows * stride)),
        bytes((char*)(sums + (linear.offset ? rows * cut.spans : 0)) - (char*)data) {}

  const Cut cut;
  const int64_t stride;  // inputs
  Input* const x;
  float* const sums;
  const int64_t bytes;
};

// f(first, count, inputs) for runs of up to `most` spans of as many inputs.
template <class F> void for_spans(const Cut& cut, int64_t most, F&& f) {
  const int64_t alike = cut.last == cut.inputs ? cut.spans : cut.spans - 1;
  for (int64_t first = 0; first < alike; first += most) f(first, std::min(most, alike - first), cut.inputs);
  if (alike < cut.spans) f(alike, int64_t(1), cut.last);
}

// A block of rows times some spans of one panel, or of two side by side.
struct Pass {
  const char* panels[2];  // the first span of each
  const void* table;
  const void* x;          // the first row's inputs of the first span
  int64_t stride;         // bytes from a row's inputs to the next one's
  const float* sums;      // of the first row's inputs in each span; null where there are no offsets
  int64_t sums_stride;
  int64_t header;         // bytes
  int64_t spans, inputs;  // of each of these
  const char* ahead;      // beside decoded weights: what to prefetch, `ahead_lines` cache lines with every kUnit inputs
  int64_t ahead_lines;
  float* totals;          // [panel][row][kPanel], added to
};
using Kernel = void (*)(const Pass&);
using Kernels = std::array<Kernel, kTileRows>;  // by rows, from 1

// What a form of codes has. Its own kernels decode in registers.
struct Decoding {
  Kernels one;                                // panel
  std::array<Kernel, kRowsOfTwo> two;         // panels
  // Writes spans out with the codes in pairs of bfloat16: rows of kRowBytes, two inputs of 32 outputs each.
  void (*decode)(const void* table, const char* from, int64_t header, int64_t spans, int64_t inputs, char* to);
  bool quick;  // whether it takes no longer to decode for each block of rows than to share what was written out
};

template <class P> const Decoding& decoding(int bits, const void* table);
template <class P> const Kernels& kernels_over_decoded();

constexpr int64_t kMostDecoded = kMostSpan * kRowBytes / 2 + kMostSpan / kUnit * 2 * kRowBytes;  // bytes of a piece

// Products with tile instructions, over the same operand. Only where LSV_AMX is defined. They take every number of rows:
// sums of bfloat16 products depend on the instruction that adds them up.
void multiply_on_tiles(Member& me, const Linear& linear, const void* operand, int64_t rows, Rows out, Rows residual);

}  // namespace coded
}  // namespace lsv
