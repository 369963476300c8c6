// Linear layers whose weights are codes into a table: packing, laying rows, and walking over panels and blocks of rows.
//
// One block of rows reads the codes as a stream and decodes them in registers. Several take a piece of a panel in turn,
// from the cache: its codes, or where these take time to decode the weights that they mean.
#include "gemm/coded.h"

#include <cmath>

#include "gemm/e4m3.h"
#include "gemm/epilogue.h"
#include "gemm/formats.h"
#include "norm.h"

namespace lsv {
namespace coded {
namespace {

constexpr int64_t kLineBytes = 64;
constexpr int64_t kPieceOfCodes = 1024;     // inputs of a panel
constexpr int64_t kMostBlocks = 12;         // row blocks of a group
constexpr int64_t kGroupBytes = 768 << 10;  // of the operand, for a group of row blocks

// The rows cut into blocks whose heights differ by one at most.
struct Blocks {
  explicit Blocks(int64_t rows) : rows(rows), count((rows + kTileRows - 1) / kTileRows) {}
  int64_t begin(int64_t block) const { return rows * block / count; }
  const int64_t rows, count;
};

template <class T> class Product {
 public:
  Product(const Linear& linear, const void* data, int64_t rows, Rows out, Rows residual)
      : operand_(linear, rows, (void*)data), cut_(operand_.cut), rows_(rows), panels_(panels_of(linear)),
        bytes_(cut_.panel_bytes()), codes_((const char*)linear.panels), table_(linear.table),
        offset_(linear.offset), decoding_(decoding<P>(linear.bits, linear.table)), epilogue_(linear, out, residual) {}

  void share(Member& me) const {
    if (!rows_.count) return;
    if (rows_.rows <= kRowsOfTwo) return stream(me.share(panels_));
    int64_t held = kTileRows * operand_.stride * (int64_t)sizeof(Input);
    int64_t height = std::clamp<int64_t>(kGroupBytes / held, 1, kMostBlocks);
    int64_t groups = (rows_.count + height - 1) / height;
    if (groups == 1) return multiply(0, rows_.count, me.share(panels_));
    int64_t pieces = std::min((16 * me.size + groups - 1) / groups, panels_);
    for (int64_t item; (item = me.claim()) < groups * pieces;) {
      int64_t group = item / pieces, piece = item % pieces;
      multiply(rows_.count * group / groups, rows_.count * (group + 1) / groups,
               {panels_ * piece / pieces, panels_ * (piece + 1) / pieces});
    }
  }

 private:
  using P = Products<T>;
  using Input = typename P::Input;

  const char* panel(int64_t number) const { return codes_ + number * bytes_; }

  Pass pass_of(int64_t row, int64_t span, int64_t spans, int64_t inputs, float* totals) const {
    Pass pass = {};
    pass.table = table_;
    pass.x = operand_.x + row * operand_.stride + span * cut_.inputs;
    pass.stride = operand_.stride * sizeof(Input);
    pass.sums = offset_ ? operand_.sums + row * cut_.spans + span : nullptr;
    pass.sums_stride = cut_.spans;
    pass.header = cut_.header;
    pass.spans = spans;
    pass.inputs = inputs;
    pass.totals = totals;
    return pass;
  }

  // The rows, which are few, with two panels at a time.
  void stream(Range panels) const {
    int64_t half = (panels.end - panels.begin) / 2, middle = panels.begin + half;
    for (int64_t i = 0; i < half; ++i) stream_panels(panels.begin + i, half);
    if (middle + half < panels.end) stream_panels(middle + half, 0);
  }

  // One panel, or also that `apart` panels on.
  void stream_panels(int64_t first, int64_t apart) const {
    alignas(64) float totals[2 * kRowsOfTwo * kPanel] = {};
    const int64_t rows = rows_.rows;
    for_spans(cut_, cut_.spans, [&](int64_t span, int64_t spans, int64_t inputs) {
      Pass pass = pass_of(0, span, spans, inputs, totals);
      pass.panels[0] = panel(first) + span * cut_.bytes(cut_.inputs);
      pass.panels[1] = pass.panels[0] + apart * bytes_;
      (apart ? decoding_.two[rows - 1] : decoding_.one[rows - 1])(pass);
    });
    finish(0, rows, first, totals);
    if (apart) finish(0, rows, first + apart, totals + rows * kPanel);
  }

  // Row blocks begin..end times panels, piece by piece.
  void multiply(int64_t begin, int64_t end, Range panels) const {
    alignas(64) float totals[kMostBlocks * kTileRows * kPanel];
    const int64_t height = rows_.begin(end) - rows_.begin(begin);
    const bool share = end - begin > 1 && !decoding_.quick;
    const int64_t most = end - begin == 1 ? cut_.spans
                                          : std::max<int64_t>((share ? kMostSpan : kPieceOfCodes) / cut_.inputs, 1);
    for (int64_t number = panels.begin; number < panels.end; ++number) {
      std::memset(totals, 0, height * kPanel * sizeof(float));
      for_spans(cut_, most, [&](int64_t span, int64_t spans, int64_t inputs) {
        const char* from = panel(number) + span * cut_.bytes(cut_.inputs);
        if (share) multiply_decoded(begin, end, from, span, spans, inputs, totals);
        else multiply_codes(begin, end, from, span, spans, inputs, totals);
      });
      finish(rows_.begin(begin), height, number, totals);
    }
  }

  void multiply_codes(int64_t begin, int64_t end, const char* from, int64_t span, int64_t spans, int64_t inputs,
                      float* totals) const {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t row = rows_.begin(block), height = rows_.begin(block + 1) - row;
      Pass pass = pass_of(row, span, spans, inputs, totals);
      pass.panels[0] = from;
      decoding_.one[height - 1](pass);
      totals += height * kPanel;
    }
  }

  // Meanwhile the next piece is fetched, some of it by each block.
  void multiply_decoded(int64_t begin, int64_t end, const char* from, int64_t span, int64_t spans, int64_t inputs,
                        float* totals) const {
    alignas(64) char decoded[kMostDecoded];
    decoding_.decode(table_, from, cut_.header, spans, inputs, decoded);
    const int64_t units = spans * inputs / kUnit, bytes = spans * cut_.bytes(inputs), passes = end - begin;
    const int64_t lines = (bytes / kLineBytes + units * passes - 1) / (units * passes);
    for (int64_t block = begin; block < end; ++block) {
      const int64_t row = rows_.begin(block), height = rows_.begin(block + 1) - row;
      Pass pass = pass_of(row, span, spans, inputs, totals);
      pass.panels[0] = decoded;
      pass.ahead = from + bytes + (block - begin) * units * lines * kLineBytes;
      pass.ahead_lines = lines;
      kernels_over_decoded<P>()[height - 1](pass);
      totals += height * kPanel;
    }
  }

  __attribute__((noinline)) void finish(int64_t row, int64_t height, int64_t panel, const float* totals) const {
    for (int64_t i = 0; i < height; ++i, totals += kPanel) {
      Floats vectors[kVectors];
      for (int v = 0; v < kVectors; ++v) vectors[v] = load(totals + v * kLanes);
      epilogue_.store_row(row + i, panel, vectors);
    }
  }

  const Operand<T> operand_;
  const Cut& cut_;
  const Blocks rows_;
  const int64_t panels_, bytes_;  // their number, and the bytes of one
  const char* codes_;
  const void* table_;
  const bool offset_;
  const Decoding& decoding_;
  Epilogue<T> epilogue_;
};

// Copies `count` elements of a row, those of `order` if there is one.
template <class T> void take(const T* x, const int32_t* order, int64_t at, int count, T* to) {
  if (!order) std::memcpy(to, x + at, count * sizeof(T));
  else
    for (int i = 0; i < count; ++i) to[i] = x[order[at + i]];
}

// Writes one row of the operand, normed, rounded and padded.
template <class T>
void lay_row(const Linear& linear, const Norm* norm, const Operand<T>& operand, int64_t row, const T* x) {
  using Input = typename Operand<T>::Input;
  const Cut& cut = operand.cut;
  const int32_t* order = linear.order;
  const float scale = norm ? inverse_rms(x, norm->eps, (int)linear.inputs) : 1;
  Input* to = operand.x + row * operand.stride;
  for (int64_t span = 0; span < cut.spans; ++span) {
    const Range range = cut.range(span, linear.inputs);
    Floats sums = {};
    for_vectors((int)(span + 1 < cut.spans ? cut.inputs : cut.last), [&](int at, int) {
      T part[kLanes] = {}, weights[kLanes];
      const int count = (int)std::clamp<int64_t>(range.end - range.begin - at, 0, kLanes);
      take(x, order, range.begin + at, count, part);
      if (norm) {
        take((const T*)norm->weight, order, range.begin + at, count, weights);
        rescale(part, weights, scale, count, part);
      }
      Floats values = load(part);
      if (linear.input_scale) {
        values = rounded_to_e4m3(values / *linear.input_scale);
        store(part, values);
      }
      sums += values;
      if constexpr (std::is_same_v<T, Input>) std::memcpy(to + at, part, sizeof part);
      else store(to + at, values);
    });
    if (linear.offset) operand.sums[row * cut.spans + span] = sum(sums);
    to += cut.inputs;
  }
}

// Four bytes of codes of one output: the even inputs' nibbles -> the low half, the odd ones' -> the high half.
uint32_t part_nibbles(uint32_t codes) {
  auto gather = [](uint32_t even) {
    even &= 0x0f0f0f0f;
    even = (even | even >> 4) & 0x00ff00ff;
    return (even | even >> 8) & 0xffff;
  };
  return gather(codes) | gather(codes >> 4) << 16;
}

// One output's codes of a span, read at any input.
class CodesReader {
 public:
  // `padding`: a code of a finite value, for what lies past the end.
  CodesReader(const uint8_t* codes, int bits, Range range, uint32_t padding)
      : codes_(codes), bits_(bits), range_(range), padding_(padding) {}

  // The codes of inputs at..: four bytes.
  uint32_t word(int64_t at) const {
    const int64_t most = 32 / bits_, left = std::clamp<int64_t>(range_.end - range_.begin - at, 0, most);
    if (left == 0) return padding_;
    const int64_t bit = (range_.begin + at) * bits_;
    if (left == most && bit % 8 == 0) return load_as<uint32_t>(codes_ + bit / 8);
    uint32_t word = padding_;
    for (int64_t i = 0; i < left; ++i) {
      const int64_t place = bit + i * bits_;
      const uint32_t mask = ((1u << bits_) - 1) << i * bits_;
      word = (word & ~mask) | ((uint32_t)codes_[place / 8] >> place % 8 << i * bits_ & mask);
    }
    return word;
  }

 private:
  const uint8_t* codes_;
  int bits_;
  Range range_;
  uint32_t padding_;
};

// A word of codes in every byte or nibble of which is a code of a finite value: times a padded input it gives zero.
uint32_t padding_of(const Linear& linear) {
  uint32_t code = 0;
  const uint32_t codes = 1u << linear.bits;
  while (code + 1 < codes && (((const uint16_t*)linear.table)[code] & 0x7f80) == 0x7f80) ++code;
  return code * (linear.bits == 4 ? 0x11111111u : 0x01010101u);
}

// Lane `lane` of a span: a column of its header, and of its rows.
void pack_lane(const Linear& linear, const CodesReader& codes, int64_t inputs, int lane, char* rows) {
  const int64_t step = 32 / linear.bits;
  if (linear.bits == 4) {
    for (int64_t at = 0; at < inputs; at += step, rows += kRowBytes)
      store_as(rows + lane * 4, part_nibbles(codes.word(at)));
    return;
  }
  char* to = rows + lane / 4 * 16 + lane % 4 * 2;
  for (int64_t at = 0; at < inputs; at += step, to += kRowBytes) {
    const uint32_t word = codes.word(at);
    store_as(to, (uint16_t)word);
    store_as(to + 8, (uint16_t)(word >> 16));
  }
}

void pack_panel(const Linear& linear, const Cut& cut, int64_t panel, const uint8_t* codes, const float* scales) {
  const int64_t row_bytes = (linear.inputs * linear.bits + 7) / 8, groups = (linear.inputs + cut.group - 1) / cut.group;
  const float* offsets = linear.offset ? scales + linear.outputs * groups : nullptr;
  const uint32_t padding = padding_of(linear);
  char* to = (char*)linear.panels + panel * cut.panel_bytes();
  for (int64_t span = 0; span < cut.spans; ++span) {
    const Range range = cut.range(span, linear.inputs);
    const int64_t inputs = span + 1 < cut.spans ? cut.inputs : cut.last, group = span / cut.spans_of_group;
    for (int lane = 0; lane < kPanel; ++lane) {
      const int64_t output = output_in(linear, panel, lane);
      float* header = (float*)to + lane;
      header[0] = output < 0 ? 0 : scales[output * groups + group];
      if (offsets) header[kPanel] = output < 0 ? 0 : offsets[output * groups + group];
      const Range held = output < 0 ? Range{0, 0} : range;
      pack_lane(linear, {codes + std::max<int64_t>(output, 0) * row_bytes, linear.bits, held, padding}, inputs, lane,
                to + cut.header);
    }
    to += cut.bytes(inputs);
  }
}

}  // namespace

int64_t inputs_padded(const Linear& linear) { return Cut(linear).operand_inputs(); }
int64_t panel_bytes(const Linear& linear) { return Cut(linear).panel_bytes(); }

void pack(Member& me, const Linear& linear, const void* weights, const float* scales) {
  const Cut cut(linear);
  const Range mine = me.share(panels_of(linear));
  for (int64_t panel = mine.begin; panel < mine.end; ++panel)
    pack_panel(linear, cut, panel, (const uint8_t*)weights, scales);
}

int64_t operand_bytes(const Linear& linear, int64_t rows, int) {
  int64_t bytes = 0;
  with_type(linear.dtype, [&](auto type) { bytes = Operand<decltype(type)>(linear, rows, nullptr).bytes; });
  return bytes;
}

void make_operand(Member& me, const Linear& linear, const Norm* norm, Rows x, int64_t rows, void* data) {
  with_type(linear.dtype, [&](auto type) {
    using T = decltype(type);
    const Operand<T> operand(linear, rows, data);
    const Range mine = me.share(rows);
    for (int64_t row = mine.begin; row < mine.end; ++row)
      lay_row<T>(linear, norm, operand, row, (const T*)x.data + row * x.stride);
  });
}

void multiply(Member& me, const Linear& linear, const void* operand, int64_t rows, Rows out, Rows residual) {
#if defined(LSV_AMX)
  if (linear.dtype == kBFloat16) return multiply_on_tiles(me, linear, operand, rows, out, residual);
#endif
  with_type(linear.dtype, [&](auto type) { Product<decltype(type)>(linear, operand, rows, out, residual).share(me); });
}

}  // namespace coded
}  // namespace lsv
