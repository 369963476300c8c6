"""The calls this plugin makes into CUDA, in one object: the real one, or a fake in emulation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lsv_runtime.devices.collectives import MakeBackend


@dataclass(frozen=True, slots=True)
class Vendor:
    """All that is asked of CUDA: ``torch.cuda``, the name of its devices, and what connects them."""

    runtime: Any
    device_type: str
    connect: MakeBackend
