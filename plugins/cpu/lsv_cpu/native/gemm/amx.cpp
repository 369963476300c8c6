// Linear layers with tile instructions: the rows' form, and how panels, rows and inputs are cut for the caches.
#if defined(LSV_AMX)

#include "gemm/amx.h"

#include "gemm/epilogue.h"
#include "gemm/formats.h"
#include "norm.h"
#include "quantise.h"

namespace lsv {
namespace amx {
namespace {

constexpr int64_t kLeastRows = 8;            // below, vector instructions are as fast for whole numbers
constexpr int64_t kWholePass = 10;           // tiles of inputs that one pass takes
constexpr int64_t kPassTiles = 14;           // and one of several: the panel stays in the first-level cache
constexpr int64_t kRowsKept = 640 << 10;     // bytes of rows that stay in the second-level cache beside the weights
constexpr int64_t kLeastBlock = 256, kMostBlock = 512;  // rows
constexpr int64_t kRowsToSplit = 256;        // rows of a member that make splitting rows better than splitting panels
constexpr int64_t kPanelsCut = 64;           // panels whose sums are kept where the inputs are cut
constexpr int64_t kOutputCached = 8 << 20;   // bytes of output; above, it is written past the caches

// How the rows and inputs of a product are cut for the second-level cache.
struct Cut {
  Cut(const Linear& linear, int64_t rows) : tiles(inputs_padded(linear) / line_inputs(linear)) {
    const int64_t line = tiles * kLine, most = std::clamp(kRowsKept / line, kLeastBlock, kMostBlock);
    block_rows = std::min(most / kPair * kPair, up(rows, kPair));
    const int64_t bytes = block_rows * line;
    input_parts = bytes <= kRowsKept ? 1 : (bytes + kRowsKept - 1) / kRowsKept;
    slots = input_parts > 1 ? kPanelsCut : 2;
  }

  int64_t tiles;        // of the inputs
  int64_t block_rows;   // at most
  int64_t input_parts;
  int64_t slots;        // panels whose sums have a place of their own
};

// Whether two panels at a time stream past few rows. Passes alone scale the sums of groups.
bool streams(const Linear& linear, int64_t rows) { return rows <= kBlock && !linear.group; }

// Rows as tiles, block of 16 rows by block, inside a block tile by tile; the lines of rows that are not there are left
// as they are. Then a scale for each row (of each group), and working memory for each member. Where inputs are cut,
// blocks are an odd multiple of 8 KiB apart, or their parts would share some sets of the cache.
struct Operand {
  Operand(const Linear& linear, int64_t rows, void* data)
      : cut(linear, rows), groups(linear.format == kPlain ? 0 : groups_of(linear)),
        block_bytes((cut.input_parts > 1 ? up(cut.tiles + 8, 16) - 8 : cut.tiles) * kTileBytes), tiles((char*)data),
        scales((float*)(tiles + up(rows, kBlock) / kBlock * block_bytes)),
        spare((char*)scales + up(up(rows, kBlock) * groups * 4, kLine)) {
    int64_t sums = streams(linear, rows) ? 4 * kBlock : cut.slots * cut.block_rows;
    const int64_t normed = kBlock * inputs_padded(linear) * (linear.dtype == kFloat32 ? 4 : 2);
    spare_bytes = std::max(sums * kSumsStride, normed);
  }

  int64_t bytes(int members) const { return spare + spare_bytes * members - tiles; }
  char* block(int64_t row) const { return tiles + row / kBlock * block_bytes; }
  char* line(int64_t row) const { return block(row) + row % kBlock * kLine; }
  float* scales_of(int64_t row) const { return scales + row / kBlock * groups * kBlock; }
  char* spare_of(const Member& me) const { return me.spare ? me.spare : spare + me.rank * spare_bytes; }

  Cut cut;
  int64_t groups, block_bytes;
  char* tiles;
  float* scales;  // [blocks of 16 rows][groups][16]
  char* spare;    // a normed block of rows, or sums
  int64_t spare_bytes;
};

// Rows of one block. Their lines are written tile by tile; whole ones have a loop of known length.
template <class T>
void place_rows(const Operand& operand, int64_t row, int rows, const T* x, int64_t stride, int64_t inputs) {
  constexpr int64_t kInputs = kLine / sizeof(T);
  for (int64_t tile = 0; tile < operand.cut.tiles; ++tile) {
    const int64_t at = tile * kInputs, count = std::clamp<int64_t>(inputs - at, 0, kInputs);
    char* to = operand.line(row) + tile * kTileBytes;
    for (int i = 0; i < rows; ++i, to += kLine) {
      if (count == kInputs) {
        std::memcpy(to, x + i * stride + at, kLine);
        continue;
      }
      std::memcpy(to, x + i * stride + at, count * sizeof(T));
      std::memset(to + count * sizeof(T), 0, (kInputs - count) * sizeof(T));
    }
  }
}

// The codes of columns that share a scale: of those that are inputs, and zeros.
template <class T>
void place_codes(const Operand& operand, int64_t row, int rows, const T* x, int64_t stride, Range columns,
                 int64_t inputs, const float* inverse) {
  for (int64_t at = columns.begin; at < columns.end;) {
    const int64_t next = std::min(at / kLine * kLine + kLine, columns.end);
    const int64_t count = std::clamp<int64_t>(inputs - at, 0, next - at);
    int8_t* to = (int8_t*)operand.line(row) + at / kLine * kTileBytes + at % kLine;
    for (int i = 0; i < rows; ++i, to += kLine) {
      if (count == kLine) quantise(x + i * stride + at, kLine, inverse[i], 0, to);
      else quantise(x + i * stride + at, (int)count, inverse[i], 0, to);
      if (count < next - at) std::memset(to + count, 0, next - at - count);
    }
    at = next;
  }
}

// Rows of one block, which are the lanes. Codes and scales are those of the vector kernels, but that int4 has its scales
// for 16 times the weights.
template <class T>
void quantise_rows(const Linear& linear, const Operand& operand, int64_t row, int rows, const T* x, int64_t stride) {
  static_assert(kBlock == kLanes, "a row of a block has a lane");
  const int64_t padded = inputs_padded(linear), size = linear.group ? linear.group : padded;
  const float unit = linear.format == kInt4 ? 1.0f / 16 : 1.0f;
  float* scales = operand.scales_of(row) + row % kBlock;
  for (int64_t begin = 0; begin < padded; begin += size, scales += kBlock) {
    const Range columns = {begin, std::min(begin + size, padded)};
    const int count = (int)std::clamp<int64_t>(linear.inputs - begin, 0, columns.end - begin);
    float largest[kLanes] = {}, inverse[kLanes];
    for (int i = 0; i < rows; ++i) largest[i] = largest_of(x + i * stride + begin, count);
    const Scales found = scales_of(load(largest));
    store(inverse, found.inverse);
    const Floats scale = found.scale * unit;
    std::memcpy(scales, &scale, rows * sizeof(float));
    place_codes(operand, row, rows, x, stride, columns, linear.inputs, inverse);
  }
}

struct Output {
  const Linear& linear;
  Rows out, residual;
  bool past_cache;
  const Operand* fed;  // the next layer's operand, which is written instead of `out`; or null
};

// Sums of some rows that are complete, [rows][kPanel]. They are stored after the next pass has been started, since
// reading what tiles have just written waits for it.
struct Finished {
  int64_t row, panel;
  int rows;
  const float* sums;
  const float* row_scales;  // int8 without groups: [rows]
  const float* next_sums;   // of the panel after it, where it makes a pair with this one; or null
};

// What sums are: floats; whole numbers that lack all scales; floats of groups that lack the outputs' scales.
enum Kind { kReady, kWhole, kGroups };

Kind kind_of(const Linear& linear) { return linear.format != kInt8 ? kReady : linear.group ? kGroups : kWhole; }

// The compiler must not fuse the product that gives this with a sum that takes it.
inline void keep_rounded(Floats& product) {
#if defined(LSV_EMULATE_AVX512)
  asm("" : "+m"(product));
#else
  asm("" : "+v"(product));
#endif
}

// Sums as the numbers they stand for, rounded by themselves, as by the vector kernels.
template <Kind kKind> Floats scaled(const float* sums, float row_scale, const float* scales, int64_t at) {
  if constexpr (kKind == kReady) return load(sums);
  Floats value = load(scales + at);
  if constexpr (kKind == kWhole) value = __builtin_convertvector(load_as<Ints>(sums), Floats) * row_scale * value;
  else value = load(sums) * value;
  keep_rounded(value);
  return value;
}

// Scale, bias, gate and residual in one pass over the sums. Of a pair of gated panels each row gets a whole line.
template <class T, Kind kKind> void store_sums(const Output& to, const Finished& f) {
  constexpr int kVectors = kPanel / kLanes;
  const Epilogue<T> epilogue(to.linear, to.out, to.residual);
  for (int i = 0; i < f.rows; ++i) {
    const float row_scale = kKind == kWhole ? f.row_scales[i] : 1.0f;
    auto store_panel = [&](int64_t panel, const float* sums) {
      Floats values[kVectors];
      for (int v = 0; v < kVectors; ++v)
        values[v] = scaled<kKind>(sums + v * kLanes, row_scale, to.linear.scales, panel * kPanel + v * kLanes);
      epilogue.store_row(f.row + i, panel, values);
    };
    store_panel(f.panel, f.sums + i * kPanel);
    if (f.next_sums) store_panel(f.panel + 1, f.next_sums + i * kPanel);
  }
}

// The same for whole panels without a gate, in whole lines past the caches.
template <class T, Kind kKind> void stream_sums(const Output& to, const Finished& f) {
  const int64_t first = f.panel * kPanel;
  const T *bias = (const T*)to.linear.bias, *residual = (const T*)to.residual.data;
  const float* sums = f.sums;
  for (int i = 0; i < f.rows; ++i, sums += kPanel) {
    const float row_scale = kKind == kWhole ? f.row_scales[i] : 1.0f;
    alignas(kLine) T line[kPanel];
    for (int at = 0; at < kPanel; at += kLanes) {
      Floats value = scaled<kKind>(sums + at, row_scale, to.linear.scales, first + at);
      value += bias ? load(bias + first + at) : Floats{};
      if (residual) value += load(residual + (f.row + i) * to.residual.stride + first + at);
      store(line + at, value);
    }
    char* out = (char*)((T*)to.out.data + (f.row + i) * to.out.stride + first);
    for (size_t at = 0; at < sizeof line; at += kLine)
      _mm512_stream_si512((__m512i*)(out + at), _mm512_load_si512((char*)line + at));
  }
}

// The 32 features of such a pair are a line of the next product's operand for each row. Whole tiles are written.
void feed_sums(const Output& to, const Finished& f) {
  const Epilogue<BFloat16> epilogue(to.linear, {}, {});
  for (int i = 0; i < f.rows; ++i) {
    BFloat16* line = (BFloat16*)(to.fed->line(f.row + i) + f.panel / 2 * kTileBytes);
    for (int half = 0; half < 2; ++half) {
      const float* sums = half ? f.next_sums : f.sums;
      Floats gated = {};
      if (sums) {
        const Floats values[] = {load(sums + i * kPanel), load(sums + i * kPanel + kLanes)};
        epilogue.gate_row(f.row + i, f.panel + half, values, &gated);
      }
      store(line + half * kLanes, gated);
    }
  }
}

using Store = void (*)(const Output&, const Finished&);

template <class T> struct Stores {
  static constexpr Store kStore[] = {store_sums<T, kReady>, store_sums<T, kWhole>, store_sums<T, kGroups>};
  static constexpr Store kStream[] = {stream_sums<T, kReady>, stream_sums<T, kWhole>, stream_sums<T, kGroups>};
};

bool whole_lines(const Output& to, int64_t panel) {
  const int64_t size = to.linear.dtype == kFloat32 ? 4 : 2;
  return (panel + 1) * kPanel <= to.linear.outputs && ((intptr_t)to.out.data | to.out.stride * size) % kLine == 0;
}

// Whether gated panels are finished in pairs. Their sums wait for each other, those of all rows but the last in order:
// more than one pair of rows.
bool pairs_panels(const Linear& linear, int64_t rows) { return linear.gate && rows > kPair; }

// Members split the panels, and the rows too where there are many.
int64_t row_parts_of(int64_t rows, int64_t members) {
  int64_t parts = 1;
  for (int64_t more = 2; more <= members && more * kRowsToSplit <= rows; ++more)
    if (members % more == 0) parts = more;
  return parts;
}

// One member's part of a product.
class Walk {
 public:
  Walk(Member& me, const Linear& linear, const Operand& operand, int64_t rows, const Output& output)
      : linear_(linear), operand_(operand), cut_(operand.cut), output_(output), bytes_(panel_bytes(linear)),
        tile_bytes_(bytes_ / cut_.tiles), sums_((float*)operand.spare_of(me)), rows_total_(rows),
        paired_(pairs_panels(linear, rows)) {
    const int64_t row_parts = row_parts_of(rows, me.size), panel_parts = me.size / row_parts;
    rows_ = part_of(rows, row_parts, me.rank / panel_parts, kPair);
    panels_ = part_of(panels_of(linear), panel_parts, me.rank % panel_parts, paired_ ? 2 : 1);
    with_type(linear.dtype, [&](auto type) {
      store_ = Stores<decltype(type)>::kStore[kind_of(linear)];
      stream_ = Stores<decltype(type)>::kStream[kind_of(linear)];
    });
    if (output.fed) store_ = feed_sums;
  }

  void run() {
    if (streams(linear_, rows_total_)) run_streams();
    else run_blocks();
    if (output_.past_cache) _mm_sfence();
  }

 private:
  void run_streams() {
    const int64_t half = (panels_.end - panels_.begin + 1) / 2;
    shapes_.set_pair((int)rows_total_, kLine);
    for (int64_t i = 0; i < half; ++i) {
      const int64_t pair[2] = {panels_.begin + i, panels_.begin + half + i};
      float* sums = sums_ + i % 2 * 2 * kBlock * kPanel;
      float* const places[2] = {sums, sums + kBlock * kPanel};
      const bool two = pair[1] < panels_.end;
      if (two) {
        const char* const weights[2] = {panel(pair[0]), panel(pair[1])};
        (linear_.format == kInt8 ? stream_int8 : stream_bf16)(operand_.tiles, weights, cut_.tiles, places);
      } else {
        const Pass pass = {{operand_.tiles, nullptr}, panel(pair[0]), cut_.tiles, true, places[0], nullptr, 0};
        (linear_.format == kInt8 ? pass_int8 : pass_bf16)(pass, true);
      }
      store_finished();
      for (int k = 0; k < 1 + two; ++k) finish(0, (int)rows_total_, pair[k], places[k]);
    }
    store_finished();
  }

  void run_blocks() {
    const int64_t wide = cut_.input_parts > 1 ? cut_.slots : std::max<int64_t>(1, panels_.end - panels_.begin);
    const int64_t rows = rows_.end - rows_.begin, blocks = (rows + cut_.block_rows - 1) / cut_.block_rows;
    for (int64_t i = 0; i < blocks; ++i) {
      const Range block = part_of(rows, blocks, i, kPair);
      for (int64_t first = panels_.begin; first < panels_.end; first += wide)
        run_block({rows_.begin + block.begin, rows_.begin + block.end}, {first, std::min(first + wide, panels_.end)});
    }
  }

  void run_block(Range rows, Range panels) {
    for (int64_t part = 0; part < cut_.input_parts; ++part) {
      const Range inputs = part_of(cut_.tiles, cut_.input_parts, part, input_unit());
      for (int64_t p = panels.begin; p < panels.end; ++p) run_panel(rows, p, inputs);
    }
    store_finished();
  }

  // `inputs` in tiles.
  void run_panel(Range rows, int64_t p, Range inputs) {
    const bool single = rows.end - rows.begin <= kPair;
    const int64_t count = inputs.end - inputs.begin;
    const int64_t passes = passes_of(count, single);
    for (int64_t i = 0; i < passes; ++i) {
      Range pass = part_of(count, passes, i, input_unit());
      pass = {pass.begin + inputs.begin, pass.end + inputs.begin};
      const char* next = i + 1 < passes ? panel(p) + pass.end * tile_bytes_ : panel(p + 1) + inputs.begin * tile_bytes_;
      for (int64_t row = rows.begin; row < rows.end; row += kPair) run_pass(rows, row, p, pass, next);
    }
  }

  // What `count` tiles of inputs are cut into; a `single` pair of rows reads the panel once.
  int64_t passes_of(int64_t count, bool single) const {
    if (linear_.format == kInt4) return (count + kInt4PassTiles - 1) / kInt4PassTiles;
    if (single || count <= std::max(kWholePass, input_unit())) return 1;
    const int64_t most = std::max(kPassTiles, input_unit());
    return std::max<int64_t>(2, (count + most - 1) / most);
  }

  // Two blocks of rows with some inputs of a panel; each of them fetches its share of the `next` weights.
  void run_pass(Range rows, int64_t row, int64_t p, Range inputs, const char* next) {
    const int count = (int)std::min<int64_t>(kPair, rows.end - row);
    const bool two = count > kBlock;
    shapes_.set_pair(count, linear_.group == 32 ? 32 : kLine);
    const int64_t tiles = inputs.end - inputs.begin, pairs = (rows.end - rows.begin + kPair - 1) / kPair;
    const int lines = (int)((tile_bytes_ / kLine + pairs - 1) / pairs);
    float* sums = sums_ + (p % cut_.slots * cut_.block_rows + row - rows.begin) * kPanel;
    const char* tiles0 = operand_.block(row) + inputs.begin * kTileBytes;
    const Pass pass = {{tiles0, two ? tiles0 + operand_.block_bytes : nullptr},
                       panel(p) + inputs.begin * tile_bytes_, tiles, inputs.begin == 0, sums,
                       next + (row - rows.begin) / kPair * tiles * lines * kLine, lines};
    if (linear_.group) run_groups(pass, count, row, p, inputs.begin, row == rows.begin, pairs == 1);
    else (linear_.format == kInt8 ? pass_int8 : pass_bf16)(pass, pairs == 1);
    store_finished();
    if (inputs.end != cut_.tiles) return;
    if (!paired_) return finish(row, count, p, sums);
    const bool second = p % 2;
    if (second) finish(row, count, p - 1, sums - cut_.block_rows * kPanel, sums);
    else if (p + 1 == panels_.end) finish(row, count, p, sums);
  }

  void finish(int64_t row, int rows, int64_t p, const float* sums, const float* next_sums = nullptr) {
    finished_[finished_count_++] = {row, p, rows, sums, operand_.scales_of(row), next_sums};
  }

  void run_groups(const Pass& pass, int rows, int64_t row, int64_t p, int64_t tile, bool unpack, bool streaming) {
    const int64_t group = tile * kLine / linear_.group;
    const float* row_scales = operand_.scales_of(row) + group * kBlock;
    const GroupPass groups = {pass, linear_.group, {row_scales, row_scales + operand_.groups * kBlock}};
    if (linear_.format == kInt8) pass_int8_groups(groups, rows, streaming);
    else pass_int4({groups, unpack, unpacked_, linear_.scales + (p * operand_.groups + group) * kPanel}, rows);
  }

  void store_finished() {
    for (int i = 0; i < finished_count_; ++i) {
      const bool past_cache = output_.past_cache && whole_lines(output_, finished_[i].panel);
      (past_cache ? stream_ : store_)(output_, finished_[i]);
    }
    finished_count_ = 0;
  }

  // Inputs are cut at whole groups.
  int64_t input_unit() const { return std::max<int64_t>(1, linear_.group / kLine); }
  const char* panel(int64_t p) const { return (const char*)linear_.panels + p * bytes_; }

  const Linear& linear_;
  const Operand& operand_;
  const Cut& cut_;
  const Output& output_;
  const int64_t bytes_, tile_bytes_;  // of a panel, and of its part with one tile of inputs
  float* const sums_;
  const int64_t rows_total_;
  const bool paired_;
  Range rows_, panels_;
  Store store_, stream_;
  Finished finished_[2];
  int finished_count_ = 0;
  tiles::Shapes shapes_;
  alignas(kLine) int8_t unpacked_[kInt4PassTiles * 2 * kTileBytes];
};

}  // namespace

// Sums of bfloat16 products depend on the instruction that adds them up, so that tiles take every number of rows. Whole
// numbers are exact: any instruction may take them, as long as the float operations after it are the same.
bool takes(const Linear& linear, int64_t rows) {
  return linear.format == kPlain ? linear.dtype == kBFloat16 : rows >= kLeastRows;
}

int64_t operand_bytes(const Linear& linear, int64_t rows, int members) {
  return Operand(linear, rows, nullptr).bytes(members);
}

void make_operand(Member& me, const Linear& linear, const Norm* norm, Rows x, int64_t rows, void* data) {
  const Operand operand(linear, rows, data);
  const Range mine = me.share(rows, rows >= kBlock * me.size ? kBlock : 1);
  with_type(linear.dtype, [&](auto type) {
    using T = decltype(type);
    T* normed = (T*)operand.spare_of(me);
    int count;
    for (int64_t row = mine.begin; row < mine.end; row += count) {
      count = (int)std::min(kBlock - row % kBlock, mine.end - row);
      const T* from = (const T*)x.data + row * x.stride;
      int64_t stride = x.stride;
      if (norm) {
        for (int i = 0; i < count; ++i)
          normalise(from + i * stride, (const T*)norm->weight, norm->eps, (int)linear.inputs, normed + i * linear.inputs);
        from = normed;
        stride = linear.inputs;
      }
      if (linear.format == kPlain) place_rows(operand, row, count, from, stride, linear.inputs);
      else quantise_rows(linear, operand, row, count, from, stride);
    }
  });
}

void multiply(Member& me, const Linear& linear, const void* data, int64_t rows, Rows out, Rows residual) {
  if (!rows) return;  // tiles of no rows can't be configured
  const Operand operand(linear, rows, (void*)data);
  const int64_t width = linear.gate ? linear.outputs / 2 : linear.outputs;
  const int64_t bytes = rows * width * (linear.dtype == kFloat32 ? 4 : 2);
  const Output output = {linear, out, residual, !linear.gate && bytes > kOutputCached, nullptr};
  Walk(me, linear, operand, rows, output).run();
}

bool feeds(const Linear& linear, const Linear& next, int64_t rows) {
  auto fits = [](const Linear& one) { return one.format == kPlain && one.dtype == kBFloat16; };
  return pairs_panels(linear, rows) && fits(linear) && fits(next);
}

void multiply_into(Member& me, const Linear& linear, const void* data, int64_t rows, const Linear& next, void* fed) {
  const Operand operand(linear, rows, (void*)data), to(next, rows, fed);
  Walk(me, linear, operand, rows, {linear, {}, {}, false, &to}).run();
}

}  // namespace amx
}  // namespace lsv

#endif
