"""Linear layers over packed panels of weights: the layout and the arithmetic are those of native/gemm/gemm.h."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from lsv.offers import OpSpec
from lsv_cpu import arena, native
from lsv_cpu.kernels import RoundInt4, RoundInt8, selected_library, why_not_native
from lsv_runtime.nn.latent import HeadProduct
from lsv_runtime.nn.mlp import GatedMLP
from lsv_runtime.ops import Bindable, GatedKernel, Kernel, LoadKernel
from lsv_runtime.weights.quantizer import Linear
from lsv_runtime.weights.static_coded import RoundingKernel

GATES: Mapping[str, int] = {"silu": 1, "gelu": 2, "gelu_new": 3, "gelu_pytorch_tanh": 3, "relu": 4}
"""``Gate`` of native/gemm/gemm.h by the name of an activation."""


_PANEL = 32
"""``kPanel`` of native/gemm/gemm.h."""


class LinearRecord(ctypes.Structure):
    """``Linear`` of native/gemm/gemm.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("dtype", "format", "gate", "group")),
        *((name, ctypes.c_int64) for name in ("outputs", "inputs")),
        *((name, ctypes.c_void_p) for name in ("panels", "scales", "sums", "bias", "table", "order")),
        *((name, ctypes.c_int32) for name in ("bits", "offset")),
        *((name, ctypes.c_void_p) for name in ("added", "adapted", "rescaled", "rescale", "input_scale")),
    ]


class OperandSizes(ctypes.Structure):
    """``OperandSizes`` of native/gemm/gemm.h."""

    _fields_ = [(name, ctypes.c_int64) for name in ("unit", "spare")]


@dataclass(frozen=True, slots=True)
class Stored:
    """A linear layer's weights as its module holds them."""

    weight: torch.Tensor
    scales: torch.Tensor | None = None
    """Of codes with offsets these are stacked on the scales."""

    values: torch.Tensor | None = None
    """What codes stand for, bfloat16 [16 or 256]."""

    order: torch.Tensor | None = None
    """The input of each column, if they are not in order."""

    input_scale: torch.Tensor | None = None
    """float32 [1]: rows become e4m3 in units of it, and it is in ``scales``."""


Take = Callable[[Linear], Stored]


def _take_plain(module: Linear) -> Stored:
    return Stored(module.release("weight").contiguous())


def _take_int8(module: Linear) -> Stored:
    return Stored(module.release("codes"), module.release("scales"))


def _take_int4(module: Any) -> Stored:
    return Stored(module.release("nibbles"), module.release("scales"))


def _take_coded(module: Any) -> Stored:
    codebook, scales = module.codebook, module.release("scales")
    if codebook.offsets:
        scales = torch.stack((scales, module.release("offsets")))
    values = torch.tensor(codebook.table, dtype=torch.bfloat16)
    return Stored(module.release("codes"), scales, values, module.order)


def _take_static(module: Any) -> Stored:
    stored = _take_coded(module)
    assert stored.scales is not None, "codes have scales"
    return replace(stored, scales=stored.scales * module.input_scale, input_scale=module.input_scale)


FORMATS: Mapping[str, int] = {"plain": 0, "int8": 1, "int4": 2, "coded": 3, "coded_static": 3}
"""``Format`` of native/gemm/gemm.h, by the format of a module."""

TAKE: Mapping[str, Take] = {
    "plain": _take_plain,
    "int8": _take_int8,
    "int4": _take_int4,
    "coded": _take_coded,
    "coded_static": _take_static,
}
"""How each format's weights are taken from their module."""


ROUNDING: Mapping[str, LoadKernel] = {"round.int8": RoundInt8, "round.int4": RoundInt4}
"""Kernels that quantise weights while they are loaded; layers that do so have the op as a child module."""


def _keep(module: Bindable, name: str, size: int) -> torch.Tensor:
    """The module's buffer ``name``: the one left from an earlier load, or a new one."""
    held = module._buffers.get(name)
    return held if held is not None else module.keep(name, arena.weights.take(size))


class PanelLinear(GatedKernel, RoundingKernel):
    """``x @ weight.T + bias`` over packed panels. With a ``gate`` half of the outputs are gate and half are up, and the
    result is ``activation(gate) * up``.
    """

    def __init__(self, module: Linear, spec: OpSpec, gate: int = 0) -> None:
        self._module, self._gate = module, gate
        self._library = selected_library()
        self.record = LinearRecord()
        self._width = module.layer.width // 2 if gate else module.layer.width
        self._held: tuple[torch.Tensor | None, ...] = ()
        for child in module.children():
            if isinstance(child, Bindable) and child.op in ROUNDING:
                child.use(ROUNDING[child.op](child, child.spec()))

    def takes(self, name: str) -> bool:
        return (self._module.format, name) == ("plain", "weight")

    def packed_bytes(self) -> int:
        record, library, module = self._shape(), self._library, self._module
        panels = library.lsv_panels(ctypes.byref(record))
        size = panels * library.lsv_panel_bytes(ctypes.byref(record))
        if record.format in (FORMATS["int8"], FORMATS["int4"]):
            size += panels * _PANEL * 4 * (library.lsv_scales_of_output(ctypes.byref(record)) + 1)
        kept = (getattr(module, name, None) for name in ("bias", "order"))
        return int(size) + sum(tensor.nbytes for tensor in kept if tensor is not None)

    def _shape(self) -> LinearRecord:
        """The layer's record without its weights."""
        module: Any = self._module
        layer, codebook = module.layer, getattr(module, "codebook", None)
        group = getattr(module, "group", 0) if codebook is None else codebook.group
        record = LinearRecord(
            native.DTYPES[layer.dtype], FORMATS[module.format], self._gate, group, layer.width, layer.inputs
        )
        if codebook is not None:
            record.bits, record.offset = codebook.bits, codebook.offsets
        return record

    def pack(self) -> None:
        library = self._library
        stored, record = TAKE[self._module.format](self._module), self._shape()
        if stored.values is not None:
            record.table = stored.values.data_ptr()
            record.order = None if stored.order is None else stored.order.data_ptr()
            record.input_scale = None if stored.input_scale is None else stored.input_scale.data_ptr()
        panels = library.lsv_panels(ctypes.byref(record))
        packed = _keep(self._module, "packed", panels * library.lsv_panel_bytes(ctypes.byref(record)))
        record.panels = packed.data_ptr()
        if stored.scales is not None and stored.values is None:
            scales_of_output = library.lsv_scales_of_output(ctypes.byref(record))
            record.scales = _keep(self._module, "scales_packed", panels * scales_of_output * _PANEL * 4).data_ptr()
            record.sums = _keep(self._module, "sums_packed", panels * _PANEL * 4).data_ptr()
        bias = getattr(self._module, "bias", None)
        record.bias = None if bias is None else bias.data_ptr()
        scales = stored.scales
        library.lsv_pack(ctypes.byref(record), stored.weight.data_ptr(), None if scales is None else scales.data_ptr())
        self.record, self._held = record, (bias, stored.values, stored.order, stored.input_scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._multiply(self.record, x, self._width)

    def ungated(self, x: torch.Tensor) -> torch.Tensor:
        """The product of a layer with a gate before that: all gates, then all ups [..., outputs].

        Without a gate its panels are those of a layer whose outputs are 16 gates and 16 ups by turns.
        """
        if not self._gate:
            return self.forward(x)
        width = self._library.lsv_panels(ctypes.byref(self.record)) * _PANEL
        record = LinearRecord.from_buffer_copy(self.record)
        record.gate, record.outputs, record.bias = 0, width, None
        turns = self._multiply(record, x, width).unflatten(-1, (-1, 2, _PANEL // 2))
        both = turns.transpose(-2, -3).flatten(-2)[..., : self._width].flatten(-2)
        bias = self._held[0]
        return both if bias is None else both + bias

    def unrounded(self, x: torch.Tensor) -> torch.Tensor:
        """Rows stay exact; the panels' scales hold that of the activations, which the results are divided by."""
        record, (bias, *_, scale) = LinearRecord.from_buffer_copy(self.record), self._held
        assert scale is not None, "asked only of layers with static activations"
        assert not self._gate, "asked only of products"
        record.input_scale = record.bias = None
        y = self._multiply(record, x, self._width).float() / scale
        return (y if bias is None else y + bias.float()).to(x.dtype)

    def _multiply(self, record: LinearRecord, x: torch.Tensor, width: int) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        out = torch.empty((*x.shape[:-1], width), dtype=x.dtype)
        status = self._library.lsv_linear(
            ctypes.byref(record), rows.data_ptr(), rows.stride(0), rows.shape[0], out.data_ptr()
        )
        if status:
            raise native.refusal(status)
        return out


class PanelHeads(Kernel):
    """``lsv_runtime.nn.latent.HeadProduct``. All heads' panels are in one buffer, head by head."""

    def __init__(self, module: HeadProduct, spec: OpSpec) -> None:
        self._module, self._library = module, selected_library()
        _, outputs, inputs = module.shape
        self._record = LinearRecord(native.DTYPES[module.dtype], FORMATS["plain"], outputs=outputs, inputs=inputs)

    def pack(self) -> None:
        module, library, record = self._module, self._library, self._record
        weight = module.release("weight").contiguous()
        size = library.lsv_panels(ctypes.byref(record)) * library.lsv_panel_bytes(ctypes.byref(record))
        packed = _keep(module, "packed", len(weight) * size)
        for head, weights in enumerate(weight):
            record.panels = packed.data_ptr() + head * size
            library.lsv_pack(ctypes.byref(record), weights.data_ptr(), None)
        record.panels = packed.data_ptr()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.stride(-1) != 1:
            x = x.contiguous()
        rows, heads, _ = x.shape
        out = torch.empty((rows, heads, self._record.outputs), dtype=x.dtype)
        status = self._library.lsv_multiply_heads(
            ctypes.byref(self._record), heads, x.data_ptr(), x.stride(0), x.stride(1), rows, out.data_ptr()
        )
        if status:
            raise native.refusal(status)
        return out


class PanelMLP(Kernel):
    """``lsv_runtime.nn.mlp.GatedMLP`` with the gate inside the first product: gate and up are never stored, unless
    adapters add to them.
    """

    def __init__(self, module: GatedMLP, spec: OpSpec) -> None:
        self._module = module
        gate_up, down = module.gate_up.linear, module.down.linear
        self.gate_up = PanelLinear(gate_up, gate_up.spec(), GATES[module.act.name])
        self.down = PanelLinear(down, down.spec())
        gate_up.use(self.gate_up)
        down.use(self.down)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        module = self._module
        adapters = module.gate_up.adapters
        if adapters is None or not adapters.adds:
            return module.down(self.gate_up.forward(x))  # type: ignore[no-any-return]
        return module.down(module.act(adapters.add(self.gate_up.ungated(x), x)))  # type: ignore[no-any-return]


def use_panels(linear: Any) -> PanelLinear:
    """Let panels serve a linear layer, of which ``why_not_panels`` has nothing to say."""
    kernel = PanelLinear(linear, linear.spec())
    linear.use(kernel)
    return kernel


def find_operand_sizes(layers: Iterable[LinearRecord]) -> OperandSizes:
    """The largest of all layers."""
    library, most, sizes = selected_library(), OperandSizes(), OperandSizes()
    for layer in layers:
        library.lsv_operand_sizes(ctypes.byref(layer), ctypes.byref(sizes))
        most.unit, most.spare = max(most.unit, sizes.unit), max(most.spare, sizes.spare)
    return most


def why_not_panels(spec: OpSpec) -> str | None:
    """None, or why a layer of this format can't be packed."""
    if not set(spec.format.split("+")) <= TAKE.keys():
        return f"packs {', '.join(TAKE)} weights, not {spec.format}"
    return why_not_native(spec)


def why_not_gated(spec: OpSpec) -> str | None:
    """None, or why a gated MLP can't be run by ``PanelMLP``."""
    if not spec.flags & GATES.keys():
        return f"has no gate like {', '.join(sorted(spec.flags))}"
    return why_not_panels(spec)
