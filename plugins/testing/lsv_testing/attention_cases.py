"""The cases that attention backends are checked with: their layers and requests, and the expected results.

Expected values are computed here, in float64 from the same rounded inputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lsv_runtime.attention import AttentionLayer, values_of
from lsv_runtime.attention.pattern import BlockPattern
from lsv_runtime.devices.device import Device

Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

HEAD_DIMS = (64, 128, 80, 32, 96, 256)
RATIOS = (7, 1, 4, 2, 8)
FEATURES = ("plain", "window", "soft_cap", "sinks", "alibi", "window+sinks", "window+soft_cap", "values_in_keys")
"""What every backend has or refuses; those that have them are also asked for ``"biases"`` and
``"pattern"``."""
_TOLERANCE = {"float32": 5e-5, "float16": 4e-3, "bfloat16": 3e-2}
_COARSENESS = {torch.float8_e4m3fn: 0.3, torch.float8_e5m2: 0.6, torch.int8: 0.05}
"""How far a quantised cache may move outputs away from those of the cache it stands for."""
_KV_HEADS = 2


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """One combination to check."""

    dtype: str
    """Of the step, by torch's name."""

    head_dim: int

    ratio: int
    """Query heads per KV head."""

    block_size: int

    feature: str
    """One of ``FEATURES``."""

    kv_dtype: str = "auto"
    """Of the cache, by torch's name; ``"auto"`` is that of the step."""

    @property
    def torch_dtype(self) -> torch.dtype:
        return _dtype(self.dtype)

    @property
    def cache_dtype(self) -> torch.dtype:
        return _dtype(self.dtype if self.kv_dtype == "auto" else self.kv_dtype)

    @property
    def tolerance(self) -> float:
        return _TOLERANCE[self.dtype]

    @property
    def coarseness(self) -> float:
        """How far the cache may move outputs away from those of keys and values that are not quantised."""
        return _COARSENESS.get(self.cache_dtype, 0.0)

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
    """Cases in which any two values of different factors occur together at least once."""
    factors: tuple[Sequence[Any], ...] = (dtypes, head_dims, ratios, block_sizes, features, kv_dtypes)
    return tuple(AttentionCase(*values) for values in cover_pairs(factors))


def cover_values(cases: Sequence[AttentionCase]) -> list[AttentionCase]:
    """The first few of ``cases`` that have every value of every factor."""
    seen: set[tuple[int, Any]] = set()
    chosen = []
    for case in cases:
        values = set(enumerate(astuple(case)))
        if values - seen:
            seen |= values
            chosen.append(case)
    return chosen


def cover_pairs(factors: Sequence[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    """A few combinations of one value per factor that cover every pair of values; always the same ones."""
    bits: dict[tuple[tuple[int, Any], tuple[int, Any]], int] = {}

    def pairs_of(values: Sequence[Any]) -> int:
        """A set of pairs, as the bits of a number: one of the few is chosen by counting thousands of these."""
        pairs = itertools.combinations(enumerate(values), 2)
        return sum(1 << bits.setdefault(pair, len(bits)) for pair in pairs)

    candidates = [(pairs_of(values), values) for values in itertools.product(*factors)]
    missing = (1 << len(bits)) - 1
    while missing:
        pairs, best = max(candidates, key=lambda candidate: (candidate[0] & missing).bit_count())
        missing &= ~pairs
        yield best


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """The tokens of one request."""

    length: int

    q: torch.Tensor
    """[length, heads, dim]"""

    k: torch.Tensor
    """[length, kv_heads, dim]"""

    v: torch.Tensor
    """[length, kv_heads, dim], or as many first features of keys as are values"""

    blocks: Int64s
    """The pages it was given."""


def expect(request: Request, positions: Int64s, length: int, layer: AttentionLayer) -> Floats:
    """Softmax attention in float64, one head at a time, of the queries at ``positions`` over ``length`` keys."""
    q, k, v = (tensor.double().cpu().numpy() for tensor in (request.q, request.k[:length], request.v[:length]))
    distance = positions[:, None] - np.arange(length)
    hidden = (distance < 0) if layer.causal else np.zeros_like(distance, bool)
    if layer.window is not None:
        hidden |= np.abs(distance) >= layer.window
    out = np.empty((len(positions), layer.heads, v.shape[2]))
    for head in range(layer.heads):
        kv_head = head // (layer.heads // layer.kv_heads)
        scores = q[positions, head] @ k[:, kv_head].T * layer.scale
        if layer.soft_cap is not None:
            scores = layer.soft_cap * np.tanh(scores / layer.soft_cap)
        if layer.alibi is not None:
            scores -= float(layer.alibi[head]) * np.abs(distance)
        if layer.biases is not None:
            biases = layer.biases[head].double().cpu().numpy()
            scores += biases[distance.clip(0, len(biases) - 1)]
        scores[hidden if layer.pattern is None else hidden | _skipped(layer.pattern, head, positions, length)] = -np.inf
        sink = -np.inf if layer.sinks is None else float(layer.sinks[head])
        peak = np.maximum(scores.max(axis=1, keepdims=True), sink)
        weights = np.exp(scores - peak)
        out[:, head] = weights @ v[:, kv_head] / (weights.sum(axis=1, keepdims=True) + np.exp(sink - peak))
    return out


def _skipped(pattern: BlockPattern, head: int, positions: Int64s, length: int) -> npt.NDArray[np.bool_]:
    """Which keys [positions, length] a head's queries do not see, token by token."""

    def skips(query: int, key: int) -> bool:
        block = key // pattern.size
        near = query // pattern.size - block < pattern.local
        return not near and (block + (pattern.first_head + head) * pattern.shift + 1) % pattern.stride != 0

    return np.array([[skips(query, key) for key in range(length)] for query in positions.tolist()], bool)


def as_kept(request: Request, layer: AttentionLayer, case: AttentionCase) -> Request:
    """The request with K and V as they are read back from a cache of the case's dtype."""
    dtype = case.cache_dtype

    def keep(x: torch.Tensor, scale: float) -> torch.Tensor:
        if dtype == torch.int8:
            scales = x.float().abs().amax(-1, keepdim=True) / 127
            return (x.float() / scales).round() * scales
        if dtype.itemsize > 1:
            return x
        largest = torch.finfo(dtype).max
        return (x.float() / scale).clamp(-largest, largest).to(dtype).float() * scale

    k = keep(request.k, layer.key_scale)
    return replace(request, k=k, v=values_of(k, keep(request.v, layer.value_scale), layer))


def compare(got: torch.Tensor, wanted: Floats, what: str, tolerance: float) -> None:
    error = np.abs(got.double().cpu().numpy() - wanted).max(initial=0.0)
    assert error <= tolerance, f"{what}: off by {error:.3g}"


def make_layer(case: AttentionCase, device: Device) -> AttentionLayer:
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
        biases=torch.stack([spread * (one % 3 - 1.5) for one in range(2 * case.block_size)], 1)
        if "biases" in parts
        else None,
        pattern=BlockPattern(size=5, local=2, stride=3, shift=2, first_head=1) if "pattern" in parts else None,
        place=1,
        key_scale=0.5 if case.kv_dtype != "auto" else 1.0,
        value_scale=0.25 if case.kv_dtype != "auto" else 1.0,
        value_dim=case.head_dim - 12 if "values_in_keys" in parts else None,
    )


def make_requests(
    case: AttentionCase, layer: AttentionLayer, device: Device, lengths: Sequence[int] | None = None
) -> list[Request]:
    """Requests with lengths near multiples of the block size, on shuffled pages; always the same ones for a case."""
    size = case.block_size
    lengths = lengths or (1, 2, size - 1, size, size + 1, 3 * size + 5)
    source = torch.Generator().manual_seed(case.head_dim * case.ratio + size)
    counts = [-(-length // size) for length in lengths]
    pages = 1 + torch.randperm(sum(counts), generator=source).numpy()

    def draw(length: int, heads: int) -> torch.Tensor:
        values = torch.randn(length, heads, layer.head_dim, generator=source)
        return values.to(device.torch_device, case.torch_dtype)

    def make(length: int, blocks: Int64s) -> Request:
        q, k, v = (draw(length, heads) for heads in (layer.heads, layer.kv_heads, layer.kv_heads))
        return Request(length, q, k, values_of(k, v, layer), blocks)

    return [
        make(length, blocks) for length, blocks in zip(lengths, np.split(pages, np.cumsum(counts)[:-1]), strict=True)
    ]


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype
