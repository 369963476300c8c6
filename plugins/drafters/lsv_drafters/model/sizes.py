"""How large drafts of a model are, and their steps."""

from __future__ import annotations

import msgspec

from lsv.config import EngineConfig
from lsv_runtime.attention import AttentionBackend
from lsv_runtime.devices.shapes import BatchLimits
from lsv_runtime.worker.load.bound import Bound
from lsv_runtime.worker.load.device import batch_limits
from lsv_runtime.worker.load.memory import page_bytes


def weigh(bound: Bound, own: EngineConfig) -> int:
    """Bytes of the weights, and of the cache with its null page; ``own`` is the draft's configuration."""
    declared = bound.declared
    page, _ = page_bytes(declared.groups, declared.specs, bound.backend, own.block_size)
    return declared.weight_bytes + page * ((own.num_blocks or 0) + 1)


def step_limits(own: EngineConfig, blocks: int, backend: AttentionBackend) -> BatchLimits:
    """The largest step over a cache of ``blocks`` blocks; what it reads of a sequence begins anywhere in a block."""
    limits = batch_limits(own, blocks, prompts_captured=backend.captures_prompts)
    return msgspec.structs.replace(limits, drafts=1)
