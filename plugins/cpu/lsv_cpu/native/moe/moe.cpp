#include "moe/moe.h"

#include <algorithm>
#include <cstring>

#include "gemm/epilogue.h"
#include "norm.h"
#include "scratch.h"

namespace lsv {
namespace {

constexpr int64_t kMostRows = 2048;   // at a time, as working memory grows with them
constexpr int64_t kFewRows = 12;      // of an expert, up to which its weights are what takes time
constexpr int64_t kItemsOfMember = 8;  // parts that many rows are cut into, for members to claim

int64_t size_of(int32_t dtype) { return dtype == kFloat32 ? 4 : 2; }

Rows from_row(Rows rows, int64_t row, int64_t size) {
  return {rows.data ? (char*)rows.data + row * rows.stride * size : nullptr, rows.stride};
}

// Working memory for up to kMostRows rows. A row's pairs with its experts are `top` neighbours before they are sorted.
struct Places {
  char *normed, *logits, *rows, *gated, *operands, *spare;
  float* weights;    // of pairs
  int32_t* chosen;   // experts of pairs
  int32_t* sorted;   // where a pair is among the sorted ones
  int32_t* row_of;   // the row of a sorted pair
  int32_t* next;     // [count]
  int32_t* first;    // the first sorted pair of each expert [count + 1]
  int32_t* unit;     // of the operands, where an expert's begins [count]
  int32_t* busy;     // experts with rows, those with most first [count]
  int32_t* items;    // the first item of each busy expert [count + 1]
  int32_t* busy_count;
  int64_t bytes = 0, spare_bytes;

  Places(const Experts& experts, int64_t rows, int members, char* base) {
    const int64_t size = size_of(experts.dtype), count = std::min(rows, kMostRows), pairs = count * experts.top;
    const int64_t router = experts.router ? operand_bytes(*experts.router, count, members) : 0;
    const int64_t units = pairs / kOperandRows + std::min<int64_t>(pairs, experts.count);
    spare_bytes = up(std::max(experts.operands.spare, choosing_bytes(experts)));
    take(base, normed, count * experts.hidden * size);
    take(base, logits, count * experts.count * size);
    take(base, this->rows, pairs * experts.hidden * size);
    take(base, gated, pairs * experts.inner * size);
    take(base, operands, std::max(router, units * experts.operands.unit));
    take(base, spare, members * spare_bytes);
    for (auto place : {(int32_t**)&weights, &chosen, &sorted, &row_of}) take(base, *place, pairs * 4);
    for (auto place : {&next, &first, &unit, &busy, &items, &busy_count}) take(base, *place, (experts.count + 1) * 4);
  }

 private:
  static int64_t up(int64_t size) { return (size + 255) / 256 * 256; }
  template <class T> void take(char* base, T*& place, int64_t size) {
    place = (T*)(base + bytes);
    bytes += up(size);
  }
};

// One member's part of the work on some rows.
class Work {
 public:
  Work(Member& me, const Experts& experts, int64_t rows, const Places& at)
      : me_(me), experts_(experts), rows_(rows), pairs_(rows * experts.top), size_(size_of(experts.dtype)), at_(at),
        spare_(at.spare + me.rank * at.spare_bytes) {}

  void run(const Norm* norm, Rows x, const Choice& choice, int64_t first_row, Rows out, Rows residual) {
    if (norm) norm_rows(*norm, x);
    if (!choice.experts) {
      make_operand(me_, *experts_.router, norm, x, rows_, at_.operands);
      me_.barrier();
      multiply(me_, *experts_.router, at_.operands, rows_, {at_.logits, experts_.count}, {nullptr, 0});
      me_.barrier();
    }
    choose_rows(choice, first_row);
    me_.barrier();
    if (me_.rank == 0) sort_pairs();
    me_.barrier();
    gather_rows(norm ? Rows{at_.normed, experts_.hidden} : x);
    me_.barrier();
    multiply_all(experts_.gate_up, {at_.rows, experts_.hidden}, {at_.gated, experts_.inner});
    multiply_all(experts_.down, {at_.gated, experts_.inner}, {at_.rows, experts_.hidden});
    add_up(out, residual);
    me_.barrier();
  }

 private:
  void norm_rows(const Norm& norm, Rows x) const {
    const Range mine = me_.share(rows_);
    with_type(experts_.dtype, [&](auto type) {
      using T = decltype(type);
      for (int64_t row = mine.begin; row < mine.end; ++row)
        normalise((const T*)x.data + row * x.stride, (const T*)norm.weight, norm.eps, (int)experts_.hidden,
                  (T*)at_.normed + row * experts_.hidden);
    });
  }

  void choose_rows(const Choice& choice, int64_t first_row) const {
    const Range mine = me_.share(rows_);
    for (int64_t row = mine.begin; row < mine.end; ++row) {
      const Shares to = {at_.weights + row * experts_.top, at_.chosen + row * experts_.top};
      if (choice.experts) choose(experts_, choice, first_row + row, to);
      else choose(experts_, at_.logits + row * experts_.count * size_, to, spare_);
    }
  }

  void sort_pairs() const {
    const int32_t count = experts_.count;
    std::fill_n(at_.next, count, 0);
    for (int64_t pair = 0; pair < pairs_; ++pair) ++at_.next[at_.chosen[pair]];
    int32_t busy = 0;
    at_.first[0] = 0;
    for (int32_t e = 0; e < count; ++e) {
      at_.first[e + 1] = at_.first[e] + at_.next[e];
      at_.unit[e] = at_.first[e] / (int32_t)kOperandRows + busy;  // what is before can't reach so far
      if (at_.next[e]) at_.busy[busy++] = e;
      at_.next[e] = at_.first[e];
    }
    for (int64_t pair = 0; pair < pairs_; ++pair) {
      const int32_t to = at_.next[at_.chosen[pair]]++;
      at_.sorted[pair] = to;
      at_.row_of[to] = (int32_t)(pair / experts_.top);
    }
    std::sort(at_.busy, at_.busy + busy, [&](int32_t a, int32_t b) {
      return rows_of(a) != rows_of(b) ? rows_of(a) > rows_of(b) : a < b;
    });
    *at_.busy_count = busy;
    at_.items[0] = 0;
    for (int32_t i = 0; i < busy; ++i) {
      const int64_t parts = (rows_of(at_.busy[i]) * kItemsOfMember * me_.size + pairs_ - 1) / pairs_;
      at_.items[i + 1] = at_.items[i] + (int32_t)parts;
    }
  }

  void gather_rows(Rows x) const {
    const int64_t bytes = experts_.hidden * size_;
    const Range mine = me_.share(pairs_);
    for (int64_t pair = mine.begin; pair < mine.end; ++pair)
      std::memcpy(at_.rows + pair * bytes, (char*)x.data + at_.row_of[pair] * x.stride * size_, bytes);
  }

  // Every expert's rows times its layer; both kinds of rows are sorted pairs.
  void multiply_all(const Linear* layers, Rows from, Rows to) {
    for_items([&](int32_t e, int64_t part, int64_t parts) {
      Member some((int)part, (int)parts, spare_);
      make_operand(some, layers[e], nullptr, from_row(from, at_.first[e], size_), rows_of(e), operand(e));
    });
    me_.barrier();
    const int64_t panels = panels_of(layers[0]);
    const bool few = *at_.busy_count && rows_of(at_.busy[0]) <= kFewRows;
    if (few) multiply_share(layers, panels, to);
    else
      for_items([&](int32_t e, int64_t part, int64_t parts) {
        multiply_part(layers[e], e, {panels * part / parts, panels * (part + 1) / parts}, to);
      });
    me_.barrier();
  }

  // f(expert, part, parts) for what this member claims: experts of many rows are cut into more parts than others, and
  // come first.
  template <class F> void for_items(F&& f) {
    const int32_t *begin = at_.items, *end = begin + *at_.busy_count + 1;
    for (int64_t item; (item = me_.claim()) < end[-1];) {
      const int32_t* next = std::upper_bound(begin, end, (int32_t)item);
      f(at_.busy[next - begin - 1], item - next[-1], next[0] - next[-1]);
    }
  }

  // All busy experts' panels are one list, of which each member reads its share as it lies.
  void multiply_share(const Linear* layers, int64_t panels, Rows to) {
    const Range mine = me_.share(*at_.busy_count * panels);
    for (int64_t at = mine.begin, end; at < mine.end; at = end) {
      const int64_t i = at / panels;
      end = std::min(mine.end, (i + 1) * panels);
      multiply_part(layers[at_.busy[i]], at_.busy[i], {at - i * panels, end - i * panels}, to);
    }
  }

  void multiply_part(const Linear& layer, int32_t expert, Range panels, Rows to) {
    if (panels.begin == panels.end) return;
    Rows out = from_row(to, at_.first[expert], size_);
    out.data = (char*)out.data + panels.begin * (layer.gate ? kPanel / 2 : kPanel) * size_;
    Member alone(0, 1, spare_);
    multiply(alone, part_of(layer, panels), operand(expert), rows_of(expert), out, {nullptr, 0});
  }

  void add_up(Rows out, Rows residual) const {
    const Range mine = me_.share(rows_);
    with_type(experts_.dtype, [&](auto type) {
      using T = decltype(type);
      for (int64_t row = mine.begin; row < mine.end; ++row)
        add_up_row<T>(row, (T*)out.data + row * out.stride,
                      residual.data ? (const T*)residual.data + row * residual.stride : nullptr);
    });
  }

  template <class T> void add_up_row(int64_t row, T* out, const T* residual) const {
    const float* weights = at_.weights + row * experts_.top;
    const int32_t* sorted = at_.sorted + row * experts_.top;
    for_vectors((int)experts_.hidden, [&](int at, int n) {
      Floats total = {};
      for (int i = 0; i < experts_.top; ++i)
        total += weights[i] * load_up_to((const T*)at_.rows + sorted[i] * experts_.hidden + at, n);
      if (residual) total += load_up_to(residual + at, n);
      store_up_to(out + at, total, n);
    });
  }

  int64_t rows_of(int32_t expert) const { return at_.first[expert + 1] - at_.first[expert]; }

  char* operand(int32_t expert) const { return at_.operands + at_.unit[expert] * experts_.operands.unit; }

  Member& me_;
  const Experts& experts_;
  const int64_t rows_, pairs_, size_;
  const Places& at_;
  char* const spare_;
};

}  // namespace

int64_t experts_bytes(const Experts& experts, int64_t rows, int members) {
  return Places(experts, rows, members, nullptr).bytes;
}

void run_experts(Member& me, const Experts& experts, const Norm* norm, Rows x, const Choice& choice, int64_t rows,
                 Rows out, Rows residual, char* working) {
  const Places at(experts, rows, me.size, working);
  const int64_t size = size_of(experts.dtype);
  for (int64_t first = 0; first < rows; first += kMostRows)
    Work(me, experts, std::min(kMostRows, rows - first), at)
        .run(norm, from_row(x, first, size), choice, first, from_row(out, first, size), from_row(residual, first, size));
}

}  // namespace lsv

using namespace lsv;

// x and out [rows][hidden], dense; weights and chosen as in Choice, null where the experts have a router.
extern "C" int lsv_experts(const Experts* experts, const void* x, const void* weights, const int64_t* chosen,
                           int64_t rows, void* out) {
  for (int64_t i = 0; chosen && i < rows * experts->top; ++i)
    if (chosen[i] < 0 || chosen[i] >= experts->count) return kNoSuchExpert;
  return status_of([&] {
    Turn turn;
    Scratch scratch(experts_bytes(*experts, rows, turn.members()));
    const Rows input = {(void*)x, experts->hidden}, output = {out, experts->hidden};
    turn.run([&](Member& me) {
      run_experts(me, *experts, nullptr, input, {weights, chosen}, rows, output, {nullptr, 0}, scratch.data);
    });
  });
}
