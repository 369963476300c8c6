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

// A span's sums of one panel, scaled, and what its offsets make of the sums of its inputs.
template <int kRows>
inline void add_to_totals(const Pass& pass, int64_t span, const char* header, const Floats (&sums)[kRows][kVectors],
                          float* totals) {
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v, totals += kLanes) {
    const Floats scales = load((const float*)header + v * kLanes);
#pragma GCC unroll 12
    for (int row = 0; row < kRows; ++row)
      store(totals + row * kPanel, multiply_add(sums[row][v], scales, load(totals + row * kPanel)));
    if (!pass.sums) continue;
    const Floats offsets = load((const float*)(header + kRowBytes) + v * kLanes);
#pragma GCC unroll 12
    for (int row = 0; row < kRows; ++row) {
      const Floats sum = broadcast(pass.sums[row * pass.sums_stride + span]);
      store(totals + row * kPanel, multiply_add(sum, offsets, load(totals + row * kPanel)));
    }
  }
}

template <class P, class S, int kRows, int kPanels> void add_spans(const Pass& pass) {
  using Input = typename P::Input;
  const S source(pass.table);
  const char* x[(kRows + 2) / 3];  // of every third row: an address may add the stride once or twice
#pragma GCC unroll 4
  for (int i = 0; i < (kRows + 2) / 3; ++i) x[i] = (const char*)pass.x + 3 * i * pass.stride;
  const char *codes[kPanels], *ahead = pass.ahead;
#pragma GCC unroll 2
  for (int p = 0; p < kPanels; ++p) codes[p] = pass.panels[p];

  for (int64_t span = 0; span < pass.spans; ++span) {
    const char* header[kPanels];
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      header[p] = codes[p];
      codes[p] += pass.header;
    }
    Floats sums[kPanels][kRows][kVectors] = {};
    for (int64_t i = 0; i < pass.inputs / (2 * S::kSteps); ++i) {
      if (S::kSteps == 1 && i % (kUnit / 2) < pass.ahead_lines) {
        __builtin_prefetch(ahead);
        ahead += kLineBytes;
      }
      Words pairs[kPanels][kVectors][S::kSteps];
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) source.decode(load_as<Words>(codes[p] + v * sizeof(Words)), pairs[p][v]);
        if (S::kSteps > 1) {
          __builtin_prefetch(codes[p] + kAhead);
          __builtin_prefetch(codes[p] + kAhead + kLineBytes);
        }
        codes[p] += kRowBytes;
      }
#pragma GCC unroll 4
      for (int step = 0; step < S::kSteps; ++step) {
        typename P::Weights weights[kPanels][kVectors];
#pragma GCC unroll 2
        for (int p = 0; p < kPanels; ++p)
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) weights[p][v] = P::weights(pairs[p][v][step]);
#pragma GCC unroll 12
        for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 2
          for (int p = 0; p < kPanels; ++p)
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v)
              sums[p][row][v] = P::add(sums[p][row][v], weights[p][v],
                                       (const Input*)(x[row / 3] + row % 3 * pass.stride) + step * P::kInputs);
      }
#pragma GCC unroll 4
      for (int k = 0; k < (kRows + 2) / 3; ++k) x[k] += S::kSteps * P::kInputs * sizeof(Input);
    }
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p)
      add_to_totals<kRows>(pass, span, header[p], sums[p], pass.totals + p * kRows * kPanel);
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
  static const bool quick = __builtin_cpu_supports("avx512vbmi");
  if (quick) return SignedBytes::takes((const uint16_t*)table) ? kDecoding<P, SignedBytes> : kDecoding<P, QuickBytes>;
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
