"""Mixture of experts: rows are sorted by expert on the device, and all experts' products are one launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import triton
import triton.language as tl

from lsv.offers import OpSpec
from lsv_base.errors import CheckpointError
from lsv_runtime.nn.moe import MoE, RoutedAdapters
from lsv_runtime.nn.routers import Router
from lsv_runtime.ops import Kernel, MixingKernel
from lsv_runtime.weights.quantizer import Linear
from lsv_triton.device_table import launch
from lsv_triton.gemm.linear import TritonLinear
from lsv_triton.gemm.product import Route, product, size_of
from lsv_triton.gemm.weights import Stack, why_not_weights
from lsv_triton.layers.activation import KINDS, GatedProduct

_FEWEST_BINS = 64
"""Of a histogram: a multiple of the threads of a warp, of which AMD's have 64."""


@triton.jit
def _choose_experts(
    logits, weights, chosen, EXPERTS: tl.constexpr, TOP: tl.constexpr, NORMALISE: tl.constexpr, BLOCK: tl.constexpr
):
    """The TOP likeliest experts of a row by number, the lower one of equals, and their shares: both [rows, TOP]."""
    row = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, BLOCK)
    there = expert < EXPERTS
    x = tl.load(logits + row * EXPERTS + expert, mask=there, other=float("-inf")).to(tl.float32)
    powers = tl.exp(x - tl.max(x, axis=0))
    chances = powers / tl.sum(powers, axis=0)
    left = tl.where(chances == chances, chances, 0.0)  # of a row that is not finite any will do, if they are experts
    left = tl.where(there, left, -1.0)
    picked = tl.zeros((BLOCK,), tl.int32)
    for _ in range(TOP):
        best = tl.min(tl.where(left == tl.max(left, axis=0), expert, BLOCK), axis=0)
        picked = tl.where(expert == best, 1, picked)
        left = tl.where(expert == best, -1.0, left)
    if NORMALISE:
        chances = chances / tl.sum(tl.where(picked > 0, chances, 0.0), axis=0)
    place = row * TOP + tl.cumsum(picked, axis=0) - 1
    tl.store(weights + place, chances.to(weights.dtype.element_ty), mask=picked > 0)
    tl.store(chosen + place, expert, mask=picked > 0)


@triton.jit
def _find_places(experts, table, pair, there):
    """int32: where in the stack the experts of pairs are, -1 for those of other ranks and pairs that are not there."""
    place = tl.load(experts + pair, mask=there, other=-1)
    if table is not None:
        place = tl.load(table + place, mask=there, other=-1)
    return place.to(tl.int32)


@triton.jit(do_not_specialize=("count", "slots"))
def _sort_rows(
    experts, table, pairs, tiles, count, slots,
    EXPERTS: tl.constexpr, ROWS: tl.constexpr, BINS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write which of ``count`` pairs belong to this program's expert, in order, and its tiles behind those of the
    experts before it. What the last of them leaves of ``slots`` tiles is empty. Pairs with experts that are nowhere in
    ``table`` are in no tile.
    """
    expert = tl.program_id(0)
    counts = tl.zeros((BINS,), tl.int32)
    for start in range(0, count, BLOCK):
        pair = start + tl.arange(0, BLOCK)
        place = _find_places(experts, table, pair, pair < count)
        counts += tl.histogram(tl.maximum(place, 0), BINS, mask=place >= 0)
    number = tl.arange(0, BINS)
    first = tl.sum(tl.where(number < expert, counts, 0), axis=0)
    own = tl.sum(tl.where(number == expert, counts, 0), axis=0)
    tile = tl.sum(tl.where(number < expert, (counts + ROWS - 1) // ROWS, 0), axis=0)
    into = first
    for start in range(0, count, BLOCK):
        pair = start + tl.arange(0, BLOCK)
        mine = (_find_places(experts, table, pair, pair < count) == expert).to(tl.int32)
        tl.store(pairs + into + tl.cumsum(mine, axis=0) - 1, pair, mask=mine > 0)
        into += tl.sum(mine, axis=0)
    end = first + own
    for begin in range(first, end, ROWS):
        tl.store(tiles + 3 * tile, expert)
        tl.store(tiles + 3 * tile + 1, begin)
        tl.store(tiles + 3 * tile + 2, tl.minimum(begin + ROWS, end))
        tile += 1
    if expert == EXPERTS - 1:
        for start in range(tile, slots, BLOCK):
            slot = start + tl.arange(0, BLOCK)
            tl.store(tiles + 3 * slot + 1, 0, mask=slot < slots)
            tl.store(tiles + 3 * slot + 2, 0, mask=slot < slots)


@triton.jit
def _add_experts(x, weights, experts, table, out, N, TOP: tl.constexpr, BLOCK: tl.constexpr):
    """out [T, N] from x [T, TOP, N] and weights [T, TOP], in order; without the parts of x whose ``experts`` are
    nowhere in ``table``, which nobody has written.
    """
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for place in range(TOP):
        share, there = tl.load(weights + row * TOP + place).to(tl.float32), n < N
        if table is not None:
            here = tl.load(table + tl.load(experts + row * TOP + place)) >= 0
            share, there = tl.where(here, share, 0.0), there & here
        total += tl.load(x + (row * TOP + place) * N + n, mask=there, other=0).to(tl.float32) * share
    tl.store(out + row * N + n, total.to(out.dtype.element_ty), mask=n < N)


class _Shelf(Kernel):
    """What stands in for an expert's linear layer while it is filled: it puts the weights on their place in a stack."""

    def __init__(self, stack: Stack, number: int) -> None:
        self._stack, self._number = stack, number

    def pack(self) -> None:
        self._stack.take(self._number)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("an expert is computed together with all others")


class GroupedExperts(MixingKernel):
    """``lsv_runtime.nn.moe.MoE`` whose experts' weights lie in one tensor each. A token's sum runs in expert order.

    Where experts are spread, the pairs with those of other ranks are in no tile and in no sum. How many that are stays
    on the device, as does where experts are: a captured step finds them where they have moved.
    """

    adapts_parts = True
    rounds: ClassVar[bool] = False

    def __init__(self, module: MoE, spec: OpSpec) -> None:
        self._module = module
        experts: list[Any] = list(module.experts)
        self._act = GatedProduct(experts[0].act, experts[0].act.spec())
        self._gate_up = _stack(module, [expert.gate_up.linear for expert in experts], "gate_up_", rounds=self.rounds)
        self._down = _stack(module, [expert.down.linear for expert in experts], "down_", rounds=self.rounds)
        if type(module.router) is Router:
            logits = module.router.logits
            logits.use(TritonLinear(logits, logits.spec()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mix(x, *_route(self._module.router, x))

    def mix(self, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        module, table = self._module, None
        x, weights, experts = module.gather(x, weights, experts)
        if module.spread is not None:
            module.spread.count(experts)
            table = module.spread.table
        weights, experts = weights.contiguous(), experts.contiguous()
        route = route_rows(experts, len(module.experts), self._gate_up.op, table)
        both = product(x.contiguous(), self._gate_up, route, top=experts.shape[1])
        if module.adapters is not None and module.adapters.adds:
            made = self._run_adapted(x, both, experts, route, module.adapters)
        else:
            made = product(self._act.forward(both), self._down, route)
        return module.add_up(add_experts(made, weights, experts, table))

    def held_tensors(self, expert: int) -> Mapping[str, torch.Tensor]:
        stacks = {"gate_up": self._gate_up, "down": self._down}
        return {f"{part}.{name}": x for part, stack in stacks.items() for name, x in stack.tensors_of(expert).items()}

    def _run_adapted(
        self, x: torch.Tensor, both: torch.Tensor, experts: torch.Tensor, route: Route, adapters: RoutedAdapters
    ) -> torch.Tensor:
        """What all experts answer, from their first products: both [T * top, 2 * inner] -> [T * top, hidden]."""
        numbers, top = experts.flatten(), experts.shape[1]
        tokens = torch.arange(len(numbers), device=x.device) // top
        both = adapters.add_each("gate_up", both, x[tokens], numbers, tokens)
        hidden = self._act.forward(both)
        return adapters.add_each("down", product(hidden, self._down, route), hidden, numbers, tokens)


def why_not_experts(spec: OpSpec) -> str | None:
    """None, or why experts can't be computed together: their weights, their rows or their activation."""
    unknown = None if spec.flags & KINDS.keys() else f"the activation is not one of {', '.join(KINDS)}"
    return why_not_weights(spec) or unknown


def _route(router: Router, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights of the chosen experts and their numbers int32, in the order of the experts.

    One launch serves a plain softmax router; every other router chooses by itself.
    """
    if type(router) is Router:
        return choose_experts(router.logits(x), router.top, normalise=router.normalise)
    weights, experts = router(x)
    experts, order = experts.sort(dim=-1)
    return weights.gather(1, order), experts.to(torch.int32)


def _stack(owner: MoE, layers: Sequence[Linear], prefix: str, *, rounds: bool) -> Stack:
    """Raises ``CheckpointError`` where the experts' weights are not of one form."""
    stack = Stack(owner, layers, prefix, rounds=rounds)
    for layer in layers:
        if not stack.holds(layer):
            raise CheckpointError(
                f"{layers[0].layer.name} and {layer.layer.name} are quantised differently, and all experts are "
                "computed together: quantise them alike, or start with --reference-ops"
            )
    for number, layer in enumerate(layers):
        layer.use(_Shelf(stack, number))
    return stack


def choose_experts(logits: torch.Tensor, top: int, *, normalise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """logits [T, experts] -> weights in their dtype and experts int32, both [T, top], in the order of the experts.

    ``lsv_runtime.nn.moe.Router`` behind its logits, in one launch.
    """
    logits = logits.contiguous()
    tokens, count = logits.shape
    weights = torch.empty((tokens, top), dtype=logits.dtype, device=logits.device)
    experts = torch.empty((tokens, top), dtype=torch.int32, device=logits.device)
    if tokens:
        _choose_experts[(tokens,)](
            logits, weights, experts, EXPERTS=count, TOP=top, NORMALISE=normalise, BLOCK=triton.next_power_of_2(count),
            num_warps=launch("choose_experts", logits.device).warps, enable_fp_fusion=False,
        )  # fmt: skip
    return weights, experts


def route_rows(experts: torch.Tensor, count: int, op: str, table: torch.Tensor | None = None) -> Route:
    """Sort the pairs of tokens and experts int32 [T, top] by expert; nothing waits for the device. ``table`` is
    ``Spread.table`` where ``count`` experts of more are here; pairs with the others are left out.

    There are as many tiles as the worst case of so many pairs takes: one for each expert that can have a pair, and one
    for as many more as a tile has rows. Those that are not needed are the last ones, and empty.
    """
    experts = experts.contiguous()
    pairs = torch.empty(experts.numel(), dtype=torch.int32, device=experts.device)
    size = size_of(-(-len(pairs) // (count if table is None else len(table))))
    rows = launch(f"{op}.{size}", experts.device)["rows"]
    busy = min(len(pairs), count)
    tiles = torch.empty((busy + (len(pairs) - busy) // rows, 3), dtype=torch.int32, device=experts.device)
    sizes = launch("sort_rows", experts.device)
    _sort_rows[(count,)](
        experts, table, pairs, tiles, len(pairs), len(tiles), EXPERTS=count, ROWS=rows,
        BINS=max(_FEWEST_BINS, triton.next_power_of_2(count)), BLOCK=sizes["elements"], num_warps=sizes.warps,
    )  # fmt: skip
    return Route(pairs, tiles, rows, size, experts.flatten(), table)


def add_experts(
    x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor | None = None, table: torch.Tensor | None = None
) -> torch.Tensor:
    """x [T * top, N] and weights [T, top] -> their weighted sums [T, N], added up in order in float32. With ``table``,
    as ``route_rows`` has it, of those alone whose experts [T, top] are here.
    """
    (tokens, top), width = weights.shape, x.shape[1]
    out = torch.empty((tokens, width), dtype=x.dtype, device=x.device)
    sizes = launch("add_experts", x.device)
    block = min(sizes["elements"], triton.next_power_of_2(width))
    if tokens:
        _add_experts[tokens, triton.cdiv(width, block)](
            x, weights, None if table is None else experts, table, out, width,
            TOP=top, BLOCK=block, num_warps=sizes.warps, enable_fp_fusion=False,
        )  # fmt: skip
    return out
