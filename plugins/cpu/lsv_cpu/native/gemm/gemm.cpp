// Chooses the kernel for a linear layer, and the entry points for a layer on its own.
#include "gemm/gemm.h"

#include "gemm/formats.h"
#include "scratch.h"

namespace lsv {

int64_t panels_of(const Linear& linear) {
  if (!linear.gate) return (linear.outputs + kPanel - 1) / kPanel;
  constexpr int kHalf = kPanel / 2;
  return (linear.outputs / 2 + kHalf - 1) / kHalf;
}

int64_t output_in(const Linear& linear, int64_t panel, int lane) {
  if (!linear.gate) {
    int64_t output = panel * kPanel + lane;
    return output < linear.outputs ? output : -1;
  }
  constexpr int kHalf = kPanel / 2;
  int64_t half = linear.outputs / 2, at = panel * kHalf + lane % kHalf;
  return at < half ? at + (lane < kHalf ? 0 : half) : -1;
}

int64_t inputs_padded(const Linear& linear) {
  if (linear.format == kCoded) return coded::inputs_padded(linear);
  int64_t tile = linear.format != kPlain ? 64 : linear.dtype == kFloat32 ? 16 : 32;
  if (linear.format == kInt4 && linear.group > tile) tile = linear.group;
  return (linear.inputs + tile - 1) / tile * tile;
}

int64_t scales_of_output(const Linear& linear) {
  return linear.format == kInt4 ? inputs_padded(linear) / linear.group : 1;
}

int64_t panel_bytes(const Linear& linear) {
  if (linear.format == kCoded) return coded::panel_bytes(linear);
  int64_t elements = kPanel * inputs_padded(linear);
  if (linear.format == kInt4) return elements / 2;
  return linear.format == kInt8 ? elements : elements * (linear.dtype == kFloat32 ? 4 : 2);
}

void pack(Member& me, const Linear& linear, const void* weights, const float* scales) {
  if (linear.format == kPlain) plain::pack(me, linear, weights, scales);
  else if (linear.format == kCoded) coded::pack(me, linear, weights, scales);
  else integer::pack(me, linear, weights, scales);
}

Linear part_of(const Linear& linear, Range panels) {
  const int64_t width = linear.gate ? kPanel / 2 : kPanel, all = linear.gate ? linear.outputs / 2 : linear.outputs;
  const int64_t begin = panels.begin * width, end = panels.end * width < all ? panels.end * width : all;
  Linear part = linear;
  part.outputs = linear.gate ? 2 * (end - begin) : end - begin;
  part.panels = (char*)linear.panels + panels.begin * panel_bytes(linear);
  if (linear.scales) {
    part.scales = linear.scales + panels.begin * scales_of_output(linear) * kPanel;
    part.sums = linear.sums + panels.begin * kPanel;
  }
  if (linear.bias) part.bias = (const char*)linear.bias + begin * (linear.dtype == kFloat32 ? 4 : 2);
  return part;
}

// With so many rows all that depends on their number is at its largest, for each of them, but what is rounded up to
// whole blocks.
OperandSizes operand_sizes(const Linear& linear) {
  constexpr int64_t kMany = 1024;
  OperandSizes most = {0, 0};
  for (int64_t rows : {int64_t(1), kOperandRows, kMany}) {
    const int64_t units = (rows + kOperandRows - 1) / kOperandRows, bytes = operand_bytes(linear, rows, 0);
    const int64_t unit = ((bytes + units - 1) / units + 63) / 64 * 64, spare = operand_bytes(linear, rows, 1) - bytes;
    most = {unit > most.unit ? unit : most.unit, spare > most.spare ? spare : most.spare};
  }
  return most;
}

int64_t operand_bytes(const Linear& linear, int64_t rows, int members) {
  if (linear.format == kCoded) return coded::operand_bytes(linear, rows, members);
#if defined(LSV_AMX)
  if (amx::takes(linear, rows)) return amx::operand_bytes(linear, rows, members);
#endif
  if (linear.format == kPlain) return plain::operand_bytes(linear, rows, members);
  return integer::operand_bytes(linear, rows, members);
}

void make_operand(Member& me, const Linear& linear, const Norm* norm, Rows x, int64_t rows, void* operand) {
  if (linear.format == kCoded) return coded::make_operand(me, linear, norm, x, rows, operand);
#if defined(LSV_AMX)
  if (amx::takes(linear, rows)) return amx::make_operand(me, linear, norm, x, rows, operand);
#endif
  if (linear.format == kPlain) plain::make_operand(me, linear, norm, x, rows, operand);
  else integer::make_operand(me, linear, norm, x, rows, operand);
}

void multiply(Member& me, const Linear& linear, const void* operand, int64_t rows, Rows out, Rows residual) {
  if (linear.format == kCoded) return coded::multiply(me, linear, operand, rows, out, residual);
#if defined(LSV_AMX)
  if (amx::takes(linear, rows)) return amx::multiply(me, linear, operand, rows, out, residual);
#endif
  if (linear.format == kPlain) plain::multiply(me, linear, operand, rows, out, residual);
  else integer::multiply(me, linear, operand, rows, out, residual);
}

bool feeds(const Linear& linear, const Linear& next, int64_t rows) {
#if defined(LSV_AMX)
  return amx::feeds(linear, next, rows);
#else
  return false;
#endif
}

void multiply_into(Member& me, const Linear& linear, const void* operand, int64_t rows, const Linear& next, void* fed) {
#if defined(LSV_AMX)
  amx::multiply_into(me, linear, operand, rows, next, fed);
#endif
}

}  // namespace lsv

using namespace lsv;

extern "C" {

int64_t lsv_panels(const Linear* linear) { return panels_of(*linear); }
int64_t lsv_panel_bytes(const Linear* linear) { return panel_bytes(*linear); }
int64_t lsv_inputs_padded(const Linear* linear) { return inputs_padded(*linear); }
int64_t lsv_scales_of_output(const Linear* linear) { return scales_of_output(*linear); }
void lsv_operand_sizes(const Linear* linear, OperandSizes* sizes) { *sizes = operand_sizes(*linear); }

void lsv_pack(const Linear* linear, const void* weights, const float* scales) {
  run([&](Member& me) { pack(me, *linear, weights, scales); });
}

// x [rows][inputs], rows `x_stride` apart -> out [rows][outputs], dense (half as wide with a gate).
int lsv_linear(const Linear* linear, const void* x, int64_t x_stride, int64_t rows, void* out) {
  return status_of([&] {
    Turn turn;
    Scratch scratch(operand_bytes(*linear, rows, turn.members()));
    int64_t width = linear->gate ? linear->outputs / 2 : linear->outputs;
    turn.run([&](Member& me) {
      make_operand(me, *linear, nullptr, {(void*)x, x_stride}, rows, scratch.data);
      me.barrier();
      multiply(me, *linear, scratch.data, rows, {out, width}, {nullptr, 0});
    });
  });
}

}
