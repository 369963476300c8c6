"""Values that are features of keys: half the memory of a cache that holds them beside the keys, and the bits it gives.

Where AMX tiles attend to the latter, the bits differ: values in keys stay on vectors.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from lsv.kv.spec import KVGroup
from lsv_cpu import native
from lsv_cpu.attention import CpuAttention
from lsv_runtime.attention import AttentionLayer, BatchLayout, CacheSpec, token_bytes
from lsv_runtime.devices.device import Device

BLOCK = 16
LENGTHS = (700, 1, 33)
SIZES = ((576, 512, 16), (288, 256, 40), (40, 33, 3))
"""Of keys and values, and how many heads share them: DeepSeek's, MiniCPM's, and ones that fill no vectors."""
BFLOAT16_ROUNDING = 2.0**-9


def attend_in_two_steps(
    library: str, layer: AttentionLayer, dtype: torch.dtype, kv_dtype: torch.dtype, device: Device
) -> tuple[torch.Tensor, int]:
    """What the last two thirds of each row get, over a cache that was full of NaN; and the bytes of its pages."""
    backend = CpuAttention(native.load(library))
    group = KVGroup(0, layer.kind, (0,), token_bytes(layer, kv_dtype))
    counts = [-(-length // BLOCK) for length in LENGTHS]
    spec = CacheSpec([group], [layer], 1 + sum(counts), BLOCK, kv_dtype)
    cache = backend.allocate(spec, device)
    cache.pages.view(torch.uint8).fill_(255)
    table = np.zeros((len(LENGTHS), max(counts)), np.int32)
    for row, (count, end) in enumerate(zip(counts, np.cumsum(counts), strict=True)):
        table[row, :count] = 1 + np.arange(end - count, end)
    source, total = torch.Generator().manual_seed(1), np.array(LENGTHS, np.int32)
    tensors = [
        [torch.randn(n, heads, layer.head_dim, generator=source).to(dtype) for n in LENGTHS]
        for heads in (layer.heads, 1)
    ]
    out = torch.empty(0)
    for begin, end in ((0 * total, total // 3), (total // 3, total)):
        rows = [row for row in range(len(total)) if begin[row] < end[row]]
        plan = backend.plan(BatchLayout((end - begin)[rows], end[rows], (table[rows],)), group)
        q, k = (torch.cat([of[row][begin[row] : end[row]] for row in rows]) for of in tensors)
        out = backend.attend(q, k, None if layer.value_dim else k, layer, cache, plan)
    return out, cache.pages.shape[1] * cache.pages.itemsize


@pytest.mark.row("F-657")
@pytest.mark.daily(dtype=[torch.bfloat16])
@pytest.mark.daily(kv_dtype=[None])
@pytest.mark.parametrize("kv_dtype", [None, torch.float8_e4m3fn, torch.int8], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16], ids=str)
def test_the_same_bits_in_half_the_memory(dtype: torch.dtype, kv_dtype: torch.dtype | None, device: Device) -> None:
    for dim, values, heads in SIZES:
        twice = AttentionLayer(0, heads, 1, dim, dim**-0.5, key_scale=0.5, value_scale=0.5)
        once = replace(twice, value_dim=values)
        for library in ("auto", "generic") if dim < 100 else ("auto",):
            expected, full = attend_in_two_steps(library, twice, dtype, kv_dtype or dtype, device)
            found, half = attend_in_two_steps(library, once, dtype, kv_dtype or dtype, device)
            assert not expected.isnan().any()
            if CpuAttention(native.load(library)).explain([twice], dtype) is None:
                assert torch.equal(found, expected[..., :values]), (dim, library)
            else:
                rounding = 4 * BFLOAT16_ROUNDING
                torch.testing.assert_close(found, expected[..., :values], rtol=rounding, atol=rounding)
            assert half * 2 == full
