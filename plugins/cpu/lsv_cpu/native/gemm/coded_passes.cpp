// Passes over coded weights. A span's products are added up in registers, scaled and then added to the totals; every
// kernel does that in the same order, whether it decodes the weights or finds them decoded.
#include <utility>

#include "gemm/coded.h"
#include "gemm/coded_decoders.h"

namespace lsv {
namespace coded {
namespace {

constexpr int kLineBytes = 64;
constexpr int64_t kAhead = 4096;  // bytes to prefetch ahead where codes are decoded on the way

// A span's sums of vectors of one panel, from `first` on, scaled, and what their offsets make of the sums of its inputs.
template <int kRows, int kTogether>
inline void add_to_totals(const Pass& pass, int64_t span, const char* header, const Floats (&sums)[kRows][kTogether],
                          int first, float* totals) {
  totals += first * kLanes;
#pragma GCC unroll 4
  for (int v = 0; v < kTogether; ++v, totals += kLanes) {
    const Floats scales = load((const float*)header + (first + v) * kLanes);
#pragma GCC unroll 12
    for (int row = 0; row < kRows; ++row)
      store(totals + row * kPanel, multiply_add(sums[row][v], scales, load(totals + row * kPanel)));
    if (!pass.sums) continue;
    const Floats offsets = load((const float*)(header + kRowBytes) + (first + v) * kLanes);
#pragma GCC unroll 12
    for (int row = 0; row < kRows; ++row) {
      const Floats sum = broadcast(pass.sums[row * pass.sums_stride + span]);
      store(totals + row * kPanel, multiply_add(sum, offsets, load(totals + row * kPanel)));
    }
  }
}

// kCount columns, from one place to another.
template <int kCount, int kRows, int kFrom, int kTo>
inline void copy_columns(const Floats (&from)[kRows][kFrom], int at, Floats (&to)[kRows][kTo], int place) {
#pragma GCC unroll 12
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) to[row][place + i] = from[row][at + i];
}

// The rows' sums over a span whose codes begin at `codes`, of the vectors from `first` on. `ahead` is gone on with.
template <class P, class S, int kRows, int kPanels, int kTogether>
inline void add_span(const Pass& pass, const S& source, const char* const (&codes)[kPanels], const char* inputs, int first,
                     const char*& ahead, Floats (&sums)[kPanels][kRows][kTogether]) {
  using Input = typename P::Input;
  constexpr int kBytes = kTogether * sizeof(Words), kLines = kBytes / kLineBytes;
  constexpr bool kFit = kRows * kPanels * kTogether + kTogether * S::kSteps <= kRegisters;
  constexpr int kDecoded = kFit ? kTogether : 1;  // vectors, before they are multiplied
  const char* x[(kRows + 2) / 3];  // of every third row: an address may add the stride once or twice
#pragma GCC unroll 4
  for (int i = 0; i < (kRows + 2) / 3; ++i) x[i] = inputs + 3 * i * pass.stride;
  int64_t at = first * sizeof(Words);
  for (int64_t i = 0; i < pass.inputs / (2 * S::kSteps); ++i, at += kRowBytes) {
    if (S::kSteps == 1 && first == 0 && i % (kUnit / 2) < pass.ahead_lines) {
      __builtin_prefetch(ahead);
      ahead += kLineBytes;
    }
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      const char* from = codes[p] + at;
#pragma GCC unroll 4
      for (int v = 0; v < kTogether; v += kDecoded) {
        Words pairs[kDecoded][S::kSteps];
        Floats of_these[kRows][kDecoded];
#pragma GCC unroll 4
        for (int i = 0; i < kDecoded; ++i) source.decode(load_as<Words>(from + (v + i) * sizeof(Words)), pairs[i]);
        copy_columns<kDecoded>(sums[p], v, of_these, 0);
#pragma GCC unroll 4
        for (int step = 0; step < S::kSteps; ++step)
          add_step<P>(of_these, [&](int i) { return pairs[i][step]; }, [&](int row) {
            return (const Input*)(x[row / 3] + row % 3 * pass.stride) + step * P::kInputs;
          });
        copy_columns<kDecoded>(of_these, 0, sums[p], v);
      }
      if (S::kSteps > 1)
#pragma GCC unroll 2
        for (int line = 0; line < kLines; ++line) __builtin_prefetch(from + kAhead + line * kLineBytes);
    }
#pragma GCC unroll 4
    for (int k = 0; k < (kRows + 2) / 3; ++k) x[k] += S::kSteps * P::kInputs * sizeof(Input);
  }
}

template <class P, class S, int kRows, int kPanels> void add_spans(const Pass& pass) {
  constexpr int kTogether = vectors_together(kRows * kPanels, kVectors);
  const S source(pass.table);
  const int64_t bytes = pass.inputs / (2 * S::kSteps) * kRowBytes;
  const char *inputs = (const char*)pass.x, *header[kPanels], *codes[kPanels], *ahead = pass.ahead;
#pragma GCC unroll 2
  for (int p = 0; p < kPanels; ++p) header[p] = pass.panels[p];
  for (int64_t span = 0; span < pass.spans; ++span, inputs += pass.inputs * sizeof(typename P::Input)) {
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) codes[p] = header[p] + pass.header;
#pragma GCC unroll 2
    for (int first = 0; first < kVectors; first += kTogether) {
      Floats sums[kPanels][kRows][kTogether] = {};
      add_span<P, S, kRows, kPanels, kTogether>(pass, source, codes, inputs, first, ahead, sums);
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p)
        add_to_totals<kRows, kTogether>(pass, span, header[p], sums[p], first, pass.totals + p * kRows * kPanel);
    }
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) header[p] = codes[p] + bytes;
  }
}

// Spans with their codes turned into pairs of bfloat16.
template <class S>
void decode(const void* table, const char* from, int64_t header, int64_t spans, int64_t inputs, char* to) {
  const S source(table);
  for (int64_t span = 0; span < spans; ++span) {
    std::memcpy(to, from, header);
    from += header;
    to += header;
    for (int64_t i = 0; i < inputs / (2 * S::kSteps); ++i, from += kRowBytes, to += S::kSteps * kRowBytes)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        Words pairs[S::kSteps];
        source.decode(load_as<Words>(from + v * sizeof(Words)), pairs);
#pragma GCC unroll 4
        for (int step = 0; step < S::kSteps; ++step)
          store_as(to + step * kRowBytes + v * sizeof(Words), pairs[step]);
      }
  }
}

template <class P, class S, int kPanels, int... kRows>
constexpr std::array<Kernel, sizeof...(kRows)> kernels(std::integer_sequence<int, kRows...>) {
  return {add_spans<P, S, kRows + 1, kPanels>...};
}
template <class P, class S>
constexpr auto kKernels = kernels<P, S, 1>(std::make_integer_sequence<int, kTileRows>());
template <class P, class S>
constexpr Decoding kDecoding = {kKernels<P, S>, kernels<P, S, 2>(std::make_integer_sequence<int, kRowsOfTwo>()),
                                decode<S>, S::kQuick};

}  // namespace

template <class P> const Decoding& decoding(int bits, const void* table) {
  if (bits == 4) return kDecoding<P, Nibbles>;
#if defined(__AVX512VNNI__)
  static const bool quick = permutes_bytes();
  if (quick) return SignedBytes::takes((const uint16_t*)table) ? kDecoding<P, SignedBytes> : kDecoding<P, QuickBytes>;
#endif
#if defined(__AVX2__) && !defined(__AVX512F__)
  if (SmallFloats::takes((const uint16_t*)table)) return kDecoding<P, SmallFloats>;
  if (SmallIntegers::takes((const uint16_t*)table)) return kDecoding<P, SmallIntegers>;
#endif
  return kDecoding<P, Bytes>;
}

template <class P> const Kernels& kernels_over_decoded() { return kKernels<P, Decoded>; }

template const Decoding& decoding<FloatProducts>(int bits, const void* table);
template const Kernels& kernels_over_decoded<FloatProducts>();
#if defined(__AVX512BF16__)
template const Decoding& decoding<PairProducts>(int bits, const void* table);
template const Kernels& kernels_over_decoded<PairProducts>();
#endif

}  // namespace coded
}  // namespace lsv
