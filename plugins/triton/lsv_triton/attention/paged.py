"""What paged attention has in common whoever computes it: the cache, the plan, what can not be served."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from lsv.attention import AttentionLayer, BatchLayout
from lsv.kv.spec import KVGroup, KVSpec
from lsv.platform import Device
from lsv_triton.attention.cache import KVCache, make_cache
from lsv_triton.attention.plan import PagedPlan, make_plan, refill


class PagedAttention:
    """Base of backends over ``lsv_triton.attention.cache``; they differ in ``attend``.

    Plans lie on the device that the cache was made for, on the host before there is one.
    """

    block_sizes: tuple[int, ...] = (64, 16, 32, 128)

    def __init__(self) -> None:
        self._device: Device | None = None
        self._block_size = self.block_sizes[0]

    def supports(self, layer: AttentionLayer) -> str | None:
        if layer.heads % layer.kv_heads:
            return f"{layer.heads} query heads are no multiple of {layer.kv_heads} KV heads"
        return None

    def page_bytes(self, spec: KVSpec, block_size: int) -> int:
        return spec.token_bytes * block_size

    def allocate(
        self,
        groups: Sequence[KVGroup],
        layers: Sequence[AttentionLayer],
        pages: int,
        block_size: int,
        dtype: torch.dtype,
        device: Device,
    ) -> KVCache:
        self._device, self._block_size = device, block_size
        return make_cache(groups, layers, pages, block_size, dtype, device.torch_device)

    def plan(self, batch: BatchLayout, group: KVGroup, into: PagedPlan | None = None) -> PagedPlan:
        table = batch.tables[group.index] if batch.tables else np.zeros((len(batch.query), 0), np.int32)
        if into is not None:
            return refill(into, batch, table, self._block_size, self._device)
        return make_plan(batch, table, self._block_size, self._device)
