"""Paged attention by Triton kernels: against plain torch, and alike in whatever company a token is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from triton.runtime.interpreter import GridExecutor

from lsv.kv.spec import KVGroup
from lsv_runtime.attention import AttentionLayer, BatchLayout, CacheSpec, token_bytes
from lsv_runtime.attention.paged import PagedBackend
from lsv_runtime.attention.plan import PagedPlan
from lsv_runtime.devices.device import Device
from lsv_runtime.emulation.recording import Recording
from lsv_testing.attention import AttentionCase, attention_cases, check_attention, check_row_invariance
from lsv_triton.attention import backend as attention
from lsv_triton.attention import torch_backend as torch_attention
from lsv_triton.attention import write_kernel
from lsv_triton.attention.backend import TritonAttention
from lsv_triton.attention.torch_backend import TorchAttention
from lsv_triton.device_table import Launch

TOLERANCE = {"float32": 4e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
"""Both add up to 256 products, in different orders: some thirty units in the last place of a float32."""
FEATURES = ("plain", "window", "soft_cap", "sinks", "alibi", "window+sinks")
KV_DTYPES = ("auto", "float8_e4m3fn", "float8_e5m2", "int8")
DTYPES = ("float32", "float16", "bfloat16")
FEW = attention_cases(
    (16,), DTYPES, head_dims=(64, 80), ratios=(4, 7), features=("plain", "window+sinks", "alibi"), kv_dtypes=KV_DTYPES
)
MANY = attention_cases(
    (64, 16, 32, 128), DTYPES, head_dims=(64, 128, 80, 33, 96, 256), features=FEATURES, kv_dtypes=KV_DTYPES
)
CASE = AttentionCase("float32", 64, 4, 16, "plain")
LARGE = AttentionCase("float16", 64, 4, 256, "window+sinks")


@dataclass(frozen=True, slots=True)
class Rows:
    """Requests of ``lengths`` tokens whose blocks lie shuffled over the pages of a cache."""

    lengths: Sequence[int]
    q: list[torch.Tensor]
    k: list[torch.Tensor]
    v: list[torch.Tensor]
    blocks: list[np.typing.NDArray[np.int64]]


class Cached:
    """A backend with a cache whose every byte is 255: NaN in all floats, and in the scales of integers."""

    def __init__(
        self, backend: PagedBackend, case: AttentionCase, place: Device, *, kv_heads: int = 2, pages: int = 64
    ) -> None:
        self.backend, self.case = backend, case
        self.layer = layer_of(case, place, kv_heads)
        dtype = getattr(torch, case.dtype if case.kv_dtype == "auto" else case.kv_dtype)
        self.group = KVGroup(0, "full", (0, 1), token_bytes(self.layer, dtype), self.layer.window)
        layers = [replace(self.layer, index=0, place=0), self.layer]
        self.cache = backend.allocate(CacheSpec([self.group], layers, pages, case.block_size, dtype), place)
        for piece in self.cache.pieces:
            piece.fill_(255)

    def step(
        self,
        rows: Rows,
        starts: Sequence[int],
        stops: Sequence[int],
        *,
        reader: AttentionLayer | None = None,
        into: PagedPlan | None = None,
    ) -> list[torch.Tensor]:
        """Tokens ``starts[i]:stops[i]`` of each request that has some, in order; a ``reader`` only reads."""
        spans = [(i, a, b) for i, (a, b) in enumerate(zip(starts, stops, strict=True)) if a < b]
        layout, (q, k, v) = self.layout(rows, spans)
        self.plan = plan = self.backend.plan(layout, self.group, into)
        new = (k, v) if reader is None else (None, None)
        counts = layout.query.tolist()
        return list(self.backend.attend(q, *new, reader or self.layer, self.cache, plan).split(counts))

    def layout(
        self, rows: Rows, spans: Sequence[tuple[int, int, int]], blocks: int = 0
    ) -> tuple[BatchLayout, list[torch.Tensor]]:
        """Tokens a:b of request i for each (i, a, b), and their q, k and v."""
        size, window = self.case.block_size, self.layer.window
        table = np.zeros((len(spans), -(-max(b for _, _, b in spans) // size)), np.int32)
        for line, (i, a, b) in enumerate(spans):
            behind = 0 if window is None else max(0, a - window + 1) // size
            table[line, behind : -(-b // size)] = rows.blocks[i][behind : -(-b // size)]
        query, context = (np.array(part, np.int32) for part in ([b - a for _, a, b in spans], [b for *_, b in spans]))
        tensors = [torch.cat([part[i][a:b] for i, a, b in spans]) for part in (rows.q, rows.k, rows.v)]
        return BatchLayout(query, context, (table,), blocks=blocks), tensors


def use_sizes(monkeypatch: pytest.MonkeyPatch, **sizes: int) -> None:
    """Have attention launched with these sizes instead of the table's."""
    found = Launch({"few": 0, "doubling": 16, "programs": 64, **sizes})
    monkeypatch.setattr(attention, "launch", lambda op, device: found)


def layer_of(case: AttentionCase, place: Device, kv_heads: int = 2) -> AttentionLayer:
    heads, parts = kv_heads * case.ratio, case.feature.split("+")
    spread = torch.linspace(-1.0, 1.0, heads, device=place.torch_device)
    return AttentionLayer(
        1,
        heads,
        kv_heads,
        case.head_dim,
        case.head_dim**-0.5,
        window=case.block_size + 3 if "window" in parts else None,
        soft_cap=1.5 if "soft_cap" in parts else None,
        sinks=spread if "sinks" in parts else None,
        alibi=2.0 ** (-4 - 2 * spread) if "alibi" in parts else None,
        place=1,
        key_scale=0.5,
        value_scale=0.25,
    )


def rows_of(case: AttentionCase, place: Device, lengths: Sequence[int], kv_heads: int = 2) -> Rows:
    source = torch.Generator().manual_seed(case.head_dim + case.ratio)
    counts = [-(-length // case.block_size) for length in lengths]
    pages = 1 + torch.randperm(sum(counts), generator=source).numpy()

    def draw(heads: int) -> list[torch.Tensor]:
        shapes = [(length, heads, case.head_dim) for length in lengths]
        drawn = [torch.randn(shape, generator=source) for shape in shapes]
        return [x.to(place.torch_device, getattr(torch, case.dtype)) for x in drawn]

    blocks = np.split(pages, np.cumsum(counts)[:-1])
    return Rows(lengths, draw(kv_heads * case.ratio), draw(kv_heads), draw(kv_heads), blocks)


def ragged(block_size: int) -> list[int]:
    return [1, block_size - 1, block_size, block_size + 1, 2 * block_size + 3]


def check_against_torch(
    case: AttentionCase, place: Device, kv_heads: int, lengths: Sequence[int] | None = None
) -> None:
    """Prompts without their last token, then that; the caches hold the same bits."""
    lengths = lengths or ragged(case.block_size)
    rows = rows_of(case, place, lengths, kv_heads)
    kernels, plain = (Cached(one(), case, place, kv_heads=kv_heads) for one in (TritonAttention, TorchAttention))
    ends = [length - 1 for length in lengths]
    for start, stop in (([0] * len(ends), ends), (ends, lengths)):
        found, wanted = (torch.cat(one.step(rows, start, stop)) for one in (kernels, plain))
        torch.testing.assert_close(found, wanted, rtol=0.0, atol=TOLERANCE[case.dtype])
    assert all(torch.equal(*pieces) for pieces in zip(kernels.cache.pieces, plain.cache.pieces, strict=True))


@pytest.mark.daily(case=FEW)
@pytest.mark.parametrize("case", [*FEW, LARGE], ids=str)
def test_agrees_with_torch(case: AttentionCase, place: Device) -> None:
    check_against_torch(case, place, kv_heads=1)


def test_large_blocks_agree_with_torch(place: Device) -> None:
    check_against_torch(LARGE, place, kv_heads=1, lengths=[2, 257])


def test_conforms(place: Device) -> None:
    check_attention(TritonAttention(), place, replace(CASE, dtype="float16", feature="window+sinks", kv_dtype="int8"))


@pytest.mark.slow
@pytest.mark.parametrize("case", attention_cases((16,), DTYPES, kv_dtypes=KV_DTYPES), ids=str)
def test_conforms_in_every_pair(case: AttentionCase, place: Device) -> None:
    check_attention(TritonAttention(), place, case)


@pytest.mark.slow
@pytest.mark.parametrize("feature", ["plain", "window+sinks"])
def test_long_contexts_are_row_invariant(feature: str, place: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """In large tiles, for the interpreter takes its time by program."""
    if place.torch_device.type == "cpu":
        use_sizes(monkeypatch, rows=512, keys=128, segment=512)
    case = AttentionCase("bfloat16", 64, 2, 64, feature)
    check_row_invariance(TritonAttention(), place, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", MANY, ids=str)
def test_agrees_with_torch_in_every_pair(case: AttentionCase, place: Device) -> None:
    check_against_torch(case, place, kv_heads=2)


@pytest.mark.parametrize("case", [CASE, replace(CASE, feature="window+sinks", ratio=7, dtype="bfloat16")], ids=str)
def test_a_token_has_the_same_bits_in_any_company(
    case: AttentionCase, place: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a batch of prompts, alone in chunks, and decoded; contexts of several segments, in one program and in many."""
    use_sizes(monkeypatch, rows=64, keys=16, segment=16, doubling=1, programs=10)
    lengths = [40, 1, 75]
    rows = rows_of(case, place, lengths, kv_heads=1)
    together, alone = (Cached(TritonAttention(), case, place, kv_heads=1) for _ in range(2))
    whole = together.step(rows, [0] * 3, lengths)
    for i, length in enumerate(lengths):
        for start in range(0, length, 25):
            stop = min(start + 25, length)
            only = [(start, stop) if j == i else (0, 0) for j in range(3)]
            (found,) = alone.step(rows, *zip(*only, strict=True))
            assert torch.equal(found, whole[i][start:stop]), f"tokens {start} to {stop} of {length} alone"
    for batch in ([0, 1, 2], [2]):
        ends = [length - (i in batch) for i, length in enumerate(lengths)]
        for i, found in zip(batch, together.step(rows, ends, lengths), strict=True):
            assert torch.equal(found[0], whole[i][-1]), f"decoding the last token of {lengths[i]}, with {batch}"


@pytest.mark.parametrize("feature", ["sinks", "window"])
def test_more_programs_change_no_bit(feature: str, place: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt, the rest of another and a decoded token, by as many programs as there are tiles, and by more."""
    case = replace(CASE, feature=feature)
    rows = rows_of(case, place, [100, 20, 70], kv_heads=1)
    found = []
    for programs in (1, 12, 100):
        use_sizes(monkeypatch, rows=64, keys=16, segment=16, doubling=2, programs=programs)
        cached = Cached(TritonAttention(), case, place, kv_heads=1)
        cached.step(rows, [0, 0, 0], [0, 5, 69])
        found.append(torch.cat(cached.step(rows, [0, 5, 69], [100, 20, 70])))
        _, cut = cached.plan.more
        assert ((cut[:, 1] < 100).sum() > 0) == (programs > 1)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_tiles_of_fewer_rows_change_no_bit(place: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a step has one token a row, tiles may be small."""
    case = replace(CASE, dtype="float16")
    rows = rows_of(case, place, [70, 20], kv_heads=1)
    found = []
    for few in (0, 16):
        use_sizes(monkeypatch, rows=64, keys=16, segment=32, few=few)
        cached = Cached(TritonAttention(), case, place, kv_heads=1)
        cached.step(rows, [0, 0], [69, 19])
        found.append(torch.cat(cached.step(rows, [69, 19], [70, 20])))
    assert torch.equal(*found)


def test_recorded_launches_serve_other_contexts(place: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a graph replays them: nothing that a launch is told depends on how long rows are."""
    if place.torch_device.type != "cpu":
        pytest.skip("kernels are launched by Triton here")
    use_sizes(monkeypatch, rows=64, keys=16, segment=16, doubling=2, programs=6)
    rows = rows_of(CASE, place, [150, 30, 90], kv_heads=1)
    replayed, other = (Cached(TritonAttention(), CASE, place, kv_heads=1) for _ in range(2))
    for cached in (replayed, other):
        cached.step(rows, [0] * 3, [149, 29, 89])
    batch, tensors = replayed.layout(rows, [(0, 9, 10), (1, 3, 4), (2, 7, 8)], blocks=12)
    plan, recording = replayed.backend.plan(batch, replayed.group), Recording([(GridExecutor, "__call__")])
    with recording.capture():
        out = replayed.backend.attend(*tensors, replayed.layer, replayed.cache, plan)
    assert len(recording) >= 3, "the write, attention, and the merging of parts"
    batch, now = replayed.layout(rows, [(0, 149, 150), (1, 29, 30), (2, 89, 90)], blocks=12)
    assert replayed.backend.plan(batch, replayed.group, plan) is plan
    for old, new in zip(tensors, now, strict=True):
        old.copy_(new)
    recording.replay()
    assert torch.equal(out, torch.cat(other.step(rows, [149, 29, 89], [150, 30, 90])))


@pytest.mark.parametrize("contexts", [[100] * 8, [131072] + [1000] * 255])
def test_programs_follow_the_rows_and_not_the_longest_context(
    contexts: list[int], place: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place.torch_device.type != "cpu":
        pytest.skip("kernels are launched by Triton here")
    use_sizes(monkeypatch, rows=64, keys=64, segment=512, doubling=16, programs=528)
    cached = Cached(TritonAttention(), replace(CASE, block_size=64), place, pages=2)
    grids: list[tuple[int, ...]] = []
    monkeypatch.setattr(GridExecutor, "__call__", lambda launched, *args, **names: grids.append(launched.grid))
    ones, table = np.ones(len(contexts), np.int32), np.zeros((len(contexts), 131072 // 64), np.int32)
    plan = cached.backend.plan(BatchLayout(ones, np.array(contexts, np.int32), (table,)), cached.group)
    q = torch.zeros(len(contexts), 8, 64)
    cached.backend.attend(q, None, None, cached.layer, cached.cache, plan)
    assert grids == [(len(contexts) + 264, 2), (min(len(contexts), 264), 2, 1)]


@pytest.mark.parametrize("backend", [TritonAttention, TorchAttention])
def test_a_plan_that_is_refilled_serves_as_a_new_one(backend: type[PagedBackend], place: Device) -> None:
    """Its tensors stay where they are, which a captured step relies on."""
    rows = rows_of(CASE, place, [20, 30, 18, 31])
    one, other = Cached(backend(), CASE, place), Cached(backend(), CASE, place)
    for cached in (one, other):
        cached.step(rows, [0] * 4, [17, 28, 16, 30])
    first = one.step(rows, [17, 28, 0, 0], [18, 29, 0, 0])
    plan, places = one.plan, [part.data_ptr() for part in (one.plan.starts, one.plan.tables, one.plan.slots)]
    second = one.step(rows, [0, 0, 16, 30], [0, 0, 17, 31], into=plan)
    assert one.plan is plan
    assert [part.data_ptr() for part in (plan.starts, plan.tables, plan.slots)] == places
    for found, start in ((first, [17, 28, 16, 30]), (second, [17, 28, 16, 30])):
        chosen = (0, 1) if found is first else (2, 3)
        alone = [(start[i], start[i] + 1) if i in chosen else (0, 0) for i in range(4)]
        assert torch.equal(torch.cat(found), torch.cat(other.step(rows, *zip(*alone, strict=True))))


def test_rows_that_fill_up_change_nothing(place: Device) -> None:
    """One token at position 0 of the null page, and tables wider than any row needs."""
    rows = rows_of(CASE, place, [20])
    cached = Cached(TritonAttention(), CASE, place)
    cached.step(rows, [0], [19])
    query, context = np.ones(4, np.int32), np.array([20, 1, 1, 1], np.int32)
    table = np.zeros((4, 2), np.int32)
    table[0] = rows.blocks[0]
    plan = cached.backend.plan(BatchLayout(query, context, (table,), blocks=5), cached.group)
    assert plan.tables.shape == (4, 5)
    q, k, v = (torch.cat([part[0][19:], part[0][:3]]) for part in (rows.q, rows.k, rows.v))
    found = cached.backend.attend(q, k, v, cached.layer, cached.cache, plan)
    assert torch.equal(found[:1], cached.step(rows, [19], [20])[0])


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_reading_what_lies_before_and_behind(kv_dtype: str, place: Device) -> None:
    case = replace(CASE, kv_dtype=kv_dtype, dtype="float16")
    rows = rows_of(case, place, [5, 40])
    kernels, plain = Cached(TritonAttention(), case, place), Cached(TorchAttention(), case, place)
    for cached in (kernels, plain):
        cached.step(rows, [0, 0], [5, 40])
    for causal in (True, False):
        reader = replace(kernels.layer, causal=causal)
        found, wanted = (torch.cat(one.step(rows, [3, 17], [5, 40], reader=reader)) for one in (kernels, plain))
        torch.testing.assert_close(found, wanted, rtol=0.0, atol=TOLERANCE["float16"])


@pytest.mark.parametrize(("causal", "window"), [(True, None), (False, None), (False, 7)])
def test_without_a_cache(causal: bool, window: int | None, place: Device) -> None:
    """q, k and v are slices of one projection, as most models have them."""
    layer = replace(layer_of(CASE, place), causal=causal, window=window)
    query = np.array([1, 40, 17], np.int32)
    layout, group = BatchLayout(query, query, ()), KVGroup(0, "full", (0,), 0)
    fused = torch.randn(58, 12, 64, generator=torch.Generator().manual_seed(1)).to(place.torch_device)
    q, k, v = fused.split((8, 2, 2), dim=1)
    backends = (Cached(one(), CASE, place).backend for one in (TritonAttention, TorchAttention))
    found, wanted = (one.attend(q, k, v, layer, None, one.plan(layout, group)) for one in backends)
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=TOLERANCE["float32"])


@pytest.mark.parametrize("kv_dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_every_half_float_is_rounded_as_torch_rounds_it(kv_dtype: str, place: Device) -> None:
    """And what is kept is read as what it stands for: one key, so its value is the result."""
    case = replace(CASE, dtype="float16", kv_dtype=kv_dtype, ratio=1)
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)
    every = every.view(512, 2, 64).to(place.torch_device)
    kernels, plain = (Cached(backend, case, place, pages=520) for backend in (TritonAttention(), TorchAttention()))
    ones = np.ones(512, np.int32)
    layout = BatchLayout(ones, ones, (np.arange(1, 513, dtype=np.int32)[:, None],))
    plan = plain.backend.plan(layout, plain.group)
    torch_attention.write(every, every, plain.layer, plain.cache, plan)
    write_kernel.write(every, every, kernels.layer, kernels.cache, plan)
    dtype = getattr(torch, kv_dtype)
    found, wanted = (one.cache.of(one.layer).keys[1:513, :, 0].view(dtype).float() for one in (kernels, plain))
    assert torch.equal(found.nan_to_num(1e9), wanted.nan_to_num(1e9))
    assert torch.equal(found.isnan(), every.isnan())
