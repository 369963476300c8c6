"""The base of attention backends: what they have in common whichever kernels compute."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from lsv.kv.spec import KVGroup, KVSpec
from lsv_runtime.attention import AttentionLayer, BatchLayout, CacheSpec, Int32s, Place, values_of
from lsv_runtime.attention.cache import make_cache
from lsv_runtime.attention.plan import make_plan
from lsv_runtime.attention.tables import TableRows
from lsv_runtime.devices.device import Device


class PagedBackend(ABC):
    """An ``AttentionBackend`` that lacks ``attend`` and ``write``. Its cache is a ``PagedCache`` and its plans are
    ``PagedPlan``s; a backend with other ones overrides ``make_cache`` and ``plan``.
    """

    captures_prompts: bool = False
    biased: bool = False
    """Whether it adds ``AttentionLayer.biases``; otherwise layers that have some are refused."""

    sparse: bool = False
    """Whether queries may see the blocks of a pattern alone (``AttentionLayer.pattern``); otherwise layers with one are
    refused."""

    shares_values: bool = False
    """Whether values may be features of keys (``AttentionLayer.value_dim``), which are then stored once."""

    cuts_rows: bool = False
    """Whether a group's plan may have more rows than the step, as many as its rows have tokens in several chunks."""

    mutual: bool = False
    """Whether rows of a causal layer may be asked for again as if it were not, from what is cached, with its window on
    both sides; otherwise layers that are ``mutual`` are refused."""

    gathers: bool = False
    """Whether it has ``lengths`` and ``gather``, without which it refuses layers that need them."""

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
        if layer.chunk is not None and not self.cuts_rows:
            return f"it does not attend in chunks; a --max-model-len of at most {layer.chunk} does without them"
        if layer.gathered and not self.gathers:
            return "it does not give a model its cached keys, of which this one chooses some for every token"
        if layer.biases is not None and not self.biased:
            return "it has no biases by distance"
        if layer.pattern is not None and not (self.sparse and layer.causal and not layer.mutual):
            return f"it has no block-sparse attention; a --max-model-len of at most {layer.pattern.full} does without"
        if layer.mutual and not self.mutual:
            return (
                "the tokens of an image see one another, which it has no rows for (--hf-overrides "
                """'{"vision_config": null}' serves the text alone of a model that can do without images)"""
            )
        if layer.value_dim is not None and not self.shares_values:
            return "it does not read values from keys"
        return None

    def explain(self, layers: Sequence[AttentionLayer], dtype: torch.dtype) -> str | None:
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

    def memory(self, cache: Any) -> Sequence[torch.Tensor]:
        return cache.memory  # type: ignore[no-any-return]

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
    def write(self, k: torch.Tensor, v: torch.Tensor | None, layer: AttentionLayer, cache: Any, plan: Any) -> None: ...

    def lengths(self, plan: Any) -> tuple[Int32s, Int32s]:
        raise NotImplementedError

    def gather(
        self, k: torch.Tensor | None, v: torch.Tensor | None, layer: AttentionLayer, cache: Any | None, plan: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if cache is None:
            assert k is not None, "without a cache there must be keys"
            return k, values_of(k, v, layer)
        if k is not None:
            self.write(k, v, layer, cache, plan)
        keys, values = self.read_cached(layer, cache, plan)
        return (keys, values) if k is None else (keys.to(k.dtype), values.to(k.dtype))

    def read_cached(self, layer: AttentionLayer, cache: Any, plan: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """What ``gather`` finds in the cache, in its dtype; for backends that serve layers which gather."""
        raise NotImplementedError
