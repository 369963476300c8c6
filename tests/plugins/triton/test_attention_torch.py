"""Paged attention in plain torch against the conformance suite."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from lsv.kv.spec import KVGroup
from lsv_runtime.attention import AttentionLayer, CacheSpec
from lsv_runtime.devices.device import Device
from lsv_testing.attention import AttentionCase, attention_cases, check_attention
from lsv_triton import plugin
from lsv_triton.attention import torch_backend as torch_attention
from lsv_triton.attention.torch_backend import TorchAttention

pytestmark = pytest.mark.onednn

DTYPES = ("bfloat16", "float32", "float16")
BLOCK_SIZES = next(offer.block_sizes for offer in plugin.lsv_attention() if offer.name == "torch-paged")


def cases(block_sizes: Sequence[int]) -> list[AttentionCase]:
    quantised = attention_cases(
        block_sizes,
        DTYPES,
        head_dims=(64, 33, 128),
        ratios=(7, 1, 4),
        features=("plain", "window+sinks", "window+soft_cap", "alibi", "values_in_keys"),
        kv_dtypes=("float8_e4m3fn", "float8_e5m2", "int8"),
    )
    biased = attention_cases(block_sizes, DTYPES, head_dims=(64, 33), ratios=(7, 1), features=("biases", "pattern"))
    return [*attention_cases(block_sizes, DTYPES), *biased, *quantised]


@pytest.mark.parametrize("case", cases((16,)), ids=str)
def test_conforms(case: AttentionCase, host: Device) -> None:
    check_attention(TorchAttention(), host, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", cases(BLOCK_SIZES), ids=str)
def test_conforms_with_every_block_size(case: AttentionCase, host: Device) -> None:
    check_attention(TorchAttention(), host, case)


def test_tiles_that_do_not_fit_are_computed_one_after_another(host: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_attention, "_FLOATS", 1 << 12)
    monkeypatch.setattr(torch_attention, "_QUERIES", 8)
    check_attention(TorchAttention(), host, AttentionCase("float32", 64, 4, 16, "window+sinks"))


def test_heads_that_do_not_divide_are_refused() -> None:
    assert "multiple" in (TorchAttention().supports(AttentionLayer(0, 3, 2, 64, 1.0)) or "")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.int8], ids=str)
def test_a_cache_is_a_tensor_a_layer(dtype: torch.dtype, host: Device) -> None:
    """Some devices give no more than 4 GiB at a time, and a layer's pages are far from that."""
    layers = [AttentionLayer(index, 4, 2, 64, 1.0, group=index // 3, place=index % 3) for index in range(5)]
    groups = [KVGroup(0, "full", (0, 1, 2), 1), KVGroup(1, "window", (3, 4), 1, 32)]
    spec = CacheSpec(groups, layers, 7, 16, dtype)
    cache = TorchAttention().allocate(spec, host)
    storages = {cache.of(layer).keys.untyped_storage().data_ptr() for layer in layers}
    assert len(storages) == len(cache.pieces) == 3, "layers of both groups share their pages"
    assert {piece.nbytes for piece in cache.pieces} == {7 * spec.block_bytes(layers[0])}
