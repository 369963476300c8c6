"""The sum of what all ranks hold, in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from lsv.offers import OpSpec
from lsv_runtime.devices.rank_sum import RankSum
from lsv_runtime.ops import Kernel
from lsv_triton.device_table import launch


@triton.jit(do_not_specialize=("count",))
def _sum_ranks(parts, out, count, RANKS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """out [count] from parts [RANKS, count], in order; WIDE adds in float32."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = place < count
    total = tl.load(parts + place, mask=there, other=0)
    if WIDE:
        total = total.to(tl.float32)
    for rank in tl.static_range(1, RANKS):
        total += tl.load(parts + rank * count.to(tl.int64) + place, mask=there, other=0).to(total.dtype)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=there)


class SumRanks(Kernel):
    """``lsv_runtime.devices.rank_sum.RankSum``: parts [ranks, elements] -> [elements]."""

    def __init__(self, module: RankSum, spec: OpSpec) -> None:
        self._ranks = module.ranks

    def forward(self, parts: torch.Tensor) -> torch.Tensor:
        count = parts.shape[1]
        out = torch.empty(count, dtype=parts.dtype, device=parts.device)
        tile = launch("sum_ranks", parts.device)
        if count:
            _sum_ranks[(triton.cdiv(count, tile["elements"]),)](
                parts, out, count, RANKS=self._ranks, WIDE=parts.is_floating_point() and parts.element_size() < 4,
                BLOCK=tile["elements"], num_warps=tile.warps,
            )  # fmt: skip
        return out
