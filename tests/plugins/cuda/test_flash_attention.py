"""``flash-attn`` and ``flash-attn-3`` over strict fakes of their libraries."""

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
from lsv_cuda import libraries
from lsv_cuda.emulation import EmulatedCudaPlatform, EmulatedRocmPlatform
from lsv_cuda.fakes.flash_attn import FakeFlashAttn2, FakeFlashAttn3
from lsv_cuda.flash_attn.attention import FlashAttention2, FlashAttention3
from lsv_runtime.attention import AttentionLayer, BatchLayout, CacheSpec
from lsv_runtime.devices.device import Device
from lsv_runtime.emulation.vendors.checks import BadCall
from lsv_testing.attention import AttentionCase, attention_cases, check_attention, cover_values

LAYER = AttentionLayer(index=0, heads=4, kv_heads=2, head_dim=64, scale=0.125)
GROUP = KVGroup(0, "full", (0,), 512)
FEATURES = ("plain", "window", "soft_cap", "window+soft_cap")
HALVES = ("bfloat16", "float16")
CASES_2 = attention_cases((256,), HALVES, head_dims=(64, 80), ratios=(7, 1), features=(*FEATURES, "alibi"))
CASES_3 = attention_cases((64, 16), HALVES, head_dims=(64, 80, 256), ratios=(7, 1), features=FEATURES)


@pytest.fixture
def device() -> Iterator[Device]:
    opened = CpuPlatform().open(0, {"cpu.threads": 1})
    yield opened
    opened.close()


@pytest.fixture(params=[EmulatedCudaPlatform, EmulatedRocmPlatform], ids=["cuda", "rocm"])
def gpu(request: pytest.FixtureRequest) -> Iterator[Device]:
    """An emulated GPU, whose kernels take tensors of its own alone, and the fake of flash-attn 2 for it."""
    opened = request.param().open(0, {"cuda.emulated_kernels": "flash-attn"})
    yield opened
    opened.close()
    libraries.forget()


@pytest.mark.daily(case=cover_values(CASES_2))
@pytest.mark.parametrize("case", CASES_2, ids=str)
def test_attention_of_release_2(case: AttentionCase, device: Device) -> None:
    library = FakeFlashAttn2()
    check_attention(FlashAttention2(library), device, case)
    assert library.calls["flash_attn_varlen_func"] > 0


@pytest.mark.parametrize("case", CASES_3, ids=str)
def test_attention_of_release_3(case: AttentionCase, device: Device) -> None:
    library = FakeFlashAttn3()
    check_attention(FlashAttention3(library), device, case)
    assert library.calls["flash_attn_with_kvcache"] > 0


def test_tensors_are_on_the_device(gpu: Device) -> None:
    check_attention(FlashAttention2(), gpu, AttentionCase("float16", 64, 2, 256, "window"), lengths=(1, 40, 258))


@pytest.mark.parametrize(
    ("changes", "second", "hip", "third"),
    [
        ({}, None, None, None),
        ({"causal": False, "window": 9}, None, None, None),
        ({"head_dim": 512}, "head size 512", "head size 512", "head size 512"),
        ({"head_dim": 100}, "head size 100", "head size 100", "head size 100"),
        ({"heads": 3}, "not a multiple", "not a multiple", "not a multiple"),
        ({"sinks": torch.zeros(4)}, "no sinks", "no sinks", "no sinks"),
        ({"alibi": torch.ones(4)}, None, None, "no ALiBi"),
        ({"soft_cap": 30.0}, None, "takes a soft cap on AMD's GPUs and ignores it", None),
    ],
    ids=str,
)
def test_what_it_refuses(changes: dict[str, Any], second: str | None, hip: str | None, third: str | None) -> None:
    backends = {
        FlashAttention2(FakeFlashAttn2()): second,
        FlashAttention2(FakeFlashAttn2(hip=True)): hip,
        FlashAttention3(FakeFlashAttn3()): third,
    }
    for backend, words in backends.items():
        found = backend.supports(replace(LAYER, **changes))
        assert found is None if words is None else words in (found or "")


def test_caches_it_has_no_kernels_for_are_refused(device: Device) -> None:
    for backend in (FlashAttention2(FakeFlashAttn2()), FlashAttention3(FakeFlashAttn3())):
        with pytest.raises(ConfigError, match="no KV cache of torch"):
            backend.allocate(CacheSpec([GROUP], [LAYER], 4, 256, torch.float8_e4m3fn), device)
    with pytest.raises(ConfigError, match="takes blocks of a multiple of 256 tokens, not of 64"):
        FlashAttention2(FakeFlashAttn2()).allocate(CacheSpec([GROUP], [LAYER], 4, 64, torch.float16), device)


def test_a_plan_is_written_in_place(device: Device) -> None:
    """What a captured step was captured with stays: tensors, and the bounds that the library takes its splits from."""
    backend = FlashAttention3(FakeFlashAttn3())
    backend.allocate(CacheSpec([GROUP], [LAYER], 6, 16, torch.float16), device)
    ones = np.ones(2, np.int32)
    warm = backend.plan(BatchLayout(ones, ones, (np.zeros((2, 1), np.int32),), blocks=3), GROUP)
    places = [x.data_ptr() for x in (warm.starts, warm.ends, warm.context, warm.tables, warm.slots)]
    layout = BatchLayout(ones, np.array([17, 1], np.int32), (np.array([[4, 2], [0, 0]], np.int32),), blocks=3)
    plan = backend.plan(layout, GROUP, into=warm)
    assert [x.data_ptr() for x in (plan.starts, plan.ends, plan.context, plan.tables, plan.slots)] == places
    assert (plan.longest_query, plan.longest_context, plan.slots.tolist()) == (1, 48, [32, 0])


def test_the_fakes_refuse_what_the_libraries_would() -> None:
    q, kv = torch.zeros(2, 4, 64).half(), torch.zeros(2, 2, 64).half()
    starts, pages = torch.tensor([0, 2], dtype=torch.int32), torch.zeros(1, 16, 2, 64).half()
    table = torch.zeros(1, 1, dtype=torch.int32)
    second, third = FakeFlashAttn2()._module, FakeFlashAttn3()._module
    right: dict[str, Any] = {"softmax_scale": 1.0, "causal": True}
    second.flash_attn_varlen_func(q, kv, kv, starts, starts, 2, 2, **right)
    for wrong, words in (
        ((q.float(), kv, kv, starts, starts, 2, 2), "float32"),
        ((q, kv, kv, starts.long(), starts, 2, 2), "int64"),
        ((q, kv, kv, starts, starts, 1, 2), "max_seqlen_q=1"),
        ((q, kv, kv, starts, starts, 2, 1), "max_seqlen_k=1"),
        ((q, kv, kv, starts, starts, 2), "max_seqlen_k"),
    ):
        with pytest.raises(BadCall, match=words):
            second.flash_attn_varlen_func(*wrong, **right)
    with pytest.raises(BadCall, match="divisible by 256"):
        second.flash_attn_varlen_func(q, pages, pages, starts, starts, 2, 2, block_table=table, **right)
    with pytest.raises(BadCall, match="unexpected keyword argument 's_aux'"):
        second.flash_attn_varlen_func(q, kv, kv, starts, starts, 2, 2, s_aux=None, **right)
    with pytest.raises(BadCall, match="knows no dropout_p"):
        second.flash_attn_varlen_func(q, kv, kv, starts, starts, 2, 2, dropout_p=0.1, **right)
    paged = {"page_table": table, "cu_seqlens_q": starts, "max_seqlen_q": 2, **right}
    third.flash_attn_with_kvcache(q, pages, pages, cache_seqlens=starts[1:], **paged)
    with pytest.raises(BadCall, match="unexpected keyword argument 'block_table'"):
        third.flash_attn_with_kvcache(q, pages, pages, cache_seqlens=starts[1:], block_table=table, **paged)
    codes = pages.to(torch.float8_e4m3fn)
    with pytest.raises(BadCall, match="float8_e4m3fn"):
        third.flash_attn_with_kvcache(q, codes, codes, cache_seqlens=starts[1:], **paged)
