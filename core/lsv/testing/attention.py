"""Conformance of attention backends: what any backend must compute, whatever its layout and its kernels.

    @pytest.mark.parametrize("case", attention_cases(MyAttention.block_sizes, ("bfloat16",)), ids=str)
    def test_attention(case, device):
        check_attention(MyAttention(), device, case)

Expected values come from float64 arithmetic written out here, of the same rounded inputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lsv.attention import AttentionBackend, AttentionLayer, BatchLayout, token_bytes
from lsv.kv.spec import KVGroup, KVSpec
from lsv.platform import Device
from lsv.testing.layouts import Padded, attend_batch

Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

HEAD_DIMS = (64, 128, 80, 32, 96, 256)
RATIOS = (7, 1, 4, 2, 8)
FEATURES = ("plain", "window", "soft_cap", "sinks", "alibi", "window+sinks", "window+soft_cap")
_TOLERANCE = {"float32": 5e-5, "float16": 4e-3, "bfloat16": 3e-2}
_COARSENESS = {torch.float8_e4m3fn: 0.3, torch.float8_e5m2: 0.6, torch.int8: 0.05}
"""How far a quantised cache may take outputs from those of the cache it stands for."""
_KV_HEADS = 2


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """One combination to check. ``ratio`` is query heads per KV head; ``feature`` one of ``FEATURES``.

    ``kv_dtype`` is that of the cache, by torch's name; ``"auto"`` the same as ``dtype``.
    """

    dtype: str
    head_dim: int
    ratio: int
    block_size: int
    feature: str
    kv_dtype: str = "auto"

    def __str__(self) -> str:
        kv = "" if self.kv_dtype == "auto" else f"-kv_{self.kv_dtype}"
        return f"{self.dtype}-dim{self.head_dim}-gqa{self.ratio}-block{self.block_size}-{self.feature}{kv}"


def attention_cases(
    block_sizes: Sequence[int],
    dtypes: Sequence[str],
    *,
    head_dims: Sequence[int] = HEAD_DIMS,
    ratios: Sequence[int] = RATIOS,
    features: Sequence[str] = FEATURES,
    kv_dtypes: Sequence[str] = ("auto",),
) -> tuple[AttentionCase, ...]:
    """Cases in which every two values of different factors meet at least once."""
    factors: tuple[Sequence[Any], ...] = (dtypes, head_dims, ratios, block_sizes, features, kv_dtypes)
    return tuple(AttentionCase(*values) for values in cover_pairs(factors))


def cover_pairs(factors: Sequence[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    """Few combinations of one value of each factor that hold every pair of values; always the same ones."""
    missing = {
        ((i, a), (j, b))
        for (i, first), (j, second) in itertools.combinations(enumerate(factors), 2)
        for a in first
        for b in second
    }

    def pairs_of(values: Sequence[Any]) -> set[tuple[tuple[int, Any], tuple[int, Any]]]:
        return set(itertools.combinations(enumerate(values), 2)) & missing

    candidates = list(itertools.product(*factors))
    while missing:
        best = max(candidates, key=lambda values: len(pairs_of(values)))
        missing -= pairs_of(best)
        yield best


def check_attention(
    backend: AttentionBackend,
    device: Device,
    case: AttentionCase,
    *,
    layout: Padded | None = None,
    lengths: Sequence[int] | None = None,
) -> None:
    """All checks of one case; raises ``AssertionError`` that names the case and the step which went wrong.

    A layer that the backend says it does not support is not checked. ``layout`` None is a flat one. ``lengths`` are
    those of the requests; by default they lie around the borders of blocks.
    """
    layer = _layer(case, device)
    if backend.supports(layer) is not None:
        return
    requests = _requests(case, layer, device, lengths)
    _check_cached(backend, device, case, layer, requests, layout)
    _check_reading(backend, device, case, layer, requests, layout)
    _check_without_cache(backend, case, layer, requests, layout)


def check_row_invariance(
    backend: AttentionBackend,
    device: Device,
    case: AttentionCase,
    *,
    layout: Padded | None = None,
    lengths: Sequence[int] | None = None,
) -> None:
    """A row's bits are the same alone and in company, in one chunk and in many; for backends that promise it."""
    layer = _layer(case, device)
    if backend.supports(layer) is not None:
        return
    requests = _requests(case, layer, device, lengths or (3 * case.block_size + 5, 1, 40, 1100, 2))
    together = _Cached(backend, device, case, layer, requests, layout)
    whole = together.step([(request, 0, request.length) for request in requests])
    for request, row in zip(requests, whole, strict=True):
        for size in (request.length, 7 if request.length < 200 else 67):
            alone = _Cached(backend, device, case, layer, [request], layout)
            chunks = [
                alone.step([(request, start, min(start + size, request.length))])[0]
                for start in range(0, request.length, size)
            ]
            same = torch.equal(torch.cat(chunks), row)
            assert same, f"{case}: {request.length} tokens alone, {size} at a time, differ from the same in a batch"
    last = together.step([(request, request.length - 1, request.length) for request in requests])
    for request, got, row in zip(requests, last, whole, strict=True):
        assert torch.equal(got[0], row[-1]), f"{case}: decoding token {request.length - 1} differs from its prefill"


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    """q [length, heads, dim], k and v [length, kv_heads, dim]; ``blocks`` are the pages it was given."""

    length: int
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    blocks: Int64s


Rows = Sequence[tuple[_Request, int, int]]
"""Requests of a step with the tokens [start, stop) that it computes."""


class _Cached:
    """A backend with a cache full of NaN, as earlier tenants of its pages may have left it."""

    def __init__(
        self,
        backend: AttentionBackend,
        device: Device,
        case: AttentionCase,
        layer: AttentionLayer,
        requests: Sequence[_Request],
        layout: Padded | None,
    ) -> None:
        self.backend, self.layer, self.block_size, self.layout = backend, layer, case.block_size, layout
        self.token_bytes = token_bytes(layer, _kv_dtype(case))
        self.group = KVGroup(0, "full" if layer.window is None else "window", (0, 1), self.token_bytes, layer.window)
        pages = 2 + max(int(request.blocks.max()) for request in requests)
        layers = [replace(layer, index=0, place=0), layer]
        self.cache = backend.allocate([self.group], layers, pages, case.block_size, _kv_dtype(case), device)
        for one in layers:
            self._spoil(one, pages, device, _dtype(case))

    def step(self, rows: Rows, *, layer: AttentionLayer | None = None, write: bool = True) -> list[torch.Tensor]:
        """What the rows' tokens attend to, row by row [count, heads, dim]."""
        q, k, v = (
            torch.cat([getattr(request, name)[start:stop] for request, start, stop in rows]) for name in ("q", "k", "v")
        )
        kv = (k, v) if write else (None, None)
        return attend_batch(
            self.backend, layer or self.layer, self.cache, self.group, (q, *kv), self._batch(rows), self.layout
        )

    def _batch(self, rows: Rows) -> BatchLayout:
        context = np.array([stop for _, _, stop in rows], np.int32)
        table = np.zeros((len(rows), -(-int(context.max()) // self.block_size)), np.int32)
        for row, (request, start, stop) in enumerate(rows):
            used = -(-stop // self.block_size)
            behind = 0 if self.layer.window is None else max(0, start - self.layer.window + 1) // self.block_size
            table[row, behind:used] = request.blocks[behind:used]
        query = np.array([stop - start for _, start, stop in rows], np.int32)
        return BatchLayout(query, context, (table,))

    def _spoil(self, layer: AttentionLayer, pages: int, device: Device, dtype: torch.dtype) -> None:
        size = self.block_size
        lengths = np.full(pages, size, np.int32)
        batch = BatchLayout(lengths, lengths, (np.arange(pages, dtype=np.int32)[:, None],))
        shape = (pages * size, layer.kv_heads, layer.head_dim)
        nothing = torch.full(shape, torch.nan, dtype=dtype, device=device.torch_device)
        q = torch.zeros(shape[0], layer.heads, layer.head_dim, dtype=dtype, device=device.torch_device)
        tensors = (q, nothing, nothing.clone())
        attend_batch(self.backend, layer, self.cache, self.group, tensors, batch, self.layout)


def _check_cached(
    backend: AttentionBackend,
    device: Device,
    case: AttentionCase,
    layer: AttentionLayer,
    requests: Sequence[_Request],
    layout: Padded | None,
) -> None:
    """Half of every request, the rest but its last token, then that: chunked prefill, mixed batches, decoding."""
    cached = _Cached(backend, device, case, layer, requests, layout)
    spec = KVSpec(layer.index, cached.group.kind, cached.token_bytes, window=layer.window)
    page = backend.page_bytes(spec, case.block_size)
    assert page >= cached.token_bytes * case.block_size, f"{case}: page_bytes {page} is less than a block's tokens take"
    borders: Sequence[Callable[[int], int]] = (lambda n: 0, lambda n: n // 2, lambda n: n - 1, lambda n: n)
    for number, (begin, end) in enumerate(itertools.pairwise(borders), start=1):
        rows = [(r, begin(r.length), end(r.length)) for r in requests if begin(r.length) < end(r.length)]
        for (request, start, stop), got in zip(rows, cached.step(rows), strict=True):
            what = f"{case}: step {number}, tokens {start} to {stop} of {request.length}"
            places = np.arange(start, stop)
            _compare(got, _attend(_kept(request, layer, case), places, stop, layer), what, _TOLERANCE[case.dtype])
            loose = _TOLERANCE[case.dtype] + _COARSENESS.get(_kv_dtype(case), 0.0)
            _compare(got, _attend(request, places, stop, layer), f"{what}, from unquantised keys and values", loose)


def _check_reading(
    backend: AttentionBackend,
    device: Device,
    case: AttentionCase,
    layer: AttentionLayer,
    requests: Sequence[_Request],
    layout: Padded | None,
) -> None:
    """k and v None leave the cache as it is; a layer that is not causal then reads all of it."""
    cached = _Cached(backend, device, case, layer, requests, layout)
    cached.step([(request, 0, request.length) for request in requests])
    last = [(request, request.length - 1, request.length) for request in requests]
    layers = [layer] if layer.window is not None else [layer, replace(layer, causal=False)]
    for reader in layers:
        if backend.supports(reader) is not None:
            continue
        for (request, start, stop), got in zip(last, cached.step(last, layer=reader, write=False), strict=True):
            wanted = _attend(_kept(request, layer, case), np.arange(start, stop), stop, reader)
            _compare(got, wanted, f"{case}: reading {stop} tokens, causal={reader.causal}", _TOLERANCE[case.dtype])


def _check_without_cache(
    backend: AttentionBackend,
    case: AttentionCase,
    layer: AttentionLayer,
    requests: Sequence[_Request],
    layout: Padded | None,
) -> None:
    lengths = np.array([request.length for request in requests], np.int32)
    q, k, v = (torch.cat([getattr(request, name) for request in requests]) for name in ("q", "k", "v"))
    no_blocks = np.zeros((len(requests), 0), np.int32)
    batch, group = BatchLayout(lengths, lengths, (no_blocks,)), KVGroup(0, "full", (1,), 0)
    for causal in (True, False):
        reader = replace(layer, causal=causal)
        if backend.supports(reader) is not None:
            continue
        out = attend_batch(backend, reader, None, group, (q, k, v), batch, layout)
        for request, got in zip(requests, out, strict=True):
            wanted = _attend(request, np.arange(request.length), request.length, reader)
            what = f"{case}: without a cache, causal={causal}, {request.length} tokens"
            _compare(got, wanted, what, _TOLERANCE[case.dtype])


def _attend(request: _Request, positions: Int64s, length: int, layer: AttentionLayer) -> Floats:
    """Softmax attention in float64, one head at a time, of the queries at ``positions`` over ``length`` keys."""
    q, k, v = (tensor.double().cpu().numpy() for tensor in (request.q, request.k[:length], request.v[:length]))
    distance = positions[:, None] - np.arange(length)
    hidden = (distance < 0) if layer.causal else np.zeros_like(distance, bool)
    if layer.window is not None:
        hidden |= np.abs(distance) >= layer.window
    out = np.empty((len(positions), layer.heads, layer.head_dim))
    for head in range(layer.heads):
        kv_head = head // (layer.heads // layer.kv_heads)
        scores = q[positions, head] @ k[:, kv_head].T * layer.scale
        if layer.soft_cap is not None:
            scores = layer.soft_cap * np.tanh(scores / layer.soft_cap)
        if layer.alibi is not None:
            scores -= float(layer.alibi[head]) * np.abs(distance)
        scores[hidden] = -np.inf
        sink = -np.inf if layer.sinks is None else float(layer.sinks[head])
        peak = np.maximum(scores.max(axis=1, keepdims=True), sink)
        weights = np.exp(scores - peak)
        out[:, head] = weights @ v[:, kv_head] / (weights.sum(axis=1, keepdims=True) + np.exp(sink - peak))
    return out


def _kept(request: _Request, layer: AttentionLayer, case: AttentionCase) -> _Request:
    """The request with K and V as a cache of the case's dtype gives them back."""
    dtype = _kv_dtype(case)

    def keep(x: torch.Tensor, scale: float) -> torch.Tensor:
        if dtype == torch.int8:
            scales = x.float().abs().amax(-1, keepdim=True) / 127
            return (x.float() / scales).round() * scales
        if dtype.itemsize > 1:
            return x
        largest = torch.finfo(dtype).max
        return (x.float() / scale).clamp(-largest, largest).to(dtype).float() * scale

    return replace(request, k=keep(request.k, layer.key_scale), v=keep(request.v, layer.value_scale))


def _compare(got: torch.Tensor, wanted: Floats, what: str, tolerance: float) -> None:
    error = np.abs(got.double().cpu().numpy() - wanted).max(initial=0.0)
    assert error <= tolerance, f"{what}: off by {error:.3g}"


def _layer(case: AttentionCase, device: Device) -> AttentionLayer:
    heads = _KV_HEADS * case.ratio
    parts = case.feature.split("+")
    spread = torch.linspace(-1.0, 1.0, heads, device=device.torch_device)
    return AttentionLayer(
        index=1,
        heads=heads,
        kv_heads=_KV_HEADS,
        head_dim=case.head_dim,
        scale=case.head_dim**-0.5,
        window=case.block_size + 3 if "window" in parts else None,
        soft_cap=1.5 if "soft_cap" in parts else None,
        sinks=spread if "sinks" in parts else None,
        alibi=2.0 ** (-4 - 2 * spread) if "alibi" in parts else None,
        place=1,
        key_scale=0.5 if case.kv_dtype != "auto" else 1.0,
        value_scale=0.25 if case.kv_dtype != "auto" else 1.0,
    )


def _requests(
    case: AttentionCase, layer: AttentionLayer, device: Device, lengths: Sequence[int] | None = None
) -> list[_Request]:
    """Requests whose lengths lie around the borders of blocks, over shuffled pages; the same for the same case."""
    size = case.block_size
    lengths = lengths or (1, 2, size - 1, size, size + 1, 3 * size + 5)
    source = torch.Generator().manual_seed(case.head_dim * case.ratio + size)
    counts = [-(-length // size) for length in lengths]
    pages = 1 + torch.randperm(sum(counts), generator=source).numpy()

    def draw(length: int, heads: int) -> torch.Tensor:
        values = torch.randn(length, heads, layer.head_dim, generator=source)
        return values.to(device.torch_device, _dtype(case))

    return [
        _Request(length, draw(length, layer.heads), draw(length, layer.kv_heads), draw(length, layer.kv_heads), blocks)
        for length, blocks in zip(lengths, np.split(pages, np.cumsum(counts)[:-1]), strict=True)
    ]


def _dtype(case: AttentionCase) -> torch.dtype:
    dtype = getattr(torch, case.dtype)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _kv_dtype(case: AttentionCase) -> torch.dtype:
    dtype = _dtype(case) if case.kv_dtype == "auto" else getattr(torch, case.kv_dtype)
    assert isinstance(dtype, torch.dtype)
    return dtype
