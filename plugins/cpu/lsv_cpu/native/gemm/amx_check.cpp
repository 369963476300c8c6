// Whether tiles can be used: the system must permit them to the process, and they must give right results.
#if defined(LSV_AMX)

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "attention/amx.h"
#include "gemm/amx.h"
#include "gemm/formats.h"
#include "vector.h"

namespace lsv {
namespace amx {
namespace {

bool permitted() {
#if defined(LSV_EMULATE_AMX)
  return true;
#else
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#endif
}

using Memory = std::unique_ptr<char, decltype(&std::free)>;

Memory memory(int64_t bytes) { return Memory((char*)std::aligned_alloc(kLine, up(bytes, kLine)), std::free); }

int bit(int64_t i) { return (int)((uint64_t)(i + 1) * 0x9e3779b97f4a7c15u >> 63); }
int weight(int64_t output, int64_t input) { return bit(output * 1009 + input) ? 1 : -1; }

bool quantises(int format) { return format == kInt8 || format == kInt4; }

// The largest of a group is 127 and its neighbours are small: what is quantised is exact.
float value(int format, int64_t row, int64_t input) {
  if (quantises(format) && input % 32 == 0) return 127;
  return (float)(bit(row * 7919 + input) + bit(row + input * 31));
}

struct Case {
  int format, group;
  int64_t outputs, inputs, rows;
};

constexpr uint16_t kOne = 0x3f80, kMinusOne = 0xbf80;  // in bfloat16
constexpr uint16_t kTable[16] = {kMinusOne, kOne};

// A product of whole numbers so small that every step of it is exact, and the output up to bfloat16's precision.
bool right(const Case& c) {
  Linear linear = {quantises(c.format) ? kFloat32 : kBFloat16, c.format, kNoGate, c.group, c.outputs, c.inputs,
                   nullptr, nullptr, nullptr, nullptr, kTable, nullptr, 4};
  const int64_t panels = panels_of(linear), groups = scales_of_output(linear);
  const Memory packed = memory(panels * panel_bytes(linear)), scales = memory(panels * groups * kPanel * 4);
  const Memory sums = memory(panels * kPanel * 4), operand = memory(lsv::operand_bytes(linear, c.rows, 1));
  linear.panels = packed.get();
  linear.scales = (float*)scales.get();
  linear.sums = (int32_t*)sums.get();

  const int64_t given = c.format == kCoded ? (c.inputs + c.group - 1) / c.group : groups;
  const std::vector<float> ones(c.outputs * given, 1.0f);
  std::vector<uint16_t> halves(c.outputs * c.inputs);
  std::vector<uint8_t> bytes(c.outputs * c.inputs);
  std::vector<float> x(c.rows * c.inputs), out(c.rows * c.outputs);
  for (int64_t output = 0; output < c.outputs; ++output)
    for (int64_t input = 0; input < c.inputs; ++input) {
      const int64_t at = output * c.inputs + input;
      const int w = weight(output, input);
      halves[at] = w > 0 ? kOne : kMinusOne;
      if (c.format == kInt4) bytes[at / 2] |= (uint8_t)(w + 8) << (input % 2 * 4);
      else if (c.format == kCoded) bytes[at / 2] |= (uint8_t)(w > 0) << (input % 2 * 4);
      else bytes[at] = (uint8_t)w;
    }
  for (int64_t i = 0; i < c.rows * c.inputs; ++i) x[i] = value(c.format, i / c.inputs, i % c.inputs);
  std::vector<uint16_t> x_halves(x.size()), out_halves(out.size());
  for (size_t i = 0; i < x.size(); ++i) x_halves[i] = (uint16_t)(load_as<uint32_t>(&x[i]) >> 16);

  const bool half = linear.dtype == kBFloat16;
  const void* weights = c.format == kPlain ? (void*)halves.data() : bytes.data();
  const Rows from = {half ? (void*)x_halves.data() : x.data(), c.inputs};
  const Rows to = {half ? (void*)out_halves.data() : out.data(), c.outputs};
  Member alone(0, 1);
  pack(alone, linear, weights, ones.data());
  lsv::make_operand(alone, linear, nullptr, from, c.rows, operand.get());
  lsv::multiply(alone, linear, operand.get(), c.rows, to, {nullptr, 0});
  for (int64_t i = 0; i < c.rows * c.outputs; ++i) {
    float expected = 0;
    for (int64_t input = 0; input < c.inputs; ++input)
      expected += (float)weight(i % c.outputs, input) * x[i / c.outputs * c.inputs + input];
    const uint32_t bits = half ? (uint32_t)out_halves[i] << 16 : load_as<uint32_t>(&out[i]);
    if (load_as<float>(&bits) != expected) return false;
  }
  return true;
}

// Every query is eight times one of the keys before it, whose score is so far above all others that the output is that
// key's value.
bool attends_right() {
  constexpr int kTokens = 70, kHeads = 2, kDim = 64;
  Layer layer = {};
  layer.heads = kHeads, layer.kv_heads = 1, layer.dim = kDim, layer.causal = 1, layer.scale = 1;
  const int32_t starts[] = {0, kTokens}, context[] = {kTokens};
  const Plan plan = {1, 0, starts, context, nullptr};
  constexpr int kTimesEight = 3 << 7;  // added to the exponent of a bfloat16
  std::vector<uint16_t> q(kTokens * kHeads * kDim), k(kTokens * kDim), v(k.size()), out(q.size());
  auto target = [](int token, int head) { return (token + head) / 2; };
  for (int i = 0; i < kTokens * kDim; ++i) {
    k[i] = weight(0, i * i) > 0 ? kOne : kMinusOne;
    v[i] = bit(i * 31) ? kOne : kMinusOne;
  }
  for (int i = 0; i < (int)q.size(); ++i)
    q[i] = (uint16_t)(k[target(i / kDim / kHeads, i / kDim % kHeads) * kDim + i % kDim] + kTimesEight);
  const Tensors tensors = {q.data(), k.data(), v.data(), out.data(), kHeads * kDim, kDim, kDim};
  const Memory scratch = memory(attention_scratch(layer, plan, 1, false));
  Member alone(0, 1);
  attend(alone, layer, plan, nullptr, tensors, scratch.get());
  for (int i = 0; i < (int)out.size(); ++i)
    if (out[i] != v[target(i / kDim / kHeads, i / kDim % kHeads) * kDim + i % kDim]) return false;
  return true;
}

}  // namespace
}  // namespace amx
}  // namespace lsv

// Asks for tiles and tries every kernel of theirs: 1 if they can be used.
extern "C" int lsv_amx_ready() {
  using namespace lsv;
  if (!amx::permitted()) return 0;
  for (int64_t rows : {9, 25, 70}) {
    if (!amx::right({kPlain, 0, 72, 100, rows})) return 0;
    for (int group : {16, 64})
      if (!amx::right({kCoded, group, 72, 100, rows})) return 0;
    for (int group : {0, 128})  // of the inputs' groups the last has one tile
      if (!amx::right({kInt8, group, 72, 704, rows})) return 0;
    for (int group : {32, 64, 128})
      if (!amx::right({kInt4, group, 72, 640, rows})) return 0;
  }
  return amx::attends_right();
}

#endif
