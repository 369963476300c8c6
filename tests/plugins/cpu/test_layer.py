"""A decoder layer in one native call, against the same model with every op left to plain torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lsv_models.plugin
from lsv.platform import Device
from lsv.testing.catalog import catalog_of
from lsv.testing.dense_attention import DenseAttention
from lsv.testing.model import SCHEDULES, Sequences, check_kernels, engine_config, load, load_bound, run_schedule
from lsv.testing.tiny import tiny
from lsv.worker.load.declared import Declared
from lsv_cpu import plugin
from lsv_cpu.attention import CpuAttention

FAMILIES = pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
TOLERANCE = {"float32": 2e-5, "bfloat16": 6e-2, "float16": 8e-3}


def make(path: Path, family: str, dtype: str) -> Declared:
    declared, ops = load_bound(engine_config(path, family, dtype=dtype), catalog_of(plugin, lsv_models.plugin), "cpu")
    assert ops["layer"] == "lsv_cpu.layer:FusedLayer"
    return declared


def paged(declared: Declared) -> Sequences:
    return Sequences(declared, CpuAttention(), block_size=16)


@pytest.mark.parametrize("dtype", TOLERANCE)
@FAMILIES
def test_logits_are_those_of_the_plain_model(family: str, dtype: str, tmp_path: Path, device: Device) -> None:
    checkpoint = tiny(family, tmp_path)
    plain = load(engine_config(checkpoint, family, dtype=dtype), catalog_of(plugin, lsv_models.plugin))
    check_kernels(paged(make(checkpoint, family, dtype)), plain, "mixed", TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@FAMILIES
def test_a_token_gets_the_same_bits_in_any_company(family: str, dtype: str, tmp_path: Path, device: Device) -> None:
    declared = make(tiny(family, tmp_path), family, dtype)
    whole = run_schedule(paged(declared), SCHEDULES["whole"])
    for name in ("chunks of 1", "chunks of 7", "mixed"):
        found = run_schedule(paged(declared), SCHEDULES[name])
        assert all(torch.equal(found[sequence], logits) for sequence, logits in whole.items()), name


def test_another_attention_backend_is_served_by_the_parts(tmp_path: Path, device: Device) -> None:
    checkpoint = tiny("qwen3", tmp_path)
    declared = make(checkpoint, "qwen3", "float32")
    found = run_schedule(Sequences(declared, DenseAttention()), SCHEDULES["mixed"])
    for sequence, logits in run_schedule(paged(declared), SCHEDULES["mixed"]).items():
        torch.testing.assert_close(found[sequence], logits, rtol=1e-4, atol=1e-4)
