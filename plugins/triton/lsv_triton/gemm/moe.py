"""Mixture of experts: rows are sorted by expert on the device, and all experts' products are one launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from lsv.errors import CheckpointError
from lsv.nn.moe import MoE
from lsv.offers import OpSpec
from lsv.ops import Kernel
from lsv.weights.quantizer import Linear
from lsv_triton.device_table import launch
from lsv_triton.gemm.linear import TritonLinear
from lsv_triton.gemm.product import Route, product, size_of
from lsv_triton.gemm.weights import Stack
from lsv_triton.layers.activation import GatedProduct


@triton.jit(do_not_specialize=("count",))
def _sort_rows(experts, pairs, tiles, count, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Write which of ``count`` pairs belong to this program's expert, in order, and its tiles.

    An expert's first tile is ``first // ROWS + expert``: no two experts' tiles overlap, whatever the others have.
    """
    expert = tl.program_id(0)
    below = tl.zeros((BLOCK,), tl.int32)
    own = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, count, BLOCK):
        pair = start + tl.arange(0, BLOCK)
        chosen = tl.load(experts + pair, mask=pair < count, other=1 << 30)
        below += (chosen < expert).to(tl.int32)
        own += (chosen == expert).to(tl.int32)
    first = tl.sum(below, axis=0)
    end = first + tl.sum(own, axis=0)
    place = first
    for start in range(0, count, BLOCK):
        pair = start + tl.arange(0, BLOCK)
        mine = (tl.load(experts + pair, mask=pair < count, other=1 << 30) == expert).to(tl.int32)
        tl.store(pairs + place + tl.cumsum(mine, axis=0) - 1, pair, mask=mine > 0)
        place += tl.sum(mine, axis=0)
    tile = first // ROWS + expert
    for number in range(tile, end // ROWS + expert + 1):
        begin = tl.minimum(first + (number - tile) * ROWS, end)
        tl.store(tiles + 3 * number, expert)
        tl.store(tiles + 3 * number + 1, begin)
        tl.store(tiles + 3 * number + 2, tl.minimum(begin + ROWS, end))


@triton.jit
def _add_experts(x, weights, out, N, TOP: tl.constexpr, BLOCK: tl.constexpr):
    """out [T, N] from x [T, TOP, N] and weights [T, TOP], in order."""
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for place in range(TOP):
        share = tl.load(weights + row * TOP + place).to(tl.float32)
        total += tl.load(x + (row * TOP + place) * N + n, mask=n < N, other=0).to(tl.float32) * share
    tl.store(out + row * N + n, total.to(out.dtype.element_ty), mask=n < N)


class _Shelf(Kernel):
    """What stands in for an expert's linear layer while it is filled: it puts the weights on their place in a stack."""

    def __init__(self, stack: Stack, number: int) -> None:
        self._stack, self._number = stack, number

    def pack(self) -> None:
        self._stack.take(self._number)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("an expert is computed together with all others")


class GroupedExperts(Kernel):
    """``lsv.nn.moe.MoE`` whose experts' weights lie in one tensor each. A token's sum runs in expert order."""

    def __init__(self, module: MoE, spec: OpSpec) -> None:
        self._module = module
        experts: list[Any] = list(module.experts)
        self._act = GatedProduct(experts[0].act, experts[0].act.spec())
        self._gate_up = _stack(module, [expert.gate_up.linear for expert in experts], "gate_up_")
        self._down = _stack(module, [expert.down.linear for expert in experts], "down_")
        router = module.router.logits
        router.use(TritonLinear(router, router.spec()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        module = self._module
        weights, experts = module.router(x)
        experts, places = experts.sort(dim=-1)
        weights = weights.gather(-1, places).contiguous()
        route = route_rows(experts, len(module.experts), self._gate_up.op)
        hidden = self._act.forward(product(x.contiguous(), self._gate_up, route, top=experts.shape[1]))
        y = add_experts(product(hidden, self._down, route), weights)
        return y if module.communicator is None else module.communicator.all_reduce(y)


def _stack(owner: MoE, layers: Sequence[Linear], prefix: str) -> Stack:
    """Raises ``CheckpointError`` where the experts' weights are not of one form."""
    stack = Stack(owner, layers, prefix)
    for layer in layers:
        if not stack.holds(layer):
            raise CheckpointError(
                f"{layers[0].layer.name} and {layer.layer.name} are quantised differently, and all experts are "
                "computed together: quantise them alike, or start with --reference-ops"
            )
    for number, layer in enumerate(layers):
        layer.use(_Shelf(stack, number))
    return stack


def route_rows(experts: torch.Tensor, count: int, op: str) -> Route:
    """Sort the pairs of tokens and experts [T, top] by expert; nothing waits for the device.

    There are as many tiles as the worst case takes, and those that are not needed are empty.
    """
    pairs = torch.empty(experts.numel(), dtype=torch.int32, device=experts.device)
    size = size_of(-(-len(pairs) // count))
    rows = launch(f"{op}.{size}", experts.device)["rows"]
    tiles = torch.empty((len(pairs) // rows + count, 3), dtype=torch.int32, device=experts.device)
    sizes = launch("sort_rows", experts.device)
    _sort_rows[(count,)](
        experts.contiguous(), pairs, tiles, len(pairs), ROWS=rows, BLOCK=sizes["elements"], num_warps=sizes.warps
    )
    return Route(pairs, tiles, rows, size)


def add_experts(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """x [T * top, N] and weights [T, top] -> their weighted sums [T, N], added up in order in float32."""
    (tokens, top), width = weights.shape, x.shape[1]
    out = torch.empty((tokens, width), dtype=x.dtype, device=x.device)
    sizes = launch("add_experts", x.device)
    block = min(sizes["elements"], triton.next_power_of_2(width))
    if tokens:
        _add_experts[tokens, triton.cdiv(width, block)](
            x, weights, out, width, TOP=top, BLOCK=block, num_warps=sizes.warps, enable_fp_fusion=False
        )
    return out
