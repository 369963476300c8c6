"""Lightning attention (Qin et al. 2024): linear attention whose heads forget at fixed rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from lsv.offers import OpSpec
from lsv_runtime.attention.states import StatePart
from lsv_runtime.nn.recurrent.chunks import scan
from lsv_runtime.nn.recurrent.ssd import CHUNK, scan_chunk
from lsv_runtime.nn.recurrent.states import RowStates
from lsv_runtime.ops import Bindable


class Lightning(Bindable):
    """``s = exp(-rate)·s + v⊗k`` and ``y = s·q`` for each head, in float32.

    q, k and v [T, heads * dim] -> [T, heads * dim] of float32; ``rates`` has one of each head.
    """

    op: ClassVar[str] = "scan.lightning"
    capturable: ClassVar[bool] = False

    def __init__(self, rates: Sequence[float], dim: int) -> None:
        super().__init__()
        self.rates, self.heads, self.dim = tuple(rates), len(rates), dim
        self.part = StatePart("lightning", (self.heads, dim, dim), torch.float32)

    def spec(self) -> OpSpec:
        return OpSpec(self.op, "float32", shape={"heads": self.heads, "dim": self.dim})

    def reference(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, states: RowStates) -> torch.Tensor:
        q, k, v = (part.float().reshape(-1, self.heads, self.dim) for part in (q, k, v))
        return states.advance(self.part.name, self._scan, q, k, v).flatten(1)

    def _scan(
        self, state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logs = -torch.tensor(self.rates, dtype=torch.float32, device=v.device).expand(*v.shape[:2], -1)
        return scan(scan_chunk, CHUNK, state, v, logs, k, q)
