"""The conformance suite of attention backends: what each must compute, whatever its layout and its kernels.

@pytest.mark.parametrize("case", attention_cases(OFFER.block_sizes, ("bfloat16",)), ids=str)
def test_attention(case, device):
    check_attention(MyAttention(), device, case)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from lsv.kv.spec import KVGroup, KVSpec
from lsv_runtime.attention import AttentionBackend, AttentionLayer, BatchLayout, CacheSpec, token_bytes
from lsv_runtime.devices.device import Device
from lsv_testing.attention_cases import (
    FEATURES,
    HEAD_DIMS,
    RATIOS,
    AttentionCase,
    Request,
    as_kept,
    attention_cases,
    compare,
    cover_pairs,
    cover_values,
    expect,
    make_layer,
    make_requests,
)
from lsv_testing.layouts import Padded, attend_batch, write_batch

__all__ = [
    "FEATURES", "HEAD_DIMS", "RATIOS", "AttentionCase", "attention_cases", "check_attention", "check_row_invariance",
    "cover_pairs",
    "cover_values",
]  # fmt: skip


def check_attention(
    backend: AttentionBackend,
    device: Device,
    case: AttentionCase,
    *,
    layout: Padded | None = None,
    lengths: Sequence[int] | None = None,
) -> None:
    """All checks of one case; raises ``AssertionError`` that names the case and the step which went wrong.

    Layers that the backend does not support are not checked. ``layout`` None is the flat one. ``lengths`` are those of
    the requests; by default they are near multiples of the block size.
    """
    layer = make_layer(case, device)
    if backend.supports(layer) is not None:
        return
    requests = make_requests(case, layer, device, lengths)
    _check_null_page(backend, device, case, layer, requests, layout)
    _check_cached(backend, device, case, layer, requests, layout)
    _check_reading(backend, device, case, layer, requests, layout)
    _check_items(backend, device, case, layer, requests, layout)
    _check_without_cache(backend, case, layer, requests, layout)
    _check_across(backend, device, case, layer, requests, layout)
    gathered = replace(layer, gathered=True)
    if layout is None and backend.supports(gathered) is None and layer.kind in ("full", "latent"):
        _check_gathered(_Cached(backend, device, case, gathered, requests, layout), case, requests)


def check_row_invariance(
    backend: AttentionBackend,
    device: Device,
    case: AttentionCase,
    *,
    layout: Padded | None = None,
    lengths: Sequence[int] | None = None,
) -> None:
    """A row's bits are the same alone and in a batch, in one chunk and in many; for backends that promise it."""
    layer = make_layer(case, device)
    if backend.supports(layer) is not None:
        return
    requests = make_requests(case, layer, device, lengths or (3 * case.block_size + 5, 1, 40, 1100, 2))
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


Rows = Sequence[tuple[Request, int, int]]
"""Requests of a step with the tokens [start, stop) that it computes."""


class _Cached:
    """A backend with a cache full of NaN, as earlier users of its pages may have left it."""

    def __init__(
        self,
        backend: AttentionBackend,
        device: Device,
        case: AttentionCase,
        layer: AttentionLayer,
        requests: Sequence[Request],
        layout: Padded | None,
    ) -> None:
        self.backend, self.layer, self.block_size, self.layout = backend, layer, case.block_size, layout
        self.token_bytes = token_bytes(layer, case.cache_dtype)
        self.group = KVGroup(0, layer.kind, (0, 1), self.token_bytes, layer.window, layer.source)
        pages = 2 + max(int(request.blocks.max()) for request in requests)
        layers = [replace(layer, index=0, place=0), layer]
        self.cache = backend.allocate(CacheSpec([self.group], layers, pages, case.block_size, case.cache_dtype), device)
        for one in layers:
            self._spoil(one, pages, device, case.torch_dtype)

    def step(self, rows: Rows, *, layer: AttentionLayer | None = None, write: bool = True) -> list[torch.Tensor]:
        """What the rows' tokens attend to, row by row [count, heads, dim]."""
        q, k, v = (
            torch.cat([getattr(request, name)[start:stop] for request, start, stop in rows]) for name in ("q", "k", "v")
        )
        kv = (k, v) if write else (None, None)
        return attend_batch(
            self.backend, layer or self.layer, self.cache, self.group, (q, *kv), self._batch(rows), self.layout
        )

    def gather(self, rows: Rows, *, write: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of all tokens of the rows, once those of the step are written; without ``write`` they have been."""
        k, v = (torch.cat([getattr(request, name)[start:stop] for request, start, stop in rows]) for name in ("k", "v"))
        plan = self.backend.plan(batch := self._batch(rows), self.group)
        _, context = self.backend.lengths(plan)
        assert np.array_equal(context, batch.context), "lengths are not those of the rows"
        values = v if write and self.layer.value_dim is None else None
        return self.backend.gather(k if write else None, values, self.layer, self.cache, plan)

    def write(self, items: Sequence[Request]) -> None:
        """Keep k and v of whole items."""
        k, v = (torch.cat([getattr(item, name) for item in items]) for name in ("k", "v"))
        batch = self._batch([(item, 0, item.length) for item in items])
        write_batch(self.backend, self.layer, self.cache, self.group, (k, v), batch, self.layout)

    def read(self, rows: Sequence[tuple[Request, torch.Tensor]]) -> list[torch.Tensor]:
        """What queries [count, heads, dim] read from the items of their rows, row by row."""
        queries = [q for _, q in rows]
        batch = self._batch([(item, 0, item.length) for item, _ in rows])
        batch = replace(batch, query=np.array([len(q) for q in queries], np.int32))
        tensors = (torch.cat(queries), None, None)
        return attend_batch(self.backend, self.layer, self.cache, self.group, tensors, batch, self.layout)

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


def _check_null_page(
    backend: AttentionBackend,
    device: Device,
    case: AttentionCase,
    layer: AttentionLayer,
    requests: Sequence[Request],
    layout: Padded | None,
) -> None:
    """Memory is measured on the null page alone, before it is known how large the cache may be: prompts must run there,
    whatever they find. A larger cache is allocated after it.
    """
    group = KVGroup(0, layer.kind, (0,), token_bytes(layer, case.cache_dtype), layer.window, layer.source)
    only = replace(layer, index=0, place=0)
    cache = backend.allocate(CacheSpec([group], [only], 1, case.block_size, case.cache_dtype), device)
    lengths = np.array([request.length for request in requests], np.int32)
    table = np.zeros((len(requests), -(-int(lengths.max()) // case.block_size)), np.int32)
    q, k, v = (torch.cat([getattr(request, name) for request in requests]) for name in ("q", "k", "v"))
    found = attend_batch(backend, only, cache, group, (q, k, v), BatchLayout(lengths, lengths, (table,)), layout)
    shapes = [(request.length, *request.q.shape[1:2], request.v.shape[2]) for request in requests]
    assert [tuple(out.shape) for out in found] == shapes, f"{case}: on the null page"


def _check_cached(
    backend: AttentionBackend,
    device: Device,
    case: AttentionCase,
    layer: AttentionLayer,
    requests: Sequence[Request],
    layout: Padded | None,
) -> None:
    """Half of every request, the rest up to its last token, then that: chunked prefill, mixed batches, decoding."""
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
            compare(got, expect(as_kept(request, layer, case), places, stop, layer), what, case.tolerance)
            loose = case.tolerance + case.coarseness
            compare(got, expect(request, places, stop, layer), f"{what}, from unquantised keys and values", loose)


def _check_reading(
    backend: AttentionBackend,
    device: Device,
    case: AttentionCase,
    layer: AttentionLayer,
    requests: Sequence[Request],
    layout: Padded | None,
) -> None:
    """k and v None leave the cache unchanged; a layer that is not causal then reads all of it."""
    cached = _Cached(backend, device, case, layer, requests, layout)
    cached.step([(request, 0, request.length) for request in requests])
    last = [(request, request.length - 1, request.length) for request in requests]
    layers = [layer] if layer.window is not None else [layer, replace(layer, causal=False)]
    for reader in layers:
        if backend.supports(reader) is not None:
            continue
        for (request, start, stop), got in zip(last, cached.step(last, layer=reader, write=False), strict=True):
            wanted = expect(as_kept(request, layer, case), np.arange(start, stop), stop, reader)
            compare(got, wanted, f"{case}: reading {stop} tokens, causal={reader.causal}", case.tolerance)


def _check_items(
    backend: AttentionBackend,
    device: Device,
    case: AttentionCase,
    layer: AttentionLayer,
    requests: Sequence[Request],
    layout: Padded | None,
) -> None:
    """Tokens that see one another are asked for again, in rows of their own that end where an item does."""
    if layer.biases is not None or backend.supports(replace(layer, mutual=True)) is not None:
        return
    cached = _Cached(backend, device, case, layer, requests, layout)
    cached.step([(request, 0, request.length) for request in requests])
    both = replace(layer, causal=False)
    # no item is longer than a window
    ends = [(request, request.length - request.length // 4) for request in requests if request.length > 1]
    rows = [(request, max(0, stop - min(5, layer.window or 5)), stop) for request, stop in ends]
    for (request, start, stop), got in zip(rows, cached.step(rows, layer=both, write=False), strict=True):
        wanted = expect(as_kept(request, layer, case), np.arange(start, stop), stop, both)
        compare(got, wanted, f"{case}: an item of {stop - start} tokens up to {stop}", case.tolerance)


def _check_across(
    backend: AttentionBackend,
    device: Device,
    case: AttentionCase,
    layer: AttentionLayer,
    requests: Sequence[Request],
    layout: Padded | None,
) -> None:
    """Items are written on their own, then read by rows of any number of tokens, even more than the item has."""
    across = replace(layer, causal=False, window=None, source=max(request.length for request in requests))
    if layer.alibi is not None or layer.biases is not None or backend.supports(across) is not None:
        return
    cached = _Cached(backend, device, case, across, requests, layout)
    cached.write(requests)
    for counts in ((1,), (3, 1, 5, 2)):
        chosen = [counts[row % len(counts)] for row in range(len(requests))]
        rows = [(one, one.q.repeat(count, 1, 1)[:count]) for one, count in zip(requests, chosen, strict=True)]
        for (one, q), got in zip(rows, cached.read(rows), strict=True):
            kept = replace(as_kept(one, layer, case), q=q)
            what = f"{case}: {len(q)} tokens across, to an item of {one.length}"
            compare(got, expect(kept, np.arange(len(q)), one.length, across), what, case.tolerance)


def _check_without_cache(
    backend: AttentionBackend,
    case: AttentionCase,
    layer: AttentionLayer,
    requests: Sequence[Request],
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
            wanted = expect(request, np.arange(request.length), request.length, reader)
            what = f"{case}: without a cache, causal={causal}, {request.length} tokens"
            compare(got, wanted, what, case.tolerance)


def _check_gathered(cached: _Cached, case: AttentionCase, requests: Sequence[Request]) -> None:
    """In two chunks, K and V come back as they were written, and again where nothing is."""
    halves = [request.length // 2 for request in requests]
    cached.gather([(request, 0, half) for request, half in zip(requests, halves, strict=True) if half])
    rest = [(request, half, request.length) for request, half in zip(requests, halves, strict=True)]
    kept = [as_kept(request, cached.layer, case) for request in requests]
    for found in (cached.gather(rest), cached.gather(rest, write=False)):
        for name, got in zip(("k", "v"), found, strict=True):
            wanted = torch.cat([getattr(request, name) for request in kept]).double().cpu().numpy()
            compare(got, wanted, f"{case}: gathering {name}", case.tolerance)
