"""The base of attention backends: what they have in common whichever kernels compute."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from lsv.attention import AttentionLayer, BatchLayout, CacheSpec, Int32s, Place
from lsv.attention.cache import make_cache
from lsv.attention.plan import make_plan
from lsv.attention.tables import TableRows
from lsv.kv.spec import KVGroup, KVSpec
from lsv.platform import Device


class PagedBackend(ABC):
    """An ``AttentionBackend`` that lacks ``attend`` and ``write``. Its cache is a ``PagedCache`` and its plans are
    ``PagedPlan``s; a backend with other ones overrides ``make_cache`` and ``plan``.
    """

    captures_prompts: bool = False

    device: Device
    """That of the cache and of all plans; known from ``allocate`` on."""

    block_size: int
    """Tokens of a page; known from ``allocate`` on."""

    @property
    def torch_device(self) -> torch.device:
        """Where the tensors of plans are."""
        return self.device.torch_device

    def supports(self, layer: AttentionLayer) -> str | None:
        """Override it to refuse more layers, and ask this one about the others."""
        if layer.heads % layer.kv_heads:
            return f"{layer.heads} query heads are not a multiple of {layer.kv_heads} KV heads"
        return None

    def page_bytes(self, spec: KVSpec, block_size: int) -> int:
        return spec.token_bytes * block_size

    def allocate(self, spec: CacheSpec, device: Device) -> Any:
        self.device, self.block_size = device, spec.block_size
        return self.make_cache(spec, device)

    def make_cache(self, spec: CacheSpec, device: Device) -> Any:
        """Raises ``ConfigError`` for a dtype that the backend has no cache of."""
        return make_cache(spec, device.torch_device)

    def state_pages(self, cache: Any) -> Mapping[Place, torch.Tensor]:
        return cache.states  # type: ignore[no-any-return]

    def table_of(self, batch: BatchLayout, group: KVGroup) -> Int32s:
        """The group's block table [rows, blocks]; without columns for a step without a cache."""
        return np.asarray(self.rows_of(batch, group))

    def rows_of(self, batch: BatchLayout, group: KVGroup) -> Int32s | TableRows:
        """As ``table_of``, without copying the rows of tables that stay from step to step."""
        if not batch.tables:
            return np.zeros((len(batch.query), 0), np.int32)
        return batch.tables[group.index]

    def plan(self, batch: BatchLayout, group: KVGroup, into: Any | None = None) -> Any:
        return make_plan(batch, self.rows_of(batch, group), self.block_size, self.device, into)

    @abstractmethod
    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: AttentionLayer,
        cache: Any | None,
        plan: Any,
    ) -> torch.Tensor: ...

    @abstractmethod
    def write(self, k: torch.Tensor, v: torch.Tensor, layer: AttentionLayer, cache: Any, plan: Any) -> None: ...
