"""How the memory left by the weights becomes cache pages, and whether the longest request fits. Pure numbers.

Page 0 is the null page: padding and blocks that a window has left point to it, so it belongs to no request.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import msgspec

from lsv.config import EngineConfig, Fit, Reason
from lsv.kv.spec import KVGroup, KVSpec, blocks_for, longest_length
from lsv_base.errors import ConfigError
from lsv_runtime.attention import AttentionBackend, cut_pages
from lsv_runtime.devices.device import Budget, Memory

_GIB = 1 << 30


class Needs(Protocol):
    """What memory planning needs to know of a model; ``lsv_runtime.worker.load.declared.Declared`` has it all."""

    @property
    def specs(self) -> Sequence[KVSpec]: ...
    @property
    def groups(self) -> Sequence[KVGroup]: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...


def plan_memory(
    declared: Needs, backend: AttentionBackend, budget: Budget, config: EngineConfig, largest: int | None = None
) -> Fit:
    """The pages a cache gets and what they hold. Raises ``ConfigError`` when no request of full length fits.

    ``num_blocks`` of the configuration overrides ``kv_bytes``, which overrides the platform's budget; a device that
    gives no more than ``largest`` bytes at a time bounds them all, as a cache is allocated in pieces of its pages.
    """
    groups = declared.groups
    page, piece = page_bytes(groups, declared.specs, backend, config.block_size)
    available, why = _available(config, budget, page)
    if largest is not None and piece and available // page > largest // piece:
        available = largest // piece * page
        why = f"{largest / _GIB:g} GiB a piece, the most that the device gives at a time, instead of {why}"
    usable = max(0, available // page - 1) if page else 0
    if page:
        _check_length(groups, page, usable, available, config)
    return Fit(
        num_blocks=usable,
        block_size=config.block_size,
        kv_bytes=(usable + 1) * page,
        weight_bytes=declared.weight_bytes,
        max_model_len=config.max_model_len,
        vocab_size=declared.vocab_size,
        groups=tuple(msgspec.to_builtins(group) for group in groups),
        reasons=(Reason("kv_bytes", str(available), why),),
    )


def plan_embeddings(width: int, itemsize: int, config: EngineConfig) -> Reason:
    """The bytes of the kept embeddings of media: ``width`` numbers of ``itemsize`` bytes per token."""
    size = config.encoder_cache_tokens * width * itemsize
    why = f"embeddings of media: encoder_cache_tokens={config.encoder_cache_tokens} of {width} numbers"
    return Reason("encoder_cache_bytes", str(size), why)


def page_bytes(
    groups: Sequence[KVGroup], specs: Sequence[KVSpec], backend: AttentionBackend, block_size: int
) -> tuple[int, int]:
    """Bytes of one page, a block of every layer in the largest group, and of the largest piece that pages are cut into
    (``lsv_runtime.attention.CacheSpec.pieces``). 0 for a model without a cache.
    """
    of_layer = {spec.layer: spec.state_bytes or backend.page_bytes(spec, block_size) for spec in specs}
    borders = cut_pages([of_layer[layer] for layer in group.layers] for group in groups)
    return borders[-1], max((end - begin for begin, end in pairwise(borders)), default=0)


def after_weights(memory: Memory, weight_bytes: int) -> Memory:
    """What the device will report once the weights are in place."""
    return Memory(memory.total, memory.free - weight_bytes, memory.used + weight_bytes)


def _available(config: EngineConfig, budget: Budget, page: int) -> tuple[int, str]:
    if config.num_blocks is not None:
        return (config.num_blocks + 1) * page, f"num_blocks={config.num_blocks}, and the null page"
    if config.kv_bytes is not None:
        return config.kv_bytes, "set by kv_bytes"
    return max(0, budget.kv), budget.why or "the platform's budget"


def _check_length(groups: Sequence[KVGroup], page: int, usable: int, available: int, config: EngineConfig) -> None:
    step_tokens = min(config.max_num_batched_tokens, config.max_model_len)
    needed = blocks_for(config.max_model_len, groups, config.block_size, step_tokens)
    if needed <= usable:
        return
    longest = longest_length(usable, groups, config.block_size, step_tokens)
    needed_gib, available_gib = (needed + 1) * page / _GIB, available / _GIB
    raise ConfigError(
        f"To serve at least one request with the model's max seq len ({config.max_model_len}), "
        f"{needed_gib:.2f} GiB KV cache is needed, which is larger than the available KV cache memory "
        f"({available_gib:.2f} GiB). Based on the available memory, the estimated maximum model length is "
        f"{longest}. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing "
        "the engine.",
        param="max_model_len",
    )
