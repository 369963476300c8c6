// A decoder layer in one region: norm, q/k/v, rotation and cache, attention, projection, norm, gated MLP or experts.
// What the next product reads is normed or quantised straight from what the last one wrote; residuals are added before
// rounding.
#include <initializer_list>

#include "attention/attention.h"
#include "gemm/gemm.h"
#include "moe/moe.h"
#include "scratch.h"
#include "team.h"

namespace lsv {

// Prepared once; lsv_cpu.layer fills it.
struct DecoderLayer {
  int32_t dtype;
  int32_t hidden;
  Norm before_attention, before_mlp;
  Linear qkv, projection, gate_up, down;
  Layer attention;
  HeadTurn turn;  // positions are the step's
  int32_t kind;   // FeedForward
  const Experts* experts;
};

// What comes after attention: layers gate_up and down, or experts; kNothing ends the layer there.
enum FeedForward { kGatedMLP = 0, kExperts = 1, kNothing = 2 };

namespace {

constexpr int64_t kMlpRows = 512;  // rows whose activations between gate and down stay in the cache

constexpr int64_t align(int64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

// Places in the working memory of one call.
struct Places {
  char *operand, *qkv, *attended, *residual, *gated, *attention, *experts;
  int64_t bytes = 0;

  Places(const DecoderLayer& layer, const Plan& plan, int64_t rows, int members) {
    int64_t size = layer.dtype == kFloat32 ? 4 : 2, mlp_rows = rows < kMlpRows ? rows : kMlpRows;
    int64_t operands = 0;
    for (const Linear* linear : {&layer.qkv, &layer.projection}) grow(operands, operand_bytes(*linear, rows, members));
    if (layer.kind == kGatedMLP)
      for (const Linear* linear : {&layer.gate_up, &layer.down})
        grow(operands, operand_bytes(*linear, mlp_rows, members));
    take(operand, operands);
    take(qkv, rows * layer.qkv.outputs * size);
    take(attended, rows * layer.projection.inputs * size);
    take(residual, rows * layer.hidden * size);
    take(gated, layer.kind == kGatedMLP ? mlp_rows * layer.down.inputs * size : 0);
    take(attention, attention_scratch(layer.dtype, layer.attention, plan, members));
    take(experts, layer.kind == kExperts ? experts_bytes(*layer.experts, rows, members) : 0);
  }

  void set(char* base) {
    for (char** place : {&operand, &qkv, &attended, &residual, &gated, &attention, &experts})
      *place = base + (int64_t)*place;
  }

 private:
  static void grow(int64_t& most, int64_t bytes) { most = bytes > most ? bytes : most; }
  void take(char*& place, int64_t size) {
    place = (char*)bytes;
    bytes += align(size);
  }
};

void* row_of(Rows rows, int64_t row, int32_t dtype) {
  return (char*)rows.data + row * rows.stride * (dtype == kFloat32 ? 4 : 2);
}

void attend(Member& me, const DecoderLayer& layer, const Plan& plan, const Cache& cache, const HeadTurn& turn, Rows x,
            int64_t rows, const Places& at, Rows out) {
  int64_t q = (int64_t)layer.attention.heads * layer.attention.dim, kv = (int64_t)layer.attention.kv_heads * layer.attention.dim;
  int64_t width = q + 2 * kv, size = layer.dtype == kFloat32 ? 4 : 2;
  make_operand(me, layer.qkv, &layer.before_attention, x, rows, at.operand);
  me.barrier();
  multiply(me, layer.qkv, at.operand, rows, {at.qkv, width}, {nullptr, 0});
  me.barrier();
  Tensors tensors = {at.qkv, at.qkv + q * size, at.qkv + (q + kv) * size, at.attended, width, width, width};
  place_heads(me, layer.dtype, layer.attention, plan, &cache, tensors, turn);
  me.barrier();
  attend(me, layer.dtype, layer.attention, plan, &cache, tensors, at.attention);
  me.barrier();
  make_operand(me, layer.projection, nullptr, {at.attended, q}, rows, at.operand);
  me.barrier();
  multiply(me, layer.projection, at.operand, rows, out, x);
  me.barrier();
}

void feed_forward(Member& me, const DecoderLayer& layer, Rows x, int64_t rows, Rows out, const Places& at) {
  for (int64_t first = 0; first < rows; first += kMlpRows) {
    int64_t count = rows - first < kMlpRows ? rows - first : kMlpRows;
    Rows from = {row_of(x, first, layer.dtype), x.stride}, to = {row_of(out, first, layer.dtype), out.stride};
    Rows gated = {at.gated, layer.down.inputs};
    make_operand(me, layer.gate_up, &layer.before_mlp, from, count, at.operand);
    me.barrier();
    multiply(me, layer.gate_up, at.operand, count, gated, {nullptr, 0});
    me.barrier();
    make_operand(me, layer.down, nullptr, gated, count, at.operand);
    me.barrier();
    multiply(me, layer.down, at.operand, count, to, from);
    me.barrier();
  }
}

}  // namespace
}  // namespace lsv

using namespace lsv;

// x [rows][hidden], dense -> out, the same; positions [rows].
extern "C" int lsv_layer(const DecoderLayer* layer, const Plan* plan, const Cache* cache, const int64_t* positions,
                         int64_t rows, void* x, void* out) {
  return status_of([&] {
    Turn turn;
    Places at(*layer, *plan, rows, turn.members());
    Scratch scratch(at.bytes);
    at.set(scratch.data);
    HeadTurn head_turn = layer->turn;
    head_turn.positions = positions;
    Rows input = {x, layer->hidden}, output = {out, layer->hidden};
    Rows attended = layer->kind == kNothing ? output : Rows{at.residual, layer->hidden};
    turn.run([&](Member& me) {
      attend(me, *layer, *plan, *cache, head_turn, input, rows, at, attended);
      if (layer->kind == kGatedMLP) feed_forward(me, *layer, attended, rows, output, at);
      if (layer->kind == kExperts)
        run_experts(me, *layer->experts, &layer->before_mlp, attended, {}, rows, output, attended, at.experts);
    });
  });
}
