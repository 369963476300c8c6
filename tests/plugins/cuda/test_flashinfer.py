"""``flashinfer`` over the strict fake of FlashInfer."""

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
from lsv_cuda.emulation import EmulatedCudaPlatform
from lsv_cuda.fakes.flashinfer import FakeFlashInfer
from lsv_cuda.flashinfer.attention import FlashInferAttention
from lsv_cuda.flashinfer.lengths import find_lengths
from lsv_runtime.attention import AttentionLayer, BatchLayout, CacheSpec
from lsv_runtime.devices.device import Device
from lsv_runtime.emulation.fakes import FakeCapturing
from lsv_runtime.emulation.placement.device import placement
from lsv_runtime.emulation.vendors.checks import BadCall
from lsv_testing.attention import AttentionCase, attention_cases, check_attention

LAYER = AttentionLayer(index=0, heads=4, kv_heads=2, head_dim=64, scale=0.125)
GROUP = KVGroup(0, "full", (0,), 512)
DECODE, PREFILL = "BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper"
CASES = attention_cases(
    (64, 16),
    ("bfloat16", "float16"),
    head_dims=(64, 128, 256),
    ratios=(7, 1),
    features=("plain", "window", "soft_cap", "window+soft_cap"),
    kv_dtypes=("auto", "float8_e4m3fn", "float8_e5m2"),
)


@pytest.fixture
def device() -> Iterator[Device]:
    opened = CpuPlatform().open(0, {"cpu.threads": 1})
    yield opened
    opened.close()


@pytest.fixture
def gpu() -> Iterator[Device]:
    """An emulated GPU, whose kernels take tensors of its own alone."""
    opened = EmulatedCudaPlatform().open(0, {"cuda.emulated_kernels": "flashinfer"})
    yield opened
    opened.close()
    libraries.forget()


@pytest.fixture
def library() -> FakeFlashInfer:
    return FakeFlashInfer()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention(case: AttentionCase, library: FakeFlashInfer, device: Device) -> None:
    check_attention(FlashInferAttention(library), device, case)
    assert library.calls[f"{PREFILL}.run"] > 0
    assert library.calls[f"{DECODE}.run"] > 0


@pytest.mark.parametrize("feature", ["plain", "window"])
def test_tensors_are_on_the_device_and_lengths_on_the_host(feature: str, gpu: Device) -> None:
    check_attention(FlashInferAttention(), gpu, AttentionCase("float16", 64, 2, 16, feature, "float8_e4m3fn"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"causal": False}, None),
        ({"window": 9, "soft_cap": 30.0}, None),
        ({"causal": False, "source": 40}, None),
        ({"head_dim": 80}, "head size 80 is not one of 64, 128, 256"),
        ({"heads": 3}, "not a multiple"),
        ({"sinks": torch.zeros(4)}, "takes sinks and ignores them"),
        ({"alibi": torch.ones(4)}, "slopes of its own"),
        ({"causal": False, "window": 9}, "windows to the left alone"),
    ],
    ids=str,
)
def test_what_it_refuses(changes: dict[str, Any], words: str | None, library: FakeFlashInfer) -> None:
    found = FlashInferAttention(library).supports(replace(LAYER, **changes))
    assert found is None if words is None else words in (found or "")


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
def test_caches_it_has_no_kernels_for_are_refused(dtype: torch.dtype, library: FakeFlashInfer, device: Device) -> None:
    with pytest.raises(ConfigError, match="FlashInfer has no KV cache of torch"):
        FlashInferAttention(library).allocate(CacheSpec([GROUP], [LAYER], 4, 16, dtype), device)


def decoding(context: tuple[int, ...], blocks: int = 0) -> BatchLayout:
    """One token a row; row r has the pages 1 + 3 * r and so on."""
    length, width = np.array(context, np.int32), -(-max(context) // 16)
    table = 1 + 3 * np.arange(len(context), dtype=np.int32)[:, None] + np.arange(width, dtype=np.int32)
    return BatchLayout(np.ones(len(context), np.int32), length, (table,), blocks=blocks)


def test_the_pages_of_all_rows_are_one_list(device: Device) -> None:
    batch = decoding((17, 1, 16), blocks=3)
    found = find_lengths(batch, batch.tables[0], 16, device)
    assert found.pages.tolist() == [1, 2, 4, 7, 0, 0, 0, 0, 0]
    assert (found.borders.tolist(), found.last.tolist()) == ([0, 2, 3, 4], [1, 1, 16])
    assert (found.token_rows.tolist(), found.positions.tolist()) == ([0, 1, 2], [16, 0, 15])


def test_what_lies_behind_a_window_is_left_out(device: Device) -> None:
    """Nobody's tokens may be read there, and places are counted from the first page that is left."""
    batch = decoding((40,))
    found = find_lengths(batch, batch.tables[0], 16, device, window=4)
    assert (found.pages[: found.count].tolist(), found.context.tolist(), found.positions.tolist()) == ([3], [8], [7])


def keys(count: int, device: Device) -> torch.Tensor:
    return torch.randn(count, 2, 64).half().to(device.torch_device)


def test_steps_that_come_again_have_a_wrapper_of_their_own(library: FakeFlashInfer, device: Device) -> None:
    """Others take turns; a step of the same shape plans it again, before its layers are asked for anything."""
    backend = FlashInferAttention(library)
    layers = [LAYER, replace(LAYER, index=1, place=1), replace(LAYER, index=2, place=2, soft_cap=9.0)]
    group = KVGroup(0, "full", (0, 1, 2), 512)
    cache = backend.allocate(CacheSpec([group], layers, 12, 16, torch.float16), device)

    def step(batch: BatchLayout, into: Any = None) -> Any:
        plan = backend.plan(batch, GROUP, into)
        for layer in layers:
            q = torch.randn(len(batch.query), 4, 64).half()
            backend.attend(q, keys(len(q), device), keys(len(q), device), layer, cache, plan)
        return plan

    for _ in range(3):
        step(decoding((17, 1)))
    assert (library.calls[DECODE], library.calls[f"{DECODE}.plan"], library.calls[f"{DECODE}.run"]) == (2, 6, 9)
    fixed = step(decoding((1, 1), blocks=3))
    assert (library.calls[DECODE], library.calls[f"{DECODE}.plan"]) == (4, 8)
    places = [x.data_ptr() for x in (fixed.lengths.memory, fixed.lengths.pages)]
    assert backend.plan(decoding((33, 17), blocks=3), GROUP, into=fixed) is fixed
    assert library.calls[f"{DECODE}.plan"] == 10
    assert [x.data_ptr() for x in (fixed.lengths.memory, fixed.lengths.pages)] == places
    assert library.calls["append_paged_kv_cache"] == 12


def test_a_captured_run_reads_the_next_steps_lengths(gpu: Device) -> None:
    """From buffers that stay in place, of prompts as of decoding rows."""
    backend = FlashInferAttention()
    cache = backend.allocate(CacheSpec([GROUP], [LAYER], 12, 16, torch.float16), gpu)
    k = keys(20, gpu)
    whole = BatchLayout(np.array([20], np.int32), np.array([20], np.int32), (np.array([[1, 2]], np.int32),))
    backend.write(k, k, LAYER, cache, backend.plan(whole, GROUP))
    for count in (1, 2):
        query = np.array([count], np.int32)
        warm = BatchLayout(query, query, (np.zeros((1, 1), np.int32),), blocks=2)
        again = BatchLayout(query, np.array([20], np.int32), (np.array([[1, 2]], np.int32),), blocks=2)
        q = torch.randn(count, 4, 64).half().to(gpu.torch_device)
        plan = backend.plan(warm, GROUP)
        backend.attend(q, None, None, LAYER, cache, plan)
        runtime = gpu._runtime  # type: ignore[attr-defined]
        graph = runtime.CUDAGraph()
        with runtime.graph(graph):
            out = backend.attend(q, None, None, LAYER, cache, plan)
        backend.plan(again, GROUP, into=plan)
        graph.replay()
        wanted = backend.attend(q, None, None, LAYER, cache, backend.plan(replace(again, blocks=0), GROUP))
        torch.testing.assert_close(out.cpu(), wanted.cpu(), rtol=0, atol=0)


def test_planning_while_a_step_is_captured_fails(gpu: Device) -> None:
    backend = FlashInferAttention()
    cache = backend.allocate(CacheSpec([GROUP], [LAYER], 12, 16, torch.float16), gpu)
    plan = backend.plan(decoding((17, 1), blocks=3), GROUP)
    q = torch.randn(2, 4, 64).half().to(gpu.torch_device)
    runtime: FakeCapturing = gpu._runtime  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match=r"captured|capturing"), runtime.graph(runtime.CUDAGraph()):  # type: ignore[attr-defined]
        backend.attend(q, None, None, LAYER, cache, plan)


@pytest.mark.skipif(placement() is None, reason="the emulated device can't be compiled here")
def test_a_plan_waits_for_the_copy_of_the_one_before(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both write to the wrapper's pinned memory, which the device fetches when it comes to it."""
    backend = FlashInferAttention()
    cache = backend.allocate(CacheSpec([GROUP], [LAYER], 12, 16, torch.float16), gpu)
    q = torch.randn(2, 4, 64).half().to(gpu.torch_device)

    def steps() -> None:
        for context in ((17, 1), (33, 20)):
            backend.attend(q, None, None, LAYER, cache, backend.plan(decoding(context), GROUP))
        gpu.synchronize()

    steps()
    monkeypatch.setattr(gpu, "event", lambda: None)
    steps_twice = [steps, steps]
    with pytest.raises(RuntimeError, match="pinned memory was written to before"):
        [step() for step in steps_twice]


def test_the_fake_refuses_what_the_library_would(library: FakeFlashInfer) -> None:
    workspace, page = torch.zeros(16, dtype=torch.uint8), torch.zeros(4, 16, 2, 64).half()
    borders, pages = torch.tensor([0, 2], dtype=torch.int32), torch.tensor([1, 2], dtype=torch.int32)
    last, sizes = torch.tensor([1], dtype=torch.int32), (4, 2, 64, 16)
    floats = {"q_data_type": torch.float16, "kv_data_type": torch.float16, "sm_scale": 1.0}
    make = library._module.BatchDecodeWithPagedKVCacheWrapper
    wrapper = make(workspace, "NHD", use_tensor_cores=True)
    q = torch.zeros(1, 4, 64).half()
    with pytest.raises(BadCall, match="plan info is not initialized"):
        wrapper.run(q, (page, page), out=q.clone())
    wrapper.plan(borders, pages, last, *sizes, **floats)
    wrapper.run(q, (page, page), out=q.clone())
    for words, call in {
        "unexpected keyword argument 'causal'": lambda: wrapper.plan(
            borders, pages, last, *sizes, causal=True, **floats
        ),
        "knows no window_right": lambda: wrapper.plan(borders, pages, last, *sizes, window_right=3, **floats),
        "2 page indices": lambda: wrapper.plan(borders - 1, pages, last, *sizes, **floats),
        "last_page_len has": lambda: wrapper.plan(borders, pages, last - 1, *sizes, **floats),
        "Unsupported head_dim: 80": lambda: wrapper.plan(borders, pages, last, 4, 2, 80, 16, **floats),
        "2 queries, and 1": lambda: wrapper.run(torch.cat((q, q)), (page, page), out=q.clone()),
        "knows no sinks": lambda: wrapper.run(q, (page, page), out=q.clone(), sinks=torch.zeros(4)),
        "buffers are given for graphs": lambda: make(workspace, "NHD", use_cuda_graph=True, use_tensor_cores=True),
        "unexpected keyword argument 'stream'": lambda: make(workspace, stream=0),
    }.items():
        with pytest.raises(BadCall, match=words):
            call()
