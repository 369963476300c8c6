"""``xpu-flash`` over the strict fake of vllm_xpu_kernels."""

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
from lsv_runtime.attention.step_plan import make_plan
from lsv_runtime.devices.device import Device
from lsv_runtime.devices.staging import Staging, close_staging, open_staging
from lsv_runtime.emulation.vendors.checks import BadCall
from lsv_testing.attention import AttentionCase, attention_cases, check_attention
from lsv_xpu import plugin
from lsv_xpu.emulation.vllm_kernels import FakeVllmKernels
from lsv_xpu.vllm.attention import FlashAttention

LAYER = AttentionLayer(index=0, heads=4, kv_heads=2, head_dim=64, scale=0.125)
BLOCK_SIZES = next(offer.block_sizes for offer in plugin.lsv_attention() if offer.name == "xpu-flash")
CASES = attention_cases(
    BLOCK_SIZES,
    ("bfloat16", "float16"),
    head_dims=(64, 96, 128),
    ratios=(7, 1, 4),
    features=("plain", "window", "sinks", "window+sinks"),
    kv_dtypes=("auto", "float8_e4m3fn", "float8_e5m2"),
)


@pytest.fixture
def device() -> Iterator[Device]:
    opened = CpuPlatform().open(0, {"cpu.threads": 1})
    yield opened
    opened.close()


@pytest.fixture
def library() -> FakeVllmKernels:
    return FakeVllmKernels()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention(case: AttentionCase, library: FakeVllmKernels, device: Device) -> None:
    check_attention(FlashAttention(library), device, case)
    lacking = {"96": ("sinks", "window+sinks"), "128": ("window+sinks",)}
    refused = case.feature in lacking.get(str(case.head_dim), ())
    assert (library.calls["flash_attn_varlen_func"] == 0) == refused, "the package has or lacks kernels for the case"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"window": 64}, None),
        ({"causal": False}, None),
        ({"sinks": torch.zeros(4), "window": 64}, None),
        ({"head_dim": 128, "sinks": torch.zeros(4)}, None),
        ({"head_dim": 128, "sinks": torch.zeros(4), "window": 64}, "Paged decode"),
        ({"head_dim": 96}, None),
        ({"head_dim": 96, "sinks": torch.zeros(4)}, "Chunk prefill"),
        ({"head_dim": 192}, None),
        ({"head_dim": 192, "window": 64}, "Chunk prefill"),
        ({"head_dim": 256, "window": 64}, None),
        ({"head_dim": 256, "causal": False}, "Chunk prefill"),
        ({"head_dim": 512}, None),
        ({"heads": 71, "kv_heads": 1}, None),
        ({"heads": 71, "kv_heads": 1, "window": 64}, "Paged decode"),
    ],
    ids=str,
)
def test_the_package_is_asked_for_its_kernels(
    changes: dict[str, Any], why: str | None, library: FakeVllmKernels
) -> None:
    """What is not compiled into it runs in plain torch there, over copies on the host; asked once for like layers."""
    backend, layer = FlashAttention(library), replace(LAYER, **changes)
    for _ in range(2):
        found = backend.supports(layer)
        assert found is None if why is None else f"{why} kernel not compiled for this configuration" in (found or "")
    assert library.calls["varlen_fwd"] == 1


def test_a_step_without_a_cache_takes_kernels_for_pages(library: FakeVllmKernels, device: Device) -> None:
    """Those for other keys are compiled without windows and sinks, and not for every head size."""
    backend, layer = FlashAttention(library), replace(LAYER, head_dim=96, window=64)
    assert backend.supports(layer) is None
    backend.allocate(CacheSpec([KVGroup(0, "window", (0,), 1, 64)], [layer], 2, 64, torch.float16), device)
    batch = BatchLayout(np.array([70, 1], np.int32), np.array([70, 1], np.int32), ())
    q, k = torch.randn(71, 4, 96).half(), torch.randn(71, 2, 96).half()
    out = backend.attend(q, k, k, layer, None, backend.plan(batch, KVGroup(0, "window", (0,), 1, 64)))
    torch.testing.assert_close(out[70:], k[70:].repeat_interleave(2, 1), rtol=0, atol=0)
    assert library.calls["reshape_and_cache_flash"] == library.calls["flash_attn_varlen_func"] == 1


def test_what_it_refuses(library: FakeVllmKernels) -> None:
    backend = FlashAttention(library)
    assert backend.supports(LAYER) is None
    for layer, word in (
        (replace(LAYER, head_dim=80), "head size 80"),
        (replace(LAYER, heads=3), "multiple"),
        (replace(LAYER, soft_cap=30.0), "soft cap"),
        (replace(LAYER, alibi=torch.ones(4)), "ALiBi"),
    ):
        assert word in (backend.supports(layer) or "")


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
def test_a_cache_it_has_no_kernels_for_is_refused(dtype: torch.dtype, library: FakeVllmKernels, device: Device) -> None:
    group = KVGroup(0, "full", (0,), 512)
    with pytest.raises(ConfigError, match="no KV cache of torch"):
        FlashAttention(library).allocate(CacheSpec([group], [LAYER], 4, 16, dtype), device)


def test_a_plan_is_written_in_place(library: FakeVllmKernels, device: Device) -> None:
    """A captured step replays with the next batch's numbers in the tensors it was captured with."""
    backend, group = FlashAttention(library), KVGroup(0, "full", (0,), 512)  # type: ignore[arg-type]
    cache = backend.allocate(CacheSpec([group], [LAYER], 6, 16, torch.bfloat16), device)
    ones = np.ones(2, np.int32)
    warm = backend.plan(BatchLayout(ones, ones, (np.zeros((2, 1), np.int32),), blocks=3), group)
    assert warm.longest_context == 48, "the bound of the padded shape, not of the batch"
    places = [x.data_ptr() for x in (warm.starts, warm.context, warm.tables, warm.slots)]
    k = torch.randn(17, 2, 64).bfloat16()
    whole = BatchLayout(np.array([16], np.int32), np.array([16], np.int32), (np.array([[4, 0]], np.int32),))
    backend.attend(torch.randn(16, 4, 64).bfloat16(), k[:16], k[:16], LAYER, cache, backend.plan(whole, group))
    layout = BatchLayout(ones, np.array([17, 1], np.int32), (np.array([[4, 2], [0, 0]], np.int32),), blocks=3)
    plan = backend.plan(layout, group, into=warm)
    assert [x.data_ptr() for x in (plan.starts, plan.context, plan.tables, plan.slots)] == places
    assert plan.slots.tolist() == [2 * 16, 0], "the filling row writes to the null page"
    q, new = torch.randn(2, 4, 64).bfloat16(), torch.cat((k[16:], k[:1]))
    out = backend.attend(q, new, new, LAYER, cache, plan)
    wanted = backend.attend(
        torch.cat((torch.zeros(16, 4, 64).bfloat16(), q[:1])),
        k,
        k,
        LAYER,
        None,
        backend.plan(BatchLayout(np.array([17], np.int32), np.array([17], np.int32), ()), group),
    )
    torch.testing.assert_close(out[0], wanted[-1])


def test_groups_of_different_layers_share_pages(library: FakeVllmKernels, device: Device) -> None:
    """A page of one group has no bytes of another page, whichever group that belongs to."""
    small = replace(LAYER, index=1, kv_heads=1, group=1, place=0)
    groups = [KVGroup(0, "full", (0,), 512), KVGroup(1, "window", (1,), 256, 32)]
    cache = FlashAttention(library).allocate(CacheSpec(groups, [LAYER, small], 4, 16, torch.bfloat16), device)
    for tensor in cache.of(LAYER):
        tensor[1] = 1.0
    for tensor in cache.of(small):
        tensor[2] = 2.0
    assert all((tensor[1] == 1).all() and (tensor[3] == 0).all() for tensor in cache.of(LAYER))
    assert all((tensor[2] == 2).all() and (tensor[3] == 0).all() for tensor in cache.of(small))


def test_the_pages_of_equal_layers_lie_in_one_piece(library: FakeVllmKernels, device: Device) -> None:
    layers = [LAYER, replace(LAYER, index=1, place=1)]
    group = KVGroup(0, "full", (0, 1), 512)
    cache = FlashAttention(library).allocate(CacheSpec([group], layers, 4, 16, torch.bfloat16), device)
    assert all(tensor.is_contiguous() for layer in layers for tensor in cache.of(layer))


def test_the_fake_refuses_what_the_library_would(library: FakeVllmKernels) -> None:
    q = torch.zeros(2, 4, 64, dtype=torch.bfloat16)
    kv = torch.zeros(2, 2, 64, dtype=torch.bfloat16)
    borders = torch.tensor([0, 2], dtype=torch.int32)
    right = {
        "out": torch.empty_like(q),
        "cu_seqlens_q": borders,
        "max_seqlen_q": 2,
        "max_seqlen_k": 2,
        "softmax_scale": 1.0,
        "causal": True,
        "window_size": (-1, -1),
    }
    library.flash_attn_varlen_func(q, kv, kv, cu_seqlens_k=borders, **right)
    for wrong, word in (
        ({"cu_seqlens_k": borders, "seqused_k": borders}, "exactly one"),
        ({}, "exactly one"),
        ({"cu_seqlens_k": borders.long()}, "int64"),
        ({"cu_seqlens_k": borders, "max_seqlen_k": 1}, "max_seqlen_k"),
        ({"cu_seqlens_k": borders, "s_aux": torch.zeros(4)}, "s_aux"),
    ):
        with pytest.raises(BadCall, match=word):
            library.flash_attn_varlen_func(q, kv, kv, **{**right, **wrong})
    with pytest.raises(BadCall, match="float32"):
        library.flash_attn_varlen_func(q.float(), kv, kv, cu_seqlens_k=borders, **right)


def test_every_part_of_a_plan_is_copied_from_pinned_memory(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy from other memory waits for the device, whatever it is asked."""
    pinned: list[int] = []

    def stage(self: Staging, values: np.ndarray) -> torch.Tensor:
        pinned.append(values.ctypes.data)
        return torch.from_numpy(values)

    copies: list[int] = []
    to, copy = torch.Tensor.to, torch.Tensor.copy_

    def watched_to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        copies.append(tensor.data_ptr())
        return to(tensor, *args, **kwargs)

    def watched_copy(tensor: torch.Tensor, other: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        copies.append(other.data_ptr())
        return copy(tensor, other, **kwargs)

    monkeypatch.setattr(Staging, "stage", stage)
    monkeypatch.setattr(torch.Tensor, "to", watched_to)
    monkeypatch.setattr(torch.Tensor, "copy_", watched_copy)
    monkeypatch.setattr(device, "pinned", True)
    open_staging(device)
    ones, tables = np.ones(2, np.int32), np.array([[4, 2], [1, 0]], np.int32)
    plan = make_plan(BatchLayout(ones, np.array([17, 1], np.int32), (tables,)), tables, 16, device)
    make_plan(BatchLayout(ones, np.array([16, 2], np.int32), (tables,)), tables, 16, device, into=plan)
    close_staging(device)
    assert len(copies) == 2 * 3, "numbers, slots and tables, of a plan and of the one in its place"
    assert set(copies) <= set(pinned)
