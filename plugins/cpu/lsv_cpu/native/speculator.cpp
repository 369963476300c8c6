// The places of an MLP speculator in one region, one after the other: embedding row and projection, norm and gelu, head,
// draw. A place is rounded where it is stored: after the sum, after the gelu, and in its logits.
#include <vector>

#include "gemm/epilogue.h"
#include "gemm/gemm.h"
#include "norm.h"
#include "sampling/choose.h"
#include "scratch.h"
#include "team.h"
#include "vector.h"

namespace lsv {

struct Place {  // lsv_cpu.speculator fills it
  Linear projection, head;
  const void *embedding, *shift;  // [vocabulary][inner], [inner]
  Norm norm;
};

struct Speculator {
  int32_t dtype, normed;  // whether the model's states go through `begin` first
  int64_t inner, vocabulary;
  Norm begin;
  const Place* places;
  OperandSizes operands;  // of the largest layer
};

namespace {

constexpr int64_t align(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Places in the working memory of one call.
struct Parts {
  char *operand, *sums, *states, *logits, *choosing;
  int64_t bytes = 0;

  Parts(const Speculator& all, int64_t rows, int members) {
    const int64_t size = all.dtype == kFloat32 ? 4 : 2, units = (rows + kOperandRows - 1) / kOperandRows;
    take(operand, all.operands.unit * units + all.operands.spare * members);
    take(sums, rows * all.inner * size);
    take(states, rows * all.inner * size);
    take(logits, rows * all.vocabulary * size);
    take(choosing, choice_bytes(all.vocabulary, members));
  }

  void set(char* base) {
    for (char** part : {&operand, &sums, &states, &logits, &choosing}) *part = base + (int64_t)*part;
  }

 private:
  void take(char*& part, int64_t size) {
    part = (char*)bytes;
    bytes += align(size);
  }
};

// What a place has to do between one barrier and the next, of which it has nine, in units of about a nanosecond: a small
// one is done sooner by a member alone.
int64_t work_of(const Speculator& all, int64_t rows) {
  return all.inner * (all.inner + all.vocabulary) / 900 * (rows + 3);
}

// out = gelu(norm(x) + shift)
template <class T>
void activate_row(const T* x, const Norm& norm, const T* shift, int64_t size, T* out) {
  const float scale = inverse_rms(x, norm.eps, (int)size);
  for_vectors((int)size, [&](int at, int n) {
    Floats normed = load_up_to(x + at, n) * scale * load_up_to((const T*)norm.weight + at, n);
    store_up_to(out + at, activate(kGelu, normed + load_up_to(shift + at, n)), n);
  });
}

// The states of a place, of rows x [rows][projection.inputs] and the tokens drawn from them.
template <class T>
void go_on(Member& me, const Speculator& all, const Place& place, const Norm* begin, const void* x, const int64_t* tokens,
           int64_t rows, const Parts& at) {
  const int64_t inner = all.inner;
  T *sums = (T*)at.sums, *states = (T*)at.states;
  Range mine = me.share(rows);
  for (int64_t row = mine.begin; row < mine.end; ++row) {
    const int64_t token = tokens[row] < 0 ? 0 : tokens[row];
    std::memcpy(sums + row * inner, (const T*)place.embedding + token * inner, inner * sizeof(T));
  }
  make_operand(me, place.projection, begin, {(void*)x, place.projection.inputs}, rows, at.operand);
  me.barrier();
  multiply(me, place.projection, at.operand, rows, {sums, inner}, {sums, inner});
  me.barrier();
  for (int64_t row = mine.begin; row < mine.end; ++row)
    activate_row(sums + row * inner, place.norm, (const T*)place.shift, inner, states + row * inner);
  me.barrier();
}

}  // namespace
}  // namespace lsv

using namespace lsv;

// states [rows][width], dense, from which `first` [rows] were sampled; counts [places], of how many of the rows, the first
// ones, each place is wanted, never rising; choices [rows] of the first place -> tokens, those of a place behind those of
// the place before, a negative one where there is none.
extern "C" int lsv_speculate(const Speculator* all, const void* states, const int64_t* first, const int64_t* counts,
                             int64_t places, const void* choices, int64_t* tokens) {
  return status_of([&] {
    const int64_t rows = counts[0];
    std::vector<Choice> chosen((const Choice*)choices, (const Choice*)choices + rows);
    const std::vector<const Edit*> edits(rows, nullptr);
    Turn turn;
    Parts at(*all, rows, turn.members());
    Scratch scratch(at.bytes);
    at.set(scratch.data);
    turn.run_if_worth(work_of(*all, rows), [&](Member& me) {
      const void* x = states;
      const int64_t* before = first;
      int64_t* drawn = tokens;
      for (int64_t number = 0; number < places; ++number) {
        const Place& place = all->places[number];
        const int64_t count = counts[number];
        const Norm* begin = number == 0 && all->normed ? &all->begin : nullptr;
        with_type(all->dtype, [&](auto type) {
          go_on<decltype(type)>(me, *all, place, begin, x, before, count, at);
        });
        make_operand(me, place.head, nullptr, {at.states, all->inner}, count, at.operand);
        me.barrier();
        multiply(me, place.head, at.operand, count, {at.logits, all->vocabulary}, {nullptr, 0});
        me.barrier();
        choose_tokens(me, all->dtype, at.logits, all->vocabulary, all->vocabulary, count, chosen.data(), edits.data(), drawn,
                      at.choosing);
        if (me.rank == 0)
          for (Choice& one : chosen) ++one.position;
        before = drawn, drawn += count, x = at.states;
      }
    });
  });
}
