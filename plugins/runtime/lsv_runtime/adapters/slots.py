"""Adapters in a model's linear layers: slots of fixed sizes, and the op ``lora.add`` over them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import nn

from lsv.offers import OpSpec
from lsv_base.errors import ConfigError
from lsv_runtime import products
from lsv_runtime.adapters.checkpoint import Pair
from lsv_runtime.adapters.experts import ExpertSlots, attach_experts
from lsv_runtime.adapters.rows import with_one_more
from lsv_runtime.adapters.shares import Share, cut_share, parts_of
from lsv_runtime.adapters.vocabulary import VocabularySlots, attach_vocabulary
from lsv_runtime.nn.attention import CrossAttention
from lsv_runtime.nn.latent import LatentAttention
from lsv_runtime.nn.linear import Column, Row
from lsv_runtime.nn.model import ActiveAdapters, Model
from lsv_runtime.nn.moe import MoE
from lsv_runtime.nn.step import TokenAdapters
from lsv_runtime.ops import ADAPTERS, Bindable, dtype_name
from lsv_runtime.weights.quantizer import Linear, LinearLayer


class AdapterSlots(Bindable):
    """The adapters of a linear layer: y [..., outputs] and x [..., inputs] -> y + the adapters' outputs.

    Each projection that the layer fuses has its own pair of matrices; the ``a`` matrices are stacked. The matrices are
    split over the ranks like the layer: ``b`` by its columns with the outputs, ``a`` by its columns with the inputs.
    Partial results of ``a`` are summed together with the layer's own. The layer's own outputs may be rescaled first,
    see ``lsv_runtime.adapters.magnitudes``.
    """

    op: ClassVar[str] = ADAPTERS
    row_invariant: ClassVar[bool] = True

    linear: Linear | None = None
    """The layer itself; None for slots outside a model."""

    def __init__(self, layer: LinearLayer, count: int, rank: int, dtype: torch.dtype, active: ActiveAdapters) -> None:
        super().__init__()
        self.layer, self.rank, self.active = layer, rank, active
        self.sources = tuple(dict.fromkeys(layer.part_names))
        """The projections as stored, each once: several parts may share one."""
        self.ranks = array("i", [0] * count)
        """The rank of the adapter in each slot; 0 if it skips this layer. Kernels read this array in place."""
        self.rescaled = array("i", [0] * count)
        """By slot, whether the layer's own results are rescaled."""
        self.register_buffer("rescale", None, persistent=False)
        shapes = {"a": (len(self.sources), rank, layer.inputs), "b": (rank, layer.width)}
        for name, shape in shapes.items():
            self.register_buffer(name, torch.empty((count, *shape), dtype=dtype, device="meta"), persistent=False)

    @property
    def parts(self) -> Iterator[tuple[int, int, int]]:
        """For each fused part: the index of its source, and its range [start, stop) of the layer's outputs."""
        return parts_of(self.layer)

    def spec(self) -> OpSpec:
        shape = {"in": self.layer.inputs, "out": self.layer.width, "rank": self.rank, "sources": len(self.sources)}
        dtype = dtype_name(self.layer.dtype)
        same = self.get_buffer("a").dtype == self.layer.dtype
        return OpSpec(self.op, dtype, shape=shape, flags=frozenset(() if same else ("cast",)))

    @property
    def adds(self) -> bool:
        """False in a step without adapters, or if no adapter changes this layer."""
        return self.active.tokens is not None and any(self.ranks)

    def add(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """``y`` with the contributions of the adapters of the step's tokens."""
        tokens = self.active.tokens
        if tokens is None or not self.adds:
            return y
        if x.numel() != len(tokens.slots) * x.shape[-1]:
            raise RuntimeError(f"the input rows of {self.layer.name} are not the tokens of the step")
        return self(y, x, tokens)  # type: ignore[no-any-return]

    def reference(self, y: torch.Tensor, x: torch.Tensor, tokens: TokenAdapters) -> torch.Tensor:
        """Rescales, then adds tile by tile. Tiles have equal sizes, so a row's bits do not depend on other rows."""
        a, b = self.get_buffer("a"), self.get_buffer("b")
        places, slots = tokens.tiles, tokens.tile_slots
        rows, out = with_one_more(x).to(a.dtype)[places], with_one_more(y)
        self.rescale_rows(out, tokens)
        low = products.matmul(rows, a[slots].flatten(1, 2).mT).view(*places.shape, len(self.sources), self.rank)
        for source, start, stop in self.parts:
            added = products.matmul(low[:, :, source], b[slots][:, :, start:stop])
            out[places, start:stop] = (out[places, start:stop].float() + added.float()).to(y.dtype)
        return out[:-1].view(y.shape)

    def rescale_rows(self, y: torch.Tensor, tokens: TokenAdapters) -> None:
        """Rescale, in place, the rows of y [T, outputs] whose adapters have magnitudes."""
        rescale = self._buffers["rescale"]
        if rescale is None:
            return
        for slot, wanted in enumerate(self.rescaled):
            if wanted:
                rows = (tokens.slots == slot).nonzero().flatten()
                y[rows] = (y[rows].float() * rescale[slot, 0] + rescale[slot, 1]).to(y.dtype)

    # Filling slots

    def cut(self, pairs: dict[str, Pair]) -> Share:
        """This rank's share of an adapter. Raises ``CheckpointError`` if the matrices have wrong sizes."""
        return cut_share(self.layer, pairs, self.get_buffer("a").dtype)

    def fill(self, slot: int, share: Share | None, rescale: torch.Tensor | None = None) -> None:
        """Put a share from ``cut`` into a slot. None means that the adapter does not change this layer.

        With ``rescale``, float32 [2, outputs], the whole layer's results are multiplied by the first row, and the
        second is added.
        """
        held = self.get_buffer("a")[slot], self.get_buffer("b")[slot]
        if self.ranks[slot]:
            for matrix in held:
                matrix.zero_()
        self.ranks[slot] = rank = 0 if share is None else share.a.shape[1]
        self.rescaled[slot] = rescale is not None
        if share is not None:
            held[0][:, :rank].copy_(share.a)
            held[1][:rank].copy_(share.b)
        if rescale is not None:
            held[1].mul_(rescale[0])
            self._room()[slot] = rescale

    def _room(self) -> torch.Tensor:
        """float32 [slots, 2, outputs]: the rescaling of each slot's adapter. Allocated when first needed."""
        room = self._buffers["rescale"]
        if room is None:
            shape = (len(self.ranks), 2, self.layer.width)
            room = self.keep("rescale", torch.zeros(shape, device=self.get_buffer("b").device))
            self.pack()
        return room


class Adapted(nn.Module):
    """A linear layer with adapters, in a model without ``Column`` and ``Row``."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self.linear = linear
        self.adapters: AdapterSlots | None = None

    @property
    def weight(self) -> torch.Tensor:
        return self.linear.get_parameter("weight")

    @property
    def layer(self) -> LinearLayer:
        return self.linear.layer

    @property
    def format(self) -> str:
        return self.linear.format

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.adapters is not None
        return self.adapters.add(self.linear(x), x)


Slots = AdapterSlots | VocabularySlots | ExpertSlots
"""The adapters of a layer, an embedding, a head or an expert's layer."""


def attach(model: Model, count: int, rank: int, dtype: torch.dtype) -> dict[str, Slots]:
    """Give a declared model's linear layers, embedding and head slots for ``count`` adapters.

    Returns the slots by the names of the projections that each layer fuses. Routers and encoders get none. Raises
    ``ConfigError`` for a model with cross-attention.
    """
    if any(isinstance(module, CrossAttention) for module in model.modules()):
        raise ConfigError(
            "enable_lora: adapters of a model with cross-attention are not supported; leave enable_lora out",
            param="enable_lora",
        )
    model.adapters = active = ActiveAdapters()
    found: dict[str, Slots] = {}
    for holder in list(_holders(model.layers)):
        holder.adapters = slots = AdapterSlots(holder.linear.layer, count, rank, dtype, active)
        slots.__dict__["linear"] = holder.linear  # a plain attribute: it is already a child of its holder
        holder.linear.measured = True
        found |= dict.fromkeys(slots.sources, slots)
    if not found:
        raise ConfigError(
            "enable_lora: no layer of this model can have adapters; leave enable_lora out", param="enable_lora"
        )
    found |= attach_experts(model, count, dtype, active)
    return found | {slots.name: slots for slots in attach_vocabulary(model, count, dtype)}


def allocate(model: Model, device: torch.device) -> None:
    """Allocate all slots, empty."""
    for module in model.modules():
        if isinstance(module, AdapterSlots):
            for name in ("a", "b"):
                module.keep(name, torch.zeros_like(module.get_buffer(name), device=device))
            module.pack()


def _holders(module: nn.Module) -> Iterator[Column | Row | Adapted]:
    """The linear layers below a module that compute all tokens of a step. Latent attention takes ``kv_b`` apart, where
    it computes with latents, so that it never sees what an adapter adds.
    """
    for name, child in list(module.named_children()):
        if isinstance(module, LatentAttention) and name == "kv_b":
            continue
        if isinstance(child, Column | Row):
            yield child
        elif isinstance(child, Linear) and not isinstance(module, Bindable):
            adapted = Adapted(child)
            setattr(module, name, adapted)
            yield adapted
        elif not isinstance(child, MoE):
            yield from _holders(child)
