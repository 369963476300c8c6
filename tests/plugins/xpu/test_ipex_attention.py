"""``ipex-paged`` over the strict fake of IPEX, and over IPEX itself where it and its torch are installed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from lsv.kv.spec import KVGroup
from lsv_base.errors import ConfigError
from lsv_cpu.platform import CpuPlatform
from lsv_runtime.attention import AttentionLayer, BatchLayout, CacheSpec
from lsv_runtime.devices.device import Device
from lsv_testing.attention import AttentionCase, attention_cases, check_attention
from lsv_xpu import libraries, plugin
from lsv_xpu.emulation.ipex import FakeIpex
from lsv_xpu.ipex.attention import IpexAttention

LAYER = AttentionLayer(index=0, heads=4, kv_heads=2, head_dim=64, scale=0.125)
FEATURES = ("plain", "window", "soft_cap", "window+soft_cap")
BLOCK_SIZES = next(offer.block_sizes for offer in plugin.lsv_attention() if offer.name == "ipex-paged")
FEW = attention_cases(
    (32, 16), ("bfloat16", "float16", "float32"), head_dims=(64, 80), ratios=(4, 1), features=FEATURES
)
MANY = attention_cases(BLOCK_SIZES, ("bfloat16", "float16", "float32"), ratios=(7, 1, 4, 2, 8), features=FEATURES)
CODED = attention_cases(
    (16,), ("bfloat16",), head_dims=(64,), ratios=(4,), features=("plain", "soft_cap"), kv_dtypes=("float8_e5m2",)
)
CASES = (
    *(("fake", case) for case in (*FEW, *CODED)),
    *(("fake of the XPU build", case) for case in (*FEW[::3], *CODED[:1])),
    *(("real", case) for case in (*MANY, *CODED)),
)


def find_library(which: str) -> Any:
    if which == "real":
        missing = libraries.missing_ipex()
        if missing is not None:
            pytest.skip(f"lacks {missing}")
        return libraries.obtain(libraries.IPEX)
    return FakeIpex(tokens_first=which == "fake of the XPU build")


@pytest.fixture
def device() -> Iterator[Device]:
    opened = CpuPlatform().open(0, {"cpu.threads": 1})
    yield opened
    opened.close()


@pytest.mark.parametrize(("which", "case"), CASES, ids=str)
def test_attention(which: str, case: AttentionCase, device: Device) -> None:
    check_attention(IpexAttention(find_library(which)), device, case)


def test_what_it_refuses(device: Device) -> None:
    backend = IpexAttention(find_library("fake"))
    assert backend.supports(LAYER) is None
    for layer, word in (
        (replace(LAYER, heads=3), "multiple"),
        (replace(LAYER, alibi=torch.ones(4)), "ALiBi"),
        (replace(LAYER, sinks=torch.ones(4)), "sinks"),
    ):
        assert word in (backend.supports(layer) or "")
    group = KVGroup(0, "full", (0,), 512)
    for dtype in (torch.int8, torch.float8_e4m3fn):
        with pytest.raises(ConfigError, match="no KV cache of torch"):
            backend.allocate(CacheSpec([group], [LAYER], 4, 16, dtype), device)


def test_a_cache_of_codes_is_for_bfloat16(device: Device) -> None:
    backend, group = IpexAttention(find_library("fake")), KVGroup(0, "full", (0,), 256)
    cache = backend.allocate(CacheSpec([group], [LAYER], 4, 16, torch.float8_e5m2), device)
    ones = np.ones(1, np.int32)
    plan = backend.plan(BatchLayout(ones, ones, (np.ones((1, 1), np.int32),)), group)
    q = torch.zeros(1, 4, 64, dtype=torch.float16)
    with pytest.raises(ConfigError, match="bfloat16 only"):
        backend.attend(q, q[:, :2], q[:, :2], LAYER, cache, plan)


def test_decoding_and_prompts_take_different_ops(device: Device) -> None:
    """Unless there is a window and a soft cap, which the op for single queries refuses together."""
    for layer, wanted in (
        (LAYER, "single_query_cached_kv_attention"),
        (replace(LAYER, window=20, soft_cap=30.0), "flash_attn_varlen_func"),
    ):
        library = find_library("fake")
        backend, group = IpexAttention(library), KVGroup(0, "full", (0,), 512, layer.window)
        cache = backend.allocate(CacheSpec([group], [layer], 4, 16, torch.bfloat16), device)
        ones, q = np.ones(2, np.int32), torch.randn(2, 4, 64).bfloat16()
        plan = backend.plan(BatchLayout(ones, ones, (np.array([[1], [2]], np.int32),)), group)
        backend.attend(q, q[:, :2], q[:, :2], layer, cache, plan)
        assert set(library.calls) == {"reshape_and_cache", wanted}


def test_a_plan_is_written_in_place(device: Device) -> None:
    backend, group = IpexAttention(find_library("fake")), KVGroup(0, "full", (0,), 512)
    backend.allocate(CacheSpec([group], [LAYER], 4, 16, torch.bfloat16), device)
    ones = np.ones(2, np.int32)
    warm = backend.plan(BatchLayout(ones, ones, (np.zeros((2, 2), np.int32),)), group)
    place, slots = warm.numbers.data_ptr(), warm.slots.data_ptr()
    layout = BatchLayout(ones, np.array([1, 1], np.int32), (np.array([[3, 0], [1, 0]], np.int32),))
    plan = backend.plan(layout, group, into=warm)
    assert (plan.numbers.data_ptr(), plan.slots.data_ptr()) == (place, slots)
    assert plan.slots.tolist() == [3 * 16, 16]
    assert plan.tables.tolist() == [[3, 0], [1, 0]]
