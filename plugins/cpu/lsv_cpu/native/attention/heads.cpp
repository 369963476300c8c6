// What happens to heads between their projection and attention, in one pass: norm, rotation, the way into the cache.
#include "attention/attention.h"
#include "gemm/epilogue.h"
#include "norm.h"
#include "attention/pages.h"
#include "attention/rope.h"

namespace lsv {
namespace {

// Norm and rotation each round to the dtype, as they do as operations of their own.
template <class T> void turn_head(const Layer& layer, const HeadTurn& turn, const void* norm, int64_t token, T* x) {
  if (norm) normalise(x, (const T*)norm, turn.eps, layer.dim, x);
  if (turn.table) rotate_head(x, (const T*)turn.table + turn.positions[token] * 2 * turn.rotary, turn.rotary, x);
}

template <class T, class S> class HeadPlacement {
 public:
  HeadPlacement(const Layer& layer, const Plan& plan, const Cache* cache, const Tensors& tensors, const HeadTurn& turn)
      : layer_(layer), plan_(plan), cache_(cache), tensors_(tensors), turn_(turn), pages_(layer, plan, cache, nullptr) {}

  void place(Member& me) const {
    int queries = turn_.q_norm || turn_.table ? layer_.heads : 0, heads = queries + (tensors_.k ? layer_.kv_heads : 0);
    Range mine = me.share((int64_t)plan_.starts[plan_.requests] * heads);
    for (int64_t i = mine.begin, request = 0; i < mine.end; ++i) {
      int token = (int)(i / heads), head = (int)(i % heads);
      while (token >= plan_.starts[request + 1]) ++request;
      if (head < queries) turn_query(token, head);
      else place_key_and_value((int)request, token, head - queries);
    }
  }

 private:
  void turn_query(int token, int head) const {
    turn_head(layer_, turn_, turn_.q_norm, token, (T*)tensors_.q + token * tensors_.q_stride + (int64_t)head * layer_.dim);
  }

  void place_key_and_value(int request, int token, int kv_head) const {
    T* k = (T*)tensors_.k + token * tensors_.k_stride + (int64_t)kv_head * layer_.dim;
    turn_head(layer_, turn_, turn_.k_norm, token, k);
    if (!cache_) return;
    int at = plan_.context[request] - plan_.starts[request + 1] + token;
    pages_.write_key(request, kv_head, at, k);
    pages_.template write_values<T>(request, kv_head, at, tensors_, token);
  }

  const Layer& layer_;
  const Plan& plan_;
  const Cache* cache_;
  const Tensors& tensors_;
  const HeadTurn& turn_;
  Pages<S> pages_;
};

}  // namespace

void place_heads(Member& me, int dtype, const Layer& layer, const Plan& plan, const Cache* cache, const Tensors& tensors,
                 const HeadTurn& turn) {
  with_types(dtype, cache, [&](auto type, auto stored) {
    HeadPlacement<decltype(type), decltype(stored)>(layer, plan, cache, tensors, turn).place(me);
  });
}

}  // namespace lsv

// k and v into the cache and nothing else.
extern "C" void lsv_write(
    int dtype, const lsv::Layer* layer, const lsv::Plan* plan, const lsv::Cache* cache, const lsv::Tensors* tensors) {
  using namespace lsv;
  run([&](Member& me) { place_heads(me, dtype, *layer, *plan, cache, *tensors, HeadTurn{}); });
}
