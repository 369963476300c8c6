"""The sum of what the ranks of a group hold, as an op that a platform may offer a kernel for."""

from __future__ import annotations

from typing import ClassVar

import torch

from lsv.offers import OpSpec
from lsv_runtime.ops import Bindable


class RankSum(Bindable):
    """parts [ranks, elements] -> their sum [elements] in the same dtype, added up in rank order, so that nothing but
    the values decides its bits. Narrow floats are added in float32.
    """

    op: ClassVar[str] = "sum_ranks"
    row_invariant: ClassVar[bool] = True

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.ranks = ranks

    def spec(self) -> OpSpec:
        return OpSpec(self.op, "float32", shape={"ranks": self.ranks})

    def reference(self, parts: torch.Tensor) -> torch.Tensor:
        narrow = parts.is_floating_point() and parts.element_size() < 4
        total = parts[0].to(torch.float32 if narrow else parts.dtype, copy=True)
        for part in parts[1:]:
            total += part
        return total.to(parts.dtype)
