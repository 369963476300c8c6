"""Adapters of experts: each expert's layers have matrices of their own, and are given some of a step's tokens alone.

Slots take memory only while they hold something, for there may be thousands of layers and few adapters are for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from lsv_base.errors import CheckpointError
from lsv_runtime import products
from lsv_runtime.adapters.checkpoint import Pair
from lsv_runtime.adapters.rows import in_tiles, with_one_more
from lsv_runtime.adapters.shares import Share, cut_share, parts_of
from lsv_runtime.nn.linear import Column, Row
from lsv_runtime.nn.model import ActiveAdapters, Model
from lsv_runtime.nn.moe import MoE
from lsv_runtime.weights.quantizer import LinearLayer


class RoutedAdapters:
    """What the experts of one mixture share: which of a step's tokens the one that is computed is given."""

    def __init__(self, moe: MoE, count: int, active: ActiveAdapters) -> None:
        self.moe, self.active = moe, active
        self.layers = [0] * count
        """By slot, the layers for which it holds something."""
        self.rows: torch.Tensor | None = None

    @property
    def adds(self) -> bool:
        return self.active.tokens is not None and any(self.layers)

    def add_each(
        self, part: str, y: torch.Tensor, x: torch.Tensor, experts: torch.Tensor, tokens: torch.Tensor
    ) -> torch.Tensor:
        """To y [P, outputs] of the experts' ``part``, given x [P, inputs], in place; by experts and tokens [P]."""
        for number in experts.unique().tolist():  # type: ignore[no-untyped-call]
            places = (experts == number).nonzero().flatten()
            layer: Any = getattr(self.moe.experts[number], part)
            self.rows = tokens[places]
            y[places] = layer.adapters.add(y[places], x[places])
        return y

    def slots(self) -> torch.Tensor:
        """int32 [R]: the slots of the tokens that the expert is given."""
        assert self.active.tokens is not None
        assert self.rows is not None
        return self.active.tokens.slots[self.rows]


class ExpertSlots(nn.Module):
    """The adapters of one expert's linear layer: y [R, outputs] and x [R, inputs] -> y + what they add."""

    def __init__(self, layer: LinearLayer, routed: RoutedAdapters, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer, self.routed, self.dtype = layer, routed, dtype
        self.sources = tuple(dict.fromkeys(layer.part_names))
        self.used: list[int] = []

    @property
    def adds(self) -> bool:
        return bool(self.used) and self.routed.adds

    def add(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if not self.adds:
            return y
        out, given, slots = with_one_more(y), with_one_more(x).to(self.dtype), self.routed.slots()
        for slot in self.used:
            a, b = self.get_buffer(f"a{slot}"), self.get_buffer(f"b{slot}")
            for places in in_tiles(slots, slot):
                low = products.matmul(given[places], a.flatten(0, 1).T).view(-1, *a.shape[:2])
                for source, start, stop in parts_of(self.layer):
                    added = products.matmul(low[:, source], b[:, start:stop])
                    out[places, start:stop] = (out[places, start:stop].float() + added.float()).to(y.dtype)
        return out[:-1].view(y.shape)

    def cut(self, pairs: dict[str, Pair]) -> Share:
        """What this rank holds of an adapter. Raises ``CheckpointError`` for what does not fit, or is not served."""
        kernel = self.routed.moe.kernel
        if kernel is not None and not (kernel.keeps_parts or kernel.adapts_parts):
            raise CheckpointError(
                f"{self.layer.name}: {type(kernel).__name__} computes all experts together, without their adapters: "
                "start with --reference-ops, or merge the adapter into its model's weights"
            )
        if any(pair.magnitude is not None for pair in pairs.values()):
            raise CheckpointError(f"{self.layer.name}: use_dora is not served for experts")
        return cut_share(self.layer, pairs, self.dtype)

    def fill(self, slot: int, share: Share | None, device: torch.device) -> None:
        """Put into a slot what ``cut`` gave; None is an adapter that leaves the layer as it is."""
        self.routed.layers[slot] += (share is not None) - (slot in self.used)
        self.used = sorted({*self.used, slot} if share is not None else {*self.used} - {slot})
        for name in "ab":
            matrix = None if share is None else getattr(share, name).to(device)
            self.register_buffer(f"{name}{slot}", matrix, persistent=False)


def attach_experts(
    model: Model, count: int, dtype: torch.dtype, active: ActiveAdapters
) -> Iterator[tuple[str, ExpertSlots]]:
    """Give the linear layers of a declared model's experts slots for ``count`` adapters; by what they fuse.

    Experts that are spread over ranks get none: no rank could take all of an adapter.
    """
    for moe in [module for module in model.layers.modules() if isinstance(module, MoE) and module.spread is None]:
        for slots in attach_to(moe, count, dtype, active):
            yield from ((name, slots) for name in slots.sources)


def attach_to(moe: MoE, count: int, dtype: torch.dtype, active: ActiveAdapters) -> list[ExpertSlots]:
    """The same for one mixture."""
    moe.adapters = routed = RoutedAdapters(moe, count, active)
    parts = [part for part in moe.experts.modules() if isinstance(part, Column | Row)]
    found: list[ExpertSlots] = []
    for part in parts:
        part.adapters = slots = ExpertSlots(part.linear.layer, routed, dtype)
        found.append(slots)
    return found
