// Rows of a table of embeddings, read out of the panels that the head multiplies with. Decoded weights are those of the
// reference to the bit: products and sums are rounded one by one, so this is compiled with -ffp-contract=off.
#include "lookup/lookup.h"

#include "gemm/coded.h"
#include "gemm/epilogue.h"
#include "gemm/formats.h"
#include "gemm/integer.h"

namespace lsv {
namespace {

constexpr int64_t kLine = 64;

// Decoded weights of consecutive inputs on their way to a row: some of them, then the next ones.
template <class T> class RowWriter {
 public:
  RowWriter(T* to, const int32_t* order) : to_(to), order_(order) {}

  // weights[count] * scale + offset for the inputs at..
  void put(const float* weights, int64_t at, int64_t count, float scale, const float* offset) {
    for_vectors((int)count, [&](int i, int n) {
      Floats values = load_up_to(weights + i, n) * scale;
      if (offset) values += *offset;
      if (!order_) return store_up_to(to_ + at + i, values, n);
      T ordered[kLanes] = {};
      store(ordered, values);
      for (int lane = 0; lane < n; ++lane) to_[order_[at + i + lane]] = ordered[lane];
    });
  }

 private:
  T* to_;
  const int32_t* order_;
};

template <class T> void look_up_int8(const Linear& linear, int64_t panel, int lane, T* to) {
  const char* from = (const char*)linear.panels + panel * panel_bytes(linear) + lane / 16 * kTileBytes + lane % 16 * 4;
  RowWriter<T> row(to, nullptr);
  for (int64_t at = 0; at < linear.inputs; at += integer::kBlockInputs, from += 2 * kTileBytes) {
    float weights[integer::kBlockInputs];
    for (int i = 0; i < integer::kBlockInputs; ++i) weights[i] = ((const int8_t*)from)[i / 4 * kLine + i % 4];
    row.put(weights, at, std::min<int64_t>(integer::kBlockInputs, linear.inputs - at), linear.scales[panel * kPanel + lane],
            nullptr);
  }
}

// A line of 4 bytes has the inputs of an int8 line in its low nibbles, and those of the line eight further in its high ones.
template <class T> void look_up_int4(const Linear& linear, int64_t panel, int lane, T* to) {
  constexpr int kHalf = integer::kBlockInputs / 2;  // a group has a multiple of as many inputs
  const char* from = (const char*)linear.panels + panel * panel_bytes(linear) + lane / 16 * kTileBytes / 2 + lane % 16 * 4;
  const float* scales = linear.scales + panel * integer::groups_of(linear) * kPanel + lane;
  RowWriter<T> row(to, nullptr);
  for (int64_t at = 0; at < linear.inputs; at += integer::kBlockInputs, from += kTileBytes) {
    float weights[2][kHalf];
    for (int i = 0; i < kHalf; ++i) {
      const uint8_t pair = from[i / 4 * kLine + i % 4];
      weights[0][i] = (pair & 15) - 8;
      weights[1][i] = (pair >> 4) - 8;
    }
    for (int half = 0; half < 2; ++half) {
      const int64_t begin = at + half * kHalf, count = std::min<int64_t>(kHalf, linear.inputs - begin);
      if (count > 0) row.put(weights[half], begin, count, scales[begin / linear.group * kPanel], nullptr);
    }
  }
}

// Four bytes of an output's codes, as gemm/coded.h says, become the values of `32 / bits` inputs.
void decode_word(const float* values, int bits, const char* from, int lane, float* to) {
  if (bits == 4) {
    const uint32_t word = load_as<uint32_t>(from + lane * 4);
    for (int i = 0; i < 4; ++i) {
      to[2 * i] = values[word >> 4 * i & 15];
      to[2 * i + 1] = values[word >> (16 + 4 * i) & 15];
    }
    return;
  }
  const uint8_t* codes = (const uint8_t*)from + lane / 4 * 16 + lane % 4 * 2;
  for (int i = 0; i < 4; ++i) to[i] = values[codes[i / 2 * 8 + i % 2]];
}

template <class T> void look_up_coded(const Linear& linear, const float* values, int64_t panel, int lane, T* to) {
  const coded::Cut cut(linear);
  const char* from = (const char*)linear.panels + panel * cut.panel_bytes();
  const int64_t step = 32 / linear.bits;
  RowWriter<T> row(to, linear.order);
  for (int64_t span = 0; span < cut.spans; ++span) {
    const int64_t inputs = span + 1 < cut.spans ? cut.inputs : cut.last;
    const Range range = cut.range(span, linear.inputs);
    const float* header = (const float*)from + lane;
    float weights[coded::kMostSpan];
    for (int64_t at = 0; at < inputs; at += step)
      decode_word(values, linear.bits, from + cut.header + at / step * coded::kRowBytes, lane, weights + at);
    row.put(weights, range.begin, range.end - range.begin, header[0], linear.offset ? header + kPanel : nullptr);
    from += cut.bytes(inputs);
  }
}

}  // namespace

void look_up(Member& me, const Linear& linear, const int64_t* ids, int64_t count, void* out) {
  if (linear.format == kPlain) return plain::unpack_rows(me, linear, ids, count, {out, linear.inputs});
  float values[256] = {};
  if (linear.format == kCoded)
    for (int code = 0; code < 1 << linear.bits; ++code) values[code] = to_float(((const BFloat16*)linear.table)[code]);
  with_type(linear.dtype, [&](auto type) {
    using T = decltype(type);
    const Range mine = me.share(count);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      const int64_t panel = ids[i] / kPanel;
      const int lane = (int)(ids[i] % kPanel);
      T* to = (T*)out + i * linear.inputs;
      if (linear.format == kInt8) look_up_int8(linear, panel, lane, to);
      else if (linear.format == kInt4) look_up_int4(linear, panel, lane, to);
      else look_up_coded(linear, values, panel, lane, to);
    }
  });
}

}  // namespace lsv

using namespace lsv;

extern "C" {

// The weights of `count` outputs -> out [count][inputs], dense. Of a layer without a gate.
void lsv_look_up(const Linear* linear, const int64_t* ids, int64_t count, void* out) {
  run_if_worth(count * linear->inputs / 2, [&](Member& me) { look_up(me, *linear, ids, count, out); });
}

}
