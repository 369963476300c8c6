"""Triton attention to layers of rarer kinds: values in keys, biases by distance, patterns of blocks."""

from __future__ import annotations

import pytest
import torch

from lsv_runtime.devices.device import Device
from lsv_testing.attention import AttentionCase, attention_cases, check_attention, check_row_invariance
from lsv_triton.attention.backend import TritonAttention

KINDS = ("values_in_keys", "biases", "pattern")
CASES = attention_cases(
    (16,), ("float32",), head_dims=(40,), ratios=(3,), features=KINDS, kv_dtypes=("auto", "int8")
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conforms(case: AttentionCase, device: torch.device, place: Device) -> None:
    check_attention(TritonAttention(), place, case, lengths=(1, 35))


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_in_any_company(kind: str, device: torch.device, place: Device) -> None:
    check_row_invariance(TritonAttention(), place, AttentionCase("float32", 40, 2, 16, kind), lengths=(20, 1))
