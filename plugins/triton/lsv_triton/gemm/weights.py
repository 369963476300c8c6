"""Weights as the kernels for matrix products read them: of one linear layer, or of a layer's experts in one tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import triton
from torch.nn import functional

from lsv.offers import OpSpec
from lsv_runtime.ops import Bindable
from lsv_runtime.weights.codebook import ROUNDED, Codebook, from_nibbles
from lsv_runtime.weights.quantizer import Linear
from lsv_triton.availability import why_not_floats
from lsv_triton.device_table import float8_of, launch, takes_ptx

Values = Literal["plain", "even", "float8", "e4m3", "e5m2", "e2m1", "table"]
_KINDS: Mapping[str, Values] = {"even": "even", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "table": "table"}
"""Of codes, by ``Codebook.kind``."""

_TABLE_DTYPE = torch.float16
"""All values are exact in it, and loads of two bytes are not staged in shared memory one by one."""

_E2M1 = tuple(sign * size for sign in (1.0, -1.0) for size in (0, 0.5, 1, 1.5, 2, 3, 4, 6))
"""What codes are worth that are the bits of 4-bit floats (OCP Microscaling Formats 1.0, section 5.3.3)."""

_FARTHEST = 64
"""Whole numbers this far from zero, and 15 more, are exact in 16 bits."""

_ROUNDED_AWAY = 1e-5
"""What rounding to float32 can make of a multiple of a scale, in units of it."""


@dataclass(frozen=True, slots=True)
class Form:
    """What a kernel must know of weights when it is compiled.

    ``values`` says how codes are decoded: those that are evenly spaced are ``first + step * code``. ``group`` inputs
    share a scale, 0 for all of them; with int8 that is a scale of the rows. ``codes`` is how many an element of the
    packed weights holds.
    """

    values: Values = "plain"
    group: int = 0
    first: float = 0.0
    step: float = 1.0
    codes: int = 1

    @classmethod
    def of(cls, layer: Any) -> Form:
        if layer.format in ("coded", "coded_static"):
            return cls.of_coding(layer.codebook, layer.layer.inputs)
        if layer.format == "int4":
            return cls("even", layer.group, -8.0, 1.0, codes=4)
        return cls(group=layer.group if layer.format == "int8" else 0)

    @classmethod
    def of_coding(cls, codebook: Codebook, inputs: int) -> Form:
        # A scale of all inputs may wait until they are added up, an offset may not.
        group = codebook.group if codebook.group and codebook.group < inputs else inputs if codebook.offsets else 0
        first, second = codebook.table[:2]
        even = (first, second - first) if codebook.kind == "even" else (0.0, 1.0)
        values = "e2m1" if codebook.table == _E2M1 else _KINDS[codebook.kind]
        return cls(values, group, *even, codes=4 if codebook.bits == 4 else 1)

    @property
    def whole(self) -> bool:
        """Whether codes are whole numbers of 4 bits, but for scales and offsets."""
        whole = self.values == "even" and self.codes == 4 and self.step == 1 and self.first.is_integer()
        return whole and abs(self.first) <= _FARTHEST

    def span(self, wanted: int) -> int:
        """Inputs that are multiplied at once: as wanted, half as many where a step has four times of them, or fewer
        where small groups of a power of two would end inside.
        """
        wanted = wanted if self.codes == 1 else max(16, wanted // 2)
        small = 16 <= self.group < wanted and self.group & (self.group - 1) == 0
        return self.group if small else wanted


@dataclass(frozen=True, slots=True)
class Packed:
    """Weights of linear layers that are alike: one, or all experts of a layer.

    weight [layers, N, columns], or int16 in tiles of ``tile`` outputs [layers, N rounded up, columns], see ``in_fours``
    and ``in_tiles``;
    scales and offsets float32 [layers, groups, N], firsts int8 likewise; order int32 [layers, K], bias [layers, N];
    table float32 [codes]; input_scales float32 [layers, 1] of layers with static activations, which their scales and
    offsets hold, too. ``firsts`` are what code 0 means in units of the scales, if that is a whole number.
    A step of the kernel takes ``span`` inputs for each code of an element; ``ptx`` is ``takes_ptx``.
    """

    form: Form
    outputs: int
    inputs: int
    span: int
    weight: torch.Tensor
    scales: torch.Tensor | None = None
    offsets: torch.Tensor | None = None
    order: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    table: torch.Tensor | None = None
    tile: int = 1
    firsts: torch.Tensor | None = None
    ptx: bool = False
    input_scales: torch.Tensor | None = None

    @property
    def whole(self) -> bool:
        """Whether codes can be multiplied as whole numbers, a step at a time, and scaled afterwards."""
        form = self.form
        exact = form.whole and form.group % self.span == 0
        return exact and (self.offsets is None or self.firsts is not None)

    @property
    def groups(self) -> int:
        return 1 if self.scales is None else self.scales.shape[1]


class Stack:
    """Takes the weights of linear layers when these have been filled, and keeps them as buffers of ``owner``.

    A single layer's tensors stay where they are if they lie as they should. ``op`` is the product's name in the device
    table. ``rounds`` is for weights in e4m3 that rows in e4m3 are multiplied with: as they are where the matrix unit
    takes them, which ``native`` tells.
    """

    def __init__(self, owner: Bindable, layers: Sequence[Linear], prefix: str = "", *, rounds: bool = False) -> None:
        first = layers[0]
        self.rounds, self.input_bound = rounds, getattr(first, "input_bound", math.inf)
        self.native: torch.dtype | None = None
        self._whole = [False] * len(layers)
        self._layers, self._owner, self._prefix = tuple(layers), owner, prefix
        self._format, self._form = first.format, Form.of(first)
        self.outputs, self.inputs = first.layer.width, first.layer.inputs
        self.op = "int8" if first.format == "int8" else "product"
        self._tensors: dict[str, torch.Tensor] = {}
        self._packed: Packed | None = None

    @property
    def packed(self) -> Packed:
        """What has been taken."""
        assert self._packed is not None, "weights are used before they have been filled"
        return self._packed

    def holds(self, layer: Any) -> bool:
        """Whether a layer's weights are like those of the first."""
        first: Any = self._layers[0]
        same = (layer.format, Form.of(layer), layer.layer.bias) == (self._format, self._form, first.layer.bias)
        return same and getattr(layer, "codebook", None) == getattr(first, "codebook", None)

    def take(self, number: int) -> None:
        """Take the weights of a layer that has just been filled, one tensor after the other."""
        layer: Any = self._layers[number]
        parts = {**_PARTS[self._format], "bias": "bias"}
        device = getattr(layer, parts["weight"]).device
        span = self._form.span(launch(self.op, device)["span"])
        for name, held in parts.items():
            if getattr(layer, held, None) is not None:
                self._take_tensor(name, number, layer, held, span)
        if self._form.values == "table" and "table" not in self._tensors:
            self._tensors["table"] = torch.tensor(layer.codebook.table, dtype=_TABLE_DTYPE, device=device)
        static = "input_scales" in self._tensors
        if static:
            self._scale_by_inputs(number)
        form, tensors, float8 = self._form, dict(self._tensors), float8_of()
        codes = self.rounds or (static and form.values == "e4m3" and not form.group)
        self.native = float8 if codes else None
        if form.values == "e4m3" and float8 == torch.float8_e4m3fn:
            form = replace(form, values="float8")
        if self.native is not None:
            form, tensors["weight"] = Form(group=form.group), tensors["weight"].view(self.native)
            if self.native == torch.float8_e4m3fnuz:
                halve(self._tensors["weight"][number])
                self._tensors["scales"][number] *= 4 if static else 2  # rows are halved where theirs is not stored
        if not all(self._whole):
            tensors.pop("firsts", None)
        tile = self._tile(device) if form.codes == 4 else 1
        self._packed = Packed(form, self.outputs, self.inputs, span, **tensors, tile=tile, ptx=takes_ptx())

    def tensors_of(self, number: int) -> dict[str, torch.Tensor]:
        """What the product reads of one layer's weights, by name: places in the stack, not copies."""
        packed = self.packed
        found = {name: getattr(packed, name) for name in _HELD}
        return {name: tensor[number] for name, tensor in found.items() if tensor is not None}

    def _scale_by_inputs(self, number: int) -> None:
        """Lay the scale of a layer's activations on those of its weights."""
        for name in ("scales", "offsets"):
            if name in self._tensors:
                self._tensors[name][number] *= self._tensors["input_scales"][number]

    def _tile(self, device: torch.device) -> int:
        """Outputs of the smallest tile that a product reads."""
        return launch(f"{self.op}.few", device)["outputs"]

    def _take_tensor(self, name: str, number: int, layer: Any, held: str, span: int) -> None:
        nibbles = name == "weight" and self._form.codes == 4
        numbers = name in ("scales", "offsets", "input_scales")
        if len(self._layers) == 1 and not nibbles and not numbers:
            self._tensors[name] = getattr(layer, held).detach()[None]
            return
        if name == "input_scales":
            self._put(name, number, getattr(layer, held))
            return
        tensor = layer.release(held)
        if nibbles:
            tensor = in_tiles(in_fours(tensor, self.inputs, span), span, self._tile(tensor.device))
        elif numbers:
            tensor = tensor.reshape(self.outputs, -1).T
            if name == "offsets" and self._form.whole:
                self._take_firsts(number, tensor)
        self._put(name, number, tensor)

    def _take_firsts(self, number: int, offsets: torch.Tensor) -> None:
        """What code 0 means in units of the scale, if that is a whole number everywhere, as with zero points."""
        scales = self._tensors["scales"][number]
        firsts = self._form.first + torch.where(offsets == 0, 0.0, offsets / scales)
        whole = ((firsts - firsts.round()).abs() <= _ROUNDED_AWAY) & (firsts.abs() <= _FARTHEST)
        self._whole[number] = whole.is_meta or bool(whole.all())
        self._put("firsts", number, firsts.nan_to_num().clamp(-_FARTHEST, _FARTHEST).round().to(torch.int8))

    def _put(self, name: str, number: int, tensor: torch.Tensor) -> None:
        key, shape = f"{self._prefix}packed_{name}", (len(self._layers), *tensor.shape)
        place = self._owner._buffers.get(key)
        if place is None or place.shape != shape or place.device != tensor.device:
            place = self._owner.keep(key, torch.empty(shape, dtype=tensor.dtype, device=tensor.device))
        place[number] = tensor
        self._tensors[name] = place


_CODED = {"weight": "codes", "scales": "scales", "offsets": "offsets", "order": "order"}
_PARTS: Mapping[str, Mapping[str, str]] = {
    "plain": {"weight": "weight"},
    "coded": _CODED,
    "coded_static": {**_CODED, "input_scales": "input_scale"},
    "int8": {"weight": "codes", "scales": "scales"},
    "int4": {"weight": "nibbles", "scales": "scales"},
}
"""By format, what a module calls the tensors."""
_HELD = ("weight", "scales", "offsets", "order", "bias", "firsts", "input_scales")
"""Tensors of ``Packed`` that hold something of each layer."""


def why_not_weights(spec: OpSpec) -> str | None:
    """None, or why weights of this format can't be read, or rows of this dtype."""
    unknown = set(spec.format.split("+")) - _PARTS.keys()
    if unknown:
        return f"reads {', '.join(_PARTS)} weights, not {', '.join(sorted(unknown))}"
    return why_not_floats(spec)


def halve(codes: torch.Tensor) -> None:
    """Codes uint8 of e4m3fn become those of e4m3fnuz, of half the value: the same bits, but that zero has no sign and
    only its negative is not a number. In place.
    """
    nothing, zero = (codes & 0x7F) == 0x7F, codes == 0x80
    codes.masked_fill_(zero, 0).masked_fill_(nothing, 0x80)


def why_not_rounded(spec: OpSpec) -> str | None:
    """None, or why activations are not rounded to e4m3 for weights in it."""
    if "float8_e4m3fn" not in spec.flags or spec.flags & {"offsets", "ordered"}:
        return "weights are not e4m3"
    if ROUNDED not in spec.flags:
        return "activations are not meant to be rounded"
    if spec.shape.get("group", 0) % 64:
        return f"groups of {spec.shape['group']} inputs end inside a product's steps of 64"
    missing = why_not_weights(spec)
    if missing is None and not triton.knobs.runtime.interpret and float8_of() is None:
        return "the GPU multiplies no 8-bit floats"
    return missing


def in_fours(pairs: torch.Tensor, inputs: int, span: int) -> torch.Tensor:
    """Bytes of two neighbours each, uint8 [N, ceil(K / 2)] -> int16 [N, steps * span], whose elements hold codes of
    inputs that are ``span`` apart, the first in the last four bits. Two of them fill a register of a GPU as two weights
    of 16 bits do, so that codes become weights without a change of places.
    """
    codes = from_nibbles(pairs)[:, :inputs]
    codes = functional.pad(codes, (0, -inputs % (4 * span))).view(len(pairs), -1, 4, span)
    low, high = codes[:, :, 0] | codes[:, :, 1] << 4, codes[:, :, 2] | codes[:, :, 3] << 4
    return torch.stack((low, high), dim=-1).view(torch.int16).flatten(1)


def codes_of(packed: Packed, ids: torch.Tensor) -> torch.Tensor:
    """The codes of some outputs of a single layer, one an input: ids int64 [T] -> uint8 or int8 [T, inputs]."""
    weight = packed.weight[0]
    if packed.form.codes == 1:
        return weight[ids]
    tile, span = packed.tile, packed.span
    tiles = weight.view(-1, weight.shape[1] // span, tile, span)
    fours = tiles[ids // tile, :, ids % tile].int()
    codes = torch.stack([fours >> shift & 15 for shift in (0, 4, 8, 12)], dim=2)
    return codes.to(torch.uint8).flatten(1)[:, : packed.inputs]


def in_tiles(rows: torch.Tensor, span: int, tile: int) -> torch.Tensor:
    """[N, steps * span] -> [N rounded up to ``tile``, steps * span], where a step's elements of ``tile`` outputs lie
    together, so that a product reads them in one piece.
    """
    rows = functional.pad(rows, (0, 0, 0, -len(rows) % tile))
    return rows.view(-1, tile, rows.shape[1] // span, span).transpose(1, 2).reshape(rows.shape)
