"""Attention on AMX tiles, emulated in plain C++ where there are none: right, and the same to the bit however requests
are cut into steps, batches, blocks and threads."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from lsv.kv.spec import KVGroup
from lsv_cpu import native
from lsv_cpu.attention import CpuAttention
from lsv_cpu.machine import Machine
from lsv_runtime.attention import AttentionLayer, BatchLayout, CacheSpec
from lsv_runtime.devices.device import Device
from lsv_testing.attention import AttentionCase, attention_cases, check_attention, check_row_invariance
from suite.instruction_sets import MACHINE

TILES = Machine().runnable("amx")
BLOCKS = (32, 16, 64, 128)
CASES = attention_cases(
    BLOCKS,
    ("bfloat16",),
    head_dims=(64, 96, 128, 192, 256, 32),
    ratios=(7, 1, 3, 8, 4),
    features=("plain", "window", "soft_cap", "sinks", "alibi", "window+sinks", "window+soft_cap", "biases"),
    kv_dtypes=("auto", "float8_e4m3fn", "float8_e5m2", "int8"),
)
LAYER = AttentionLayer(0, 6, 2, 64, 0.125)
LENGTH = 1100
"""Of a request: two splits of 512 keys and part of a third."""

pytestmark = [
    pytest.mark.skipif("avx2" not in MACHINE, reason="emulated with AVX2"),
    pytest.mark.slow,  # compiles kernels that no other test needs
]


@pytest.fixture(scope="module")
def tiles() -> Iterator[ctypes.CDLL]:
    found = native.load(TILES)
    if found is None:
        pytest.skip("no compiler")
    yield found
    found.lsv_set_team(1, None)


class Conversation:
    """One request of ``LENGTH`` random tokens, of which steps attend to as many as they like."""

    def __init__(
        self, library: ctypes.CDLL, layer: AttentionLayer, device: Device, *, block: int = 32, dtype: str = "bfloat16"
    ) -> None:
        draw = torch.Generator().manual_seed(1)
        self._tensors = [
            torch.randn(LENGTH, heads, layer.head_dim, generator=draw).bfloat16()
            for heads in (layer.heads, layer.kv_heads, layer.kv_heads)
        ]
        self._attention, self._layer = CpuAttention(library), layer
        self._group = KVGroup(0, "full", (0,), 0)
        pages = -(-LENGTH // block)
        spec = CacheSpec([self._group], [layer], pages + 1, block, getattr(torch, dtype))
        self._cache = self._attention.allocate(spec, device)
        self._cache.pages.view(torch.uint8).fill_(0xFF)  # NaN in every form but int8
        self._table = np.arange(pages, 0, -1, dtype=np.int32)[None]

    def attend(self, *steps: int) -> torch.Tensor:
        """The outputs of all tokens when steps have so many of them; the last step takes what is left."""
        outputs, begin = [], 0
        for count in (*steps, LENGTH):
            end = min(LENGTH, begin + count)
            layout = BatchLayout(np.array([end - begin], np.int32), np.array([end], np.int32), (self._table,))
            plan = self._attention.plan(layout, self._group)
            q, k, v = (tensor[begin:end] for tensor in self._tensors)
            outputs.append(self._attention.attend(q, k, v, self._layer, self._cache, plan))
            begin = end
            if begin == LENGTH:
                break
        return torch.cat(outputs)


def vector_calls(library: ctypes.CDLL) -> int:
    return int(library.lsv_attention_calls(0))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conforms_on_tiles_alone(case: AttentionCase, tiles: ctypes.CDLL, device: Device) -> None:
    before = vector_calls(tiles)
    check_attention(CpuAttention(tiles), device, case)
    assert vector_calls(tiles) == before


@pytest.mark.parametrize("case", CASES[::2], ids=str)
def test_a_row_has_the_same_bits_alone_and_in_company(case: AttentionCase, tiles: ctypes.CDLL, device: Device) -> None:
    check_row_invariance(CpuAttention(tiles), device, case)


@pytest.mark.parametrize("window", [None, 40, 700])
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int8"])
def test_bits_do_not_depend_on_how_a_prompt_is_cut(
    window: int | None, dtype: str, tiles: ctypes.CDLL, device: Device
) -> None:
    layer = AttentionLayer(0, 6, 2, 64, 0.125, window=window)
    whole = Conversation(tiles, layer, device, dtype=dtype).attend()
    assert whole.isfinite().all()
    for steps in ((1,) * 40, (31,) * 40, (33, 32, 512, 1), (LENGTH - 1,)):
        assert torch.equal(Conversation(tiles, layer, device, dtype=dtype).attend(*steps), whole)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int8"])
def test_bits_do_not_depend_on_the_block_size(dtype: str, tiles: ctypes.CDLL, device: Device) -> None:
    wanted, *others = (Conversation(tiles, LAYER, device, block=block, dtype=dtype).attend(1000) for block in BLOCKS)
    assert all(torch.equal(other, wanted) for other in others)


def test_threads_do_not_change_a_bit(tiles: ctypes.CDLL, device: Device) -> None:
    """A long context is then cut between the members of the team; the order of adding up stays."""
    results = []
    for threads in (1, 2, 5):
        tiles.lsv_set_team(threads, None)
        results.append(Conversation(tiles, LAYER, device).attend(LENGTH - 1))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("dim", [32, 64, 96, 128, 192, 256])
def test_tiles_and_vectors_agree(dim: int, tiles: ctypes.CDLL, device: Device) -> None:
    layer, vector = AttentionLayer(0, 6, 2, dim, dim**-0.5), native.load("avx2")
    assert vector is not None
    wanted = Conversation(vector, layer, device).attend(1000).float()
    error = (Conversation(tiles, layer, device).attend(1000).float() - wanted).abs().max()
    assert 0 < error <= 1e-2 * wanted.abs().max()


def test_lsv_kernels_names_them(tiles: ctypes.CDLL) -> None:
    layers = [AttentionLayer(index, 6, 2, dim, 0.1) for index, dim in enumerate((64, 128, 80))]
    backend = CpuAttention(tiles)
    assert backend.explain(layers[:2], torch.bfloat16) == "on AMX tiles"
    assert backend.explain(layers, torch.bfloat16) == "2 of 3 layers on AMX tiles"
    assert backend.explain(layers, torch.float32) is None


@pytest.mark.parametrize("dim", [80, 33])
def test_other_head_sizes_stay_on_vectors(dim: int, tiles: ctypes.CDLL, device: Device) -> None:
    before = vector_calls(tiles)
    assert Conversation(tiles, AttentionLayer(0, 6, 2, dim, 0.1), device).attend().isfinite().all()
    assert vector_calls(tiles) > before
