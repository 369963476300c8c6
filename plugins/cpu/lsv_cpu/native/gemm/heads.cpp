// Products of attention heads, each with weights of its own.
#include <algorithm>

#include "gemm/gemm.h"
#include "scratch.h"
#include "team.h"

namespace lsv {
namespace {

constexpr int64_t kRowsAtOnce = 256;  // whose operands are there for all heads at the same time
constexpr int64_t kLine = 64;

int64_t in_lines(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// Layers without biases and scales, whose panels lie one after the other, like their outputs in a row.
class Heads {
 public:
  Heads(const Linear& first, int64_t heads, int64_t rows, int members)
      : first_(first), heads_(heads), panels_(panels_of(first)), size_(first.dtype == kFloat32 ? 4 : 2),
        rows_(std::min(rows, kRowsAtOnce)), sizes_(operand_sizes(first)),
        operand_bytes_((rows_ + kOperandRows - 1) / kOperandRows * sizes_.unit), spare_bytes_(in_lines(sizes_.spare)),
        scratch_(operand_bytes_ * heads + spare_bytes_ * members) {}

  // x: rows, and the heads of a row `head_stride` elements apart.
  void multiply_all(Member& me, Rows x, int64_t head_stride, int64_t rows, void* out) const {
    const int64_t stride = heads_ * first_.outputs;
    for (int64_t row = 0; row < rows; row += rows_) {
      const int64_t count = std::min(rows_, rows - row);
      place(me, {(char*)x.data + row * x.stride * size_, x.stride}, head_stride, count);
      me.barrier();
      multiply_share(me, count, {(char*)out + row * stride * size_, stride});
      me.barrier();
    }
  }

 private:
  Member alone(const Member& me) const {
    return Member(0, 1, scratch_.data + operand_bytes_ * heads_ + spare_bytes_ * me.rank);
  }

  Linear head(int64_t number) const {
    Linear one = first_;
    one.panels = (char*)first_.panels + number * panels_ * panel_bytes(first_);
    return one;
  }

  char* operand(int64_t head) const { return scratch_.data + head * operand_bytes_; }

  void place(const Member& me, Rows x, int64_t head_stride, int64_t rows) const {
    Member self = alone(me);
    const Range mine = me.share(heads_);
    for (int64_t i = mine.begin; i < mine.end; ++i)
      make_operand(self, head(i), nullptr, {(char*)x.data + i * head_stride * size_, x.stride}, rows, operand(i));
  }

  // The panels of all heads are one list, of which each member reads its share as it lies.
  void multiply_share(const Member& me, int64_t rows, Rows out) const {
    const Range mine = me.share(heads_ * panels_);
    for (int64_t at = mine.begin, end; at < mine.end; at = end) {
      const int64_t i = at / panels_, begin = at - i * panels_;
      end = std::min(mine.end, (i + 1) * panels_);
      Member self = alone(me);
      char* to = (char*)out.data + (i * first_.outputs + begin * kPanel) * size_;
      multiply(self, part_of(head(i), {begin, end - i * panels_}), operand(i), rows, {to, out.stride}, {nullptr, 0});
    }
  }

  const Linear& first_;
  const int64_t heads_, panels_, size_, rows_;
  const OperandSizes sizes_;
  const int64_t operand_bytes_, spare_bytes_;
  const Scratch scratch_;
};

}  // namespace
}  // namespace lsv

using namespace lsv;

extern "C" {

// x [rows][heads][inputs] -> out [rows][heads][outputs], dense; rows of x are `row_stride` elements apart, the heads of a
// row `head_stride`. `first` is the layer of head 0, plain and without a bias; the panels of the others follow its own.
int lsv_multiply_heads(const Linear* first, int64_t heads, const void* x, int64_t row_stride, int64_t head_stride,
                       int64_t rows, void* out) {
  return status_of([&] {
    Turn turn;
    const Heads all(*first, heads, rows, turn.members());
    turn.run([&](Member& me) { all.multiply_all(me, {(void*)x, row_stride}, head_stride, rows, out); });
  });
}
}
