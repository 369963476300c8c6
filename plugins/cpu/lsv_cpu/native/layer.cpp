// A decoder layer in one region: norm, q/k/v, rotation and cache, attention, projection, norm, gated MLP or experts.
// What the next product reads is normed or quantised straight from what the last one wrote; residuals are added before
// rounding.
#include <initializer_list>

#include "adapters.h"
#include "attention/attention.h"
#include "gemm/epilogue.h"
#include "gemm/gemm.h"
#include "moe/moe.h"
#include "norm.h"
#include "ranks.h"
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
  Ranks* ranks;  // those whose projections and MLPs are summed; null where this is the only one
  const void *projection_bias, *down_bias;  // added to the sums; may be null
  struct { const Adapters *qkv, *projection, *gate_up, *down; } adapters;  // null where they add nothing
};

// What comes after attention: layers gate_up and down, or experts; kNothing ends the layer there.
enum FeedForward { kGatedMLP = 0, kExperts = 1, kNothing = 2 };

namespace {

constexpr int64_t kMlpRows = 512;  // rows whose activations between gate and down stay in the cache

constexpr int64_t align(int64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

// Places in the working memory of one call.
struct Places {
  char *operand, *qkv, *attended, *residual, *gated, *attention, *experts, *partial, *normed, *low, *added;
  int64_t bytes = 0;

  Places(const DecoderLayer& layer, const Plan& plan, const AdapterTokens* tokens, int64_t rows, int members) {
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
    int64_t gates = 0;
    if (layer.kind == kGatedMLP) {
      gates = mlp_rows * layer.down.inputs * size;
      if (feeds(layer.gate_up, layer.down, mlp_rows)) grow(gates, operand_bytes(layer.down, mlp_rows, members));
    }
    take(gated, gates);
    take(attention, attention_scratch(layer.dtype, layer.attention, plan, members));
    take(experts, layer.kind == kExperts ? experts_bytes(*layer.experts, rows, members) : 0);
    take(partial, layer.ranks ? rows * layer.hidden * size : 0);
    int64_t lows = 0, sums = 0;
    if (tokens) {
      const auto& all = layer.adapters;
      for (const Adapters* adapters : {all.qkv, all.projection, all.gate_up, all.down}) {
        if (!adapters) continue;
        int64_t count = adapters == all.gate_up || adapters == all.down ? mlp_rows : rows;
        grow(lows, count * adapters->sources * adapters->rank * 4);
        grow(sums, count * adapters->outputs * 4);
      }
    }
    take(normed, tokens ? rows * layer.hidden * size : 0);
    take(low, lows);
    take(added, sums);
  }

  void set(char* base) {
    for (char** place : {&operand, &qkv, &attended, &residual, &gated, &attention, &experts, &partial, &normed, &low, &added})
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

// out = what f(to, residual) writes, summed over the ranks, + bias + residual. f ends with a barrier.
template <class F>
void reduce(Member& me, const DecoderLayer& layer, const void* bias, int64_t rows, Rows residual, Rows out, char* partial, F&& f) {
  if (!layer.ranks) return f(out, residual);
  f(Rows{partial, layer.hidden}, Rows{nullptr, 0});
  sum_ranks(me, *layer.ranks, layer.dtype, partial, rows * layer.hidden, bias, layer.hidden, residual.data, out.data);
  me.barrier();
}

// The rows that go through adapters, normed; the others are left out.
template <class T>
void normalise_adapted(Member& me, const AdapterTokens& tokens, const Norm& norm, Rows x, Range rows, int64_t size, T* out) {
  Range mine = me.share(rows.end - rows.begin);
  for (int64_t row = mine.begin; row < mine.end; ++row)
    if (tokens.slots[rows.begin + row] >= 0)
      normalise((const T*)x.data + row * x.stride, (const T*)norm.weight, norm.eps, (int)size, out + row * size);
}

// Whether adapters add to a product of any row.
bool adapts(const Adapters* adapters, const AdapterTokens* tokens) {
  return tokens && adapters && adds(*adapters, *tokens);
}

// Everything that a product of a step's `rows` needs, the first of which comes first in x: its operand, and in the layer
// that is returned what adapters add. Ends with a barrier.
Linear prepare(Member& me, const Linear& linear, const Adapters* adapters, const AdapterTokens* tokens, const Norm* norm,
               Rows x, Range rows, const Places& at) {
  Linear prepared = linear;
  make_operand(me, linear, norm, x, rows.end - rows.begin, at.operand);
  if (adapts(adapters, tokens)) {
    if (norm) {
      with_type(linear.dtype, [&](auto type) {
        normalise_adapted(me, *tokens, *norm, x, rows, linear.inputs, (decltype(type)*)at.normed);
      });
      me.barrier();
      x = {at.normed, linear.inputs};
    }
    shrink(me, *adapters, *tokens, rows, x, (float*)at.low);
    me.barrier();
    expand(me, *adapters, *tokens, rows, (const float*)at.low, (float*)at.added);
    prepared.added = (const float*)at.added;
    prepared.adapted = tokens->slots + rows.begin;
    prepared.rescaled = adapters->rescaled;
    prepared.rescale = adapters->rescale;
  }
  me.barrier();
  return prepared;
}

void attend(Member& me, const DecoderLayer& layer, const Plan& plan, const Cache& cache, const AdapterTokens* tokens,
            const HeadTurn& turn, Rows x, int64_t rows, const Places& at, Rows out) {
  int64_t q = (int64_t)layer.attention.heads * layer.attention.dim, kv = (int64_t)layer.attention.kv_heads * layer.attention.dim;
  int64_t width = q + 2 * kv, size = layer.dtype == kFloat32 ? 4 : 2;
  const Range all = {0, rows};
  const Linear qkv = prepare(me, layer.qkv, layer.adapters.qkv, tokens, &layer.before_attention, x, all, at);
  multiply(me, qkv, at.operand, rows, {at.qkv, width}, {nullptr, 0});
  me.barrier();
  Tensors tensors = {at.qkv, at.qkv + q * size, at.qkv + (q + kv) * size, at.attended, width, width, width};
  place_heads(me, layer.dtype, layer.attention, plan, &cache, tensors, turn);
  me.barrier();
  attend(me, layer.dtype, layer.attention, plan, &cache, tensors, at.attention);
  me.barrier();
  const Linear projection = prepare(me, layer.projection, layer.adapters.projection, tokens, nullptr, {at.attended, q}, all, at);
  reduce(me, layer, layer.projection_bias, rows, x, out, at.partial, [&](Rows to, Rows residual) {
    multiply(me, projection, at.operand, rows, to, residual);
    me.barrier();
  });
}

void feed_forward(Member& me, const DecoderLayer& layer, const AdapterTokens* tokens, Rows x, int64_t rows, Rows out,
                  const Places& at) {
  for (int64_t first = 0; first < rows; first += kMlpRows) {
    int64_t count = rows - first < kMlpRows ? rows - first : kMlpRows;
    Rows from = {row_of(x, first, layer.dtype), x.stride}, to = {row_of(out, first, layer.dtype), out.stride};
    Rows gated = {at.gated, layer.down.inputs};
    const Range some = {first, first + count};
    const Linear gate_up = prepare(me, layer.gate_up, layer.adapters.gate_up, tokens, &layer.before_mlp, from, some, at);
    const Adapters* down_adapters = layer.adapters.down;
    const bool fed = !adapts(down_adapters, tokens) && feeds(gate_up, layer.down, count);  // adapters need plain rows
    if (fed) multiply_into(me, gate_up, at.operand, count, layer.down, at.gated);
    else multiply(me, gate_up, at.operand, count, gated, {nullptr, 0});
    me.barrier();
    const Linear down = fed ? layer.down : prepare(me, layer.down, down_adapters, tokens, nullptr, gated, some, at);
    reduce(me, layer, layer.down_bias, count, from, to, at.partial, [&](Rows to, Rows residual) {
      multiply(me, down, fed ? at.gated : at.operand, count, to, residual);
      me.barrier();
    });
  }
}

}  // namespace
}  // namespace lsv

using namespace lsv;

// x [rows][hidden], dense -> out, the same; positions [rows]; tokens null where no row goes through an adapter.
extern "C" int lsv_layer(const DecoderLayer* layer, const Plan* plan, const Cache* cache, const AdapterTokens* tokens,
                         const int64_t* positions, int64_t rows, void* x, void* out) {
  return status_of([&] {
    Turn turn;
    Places at(*layer, *plan, tokens, rows, turn.members());
    Scratch scratch(at.bytes);
    at.set(scratch.data);
    HeadTurn head_turn = layer->turn;
    head_turn.positions = positions;
    Rows input = {x, layer->hidden}, output = {out, layer->hidden};
    Rows attended = layer->kind == kNothing ? output : Rows{at.residual, layer->hidden};
    turn.run([&](Member& me) {
      attend(me, *layer, *plan, *cache, tokens, head_turn, input, rows, at, attended);
      if (layer->kind == kGatedMLP) feed_forward(me, *layer, tokens, attended, rows, output, at);
      if (layer->kind == kExperts)
        reduce(me, *layer, nullptr, rows, attended, output, at.partial, [&](Rows to, Rows residual) {
          run_experts(me, *layer->experts, &layer->before_mlp, attended, {}, rows, to, residual, at.experts);
          me.barrier();
        });
    });
  });
}
