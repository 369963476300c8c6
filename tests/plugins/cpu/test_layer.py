"""A decoder layer in one native call, against the same model with every op left to plain torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lsv_models.plugin
from lsv.platform import Device
from lsv.testing.catalog import catalog_of
from lsv.testing.dense_attention import DenseAttention
from lsv.testing.model import SCHEDULES, Sequences, engine_config, run_schedule
from lsv.testing.tiny import tiny
from lsv.worker.load.bound import bind_ops
from lsv.worker.load.declared import Declared, declare
from lsv.worker.load.loaded import fill, open_source
from lsv_cpu import plugin
from lsv_cpu.attention import CpuAttention

FAMILIES = pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
TOLERANCE = {"float32": 2e-5, "bfloat16": 6e-2, "float16": 8e-3}


def make(path: Path, family: str, dtype: str, *, fused: bool) -> Declared:
    catalog = catalog_of(plugin, lsv_models.plugin)
    config = engine_config(path, family, dtype=dtype)
    declared = declare(config, catalog)
    ops = {line.op: line.implementation for line in bind_ops(declared, catalog, "cpu", not fused)}
    assert ops["layer"] == ("lsv_cpu.layer:FusedLayer" if fused else "reference")
    source = open_source(config, declared, catalog)
    fill(declared, source)
    source.close()
    return declared


def paged(declared: Declared) -> Sequences:
    return Sequences(declared, CpuAttention(), block_size=16)


@pytest.mark.parametrize("dtype", TOLERANCE)
@FAMILIES
def test_logits_are_those_of_the_plain_model(family: str, dtype: str, tmp_path: Path, device: Device) -> None:
    checkpoint = tiny(family, tmp_path)
    plain = run_schedule(Sequences(make(checkpoint, family, dtype, fused=False)), SCHEDULES["whole"])
    found = run_schedule(paged(make(checkpoint, family, dtype, fused=True)), SCHEDULES["mixed"])
    largest = max(float(logits.abs().max()) for logits in plain.values())
    for sequence, logits in plain.items():
        assert float((found[sequence] - logits).abs().max()) <= TOLERANCE[dtype] * largest


@pytest.mark.parametrize("dtype", TOLERANCE)
@FAMILIES
def test_a_token_gets_the_same_bits_in_any_company(family: str, dtype: str, tmp_path: Path, device: Device) -> None:
    declared = make(tiny(family, tmp_path), family, dtype, fused=True)
    whole = run_schedule(paged(declared), SCHEDULES["whole"])
    for name in ("chunks of 1", "chunks of 7", "mixed"):
        found = run_schedule(paged(declared), SCHEDULES[name])
        assert all(torch.equal(found[sequence], logits) for sequence, logits in whole.items()), name


def test_another_attention_backend_is_served_by_the_parts(tmp_path: Path, device: Device) -> None:
    checkpoint = tiny("qwen3", tmp_path)
    declared = make(checkpoint, "qwen3", "float32", fused=True)
    found = run_schedule(Sequences(declared, DenseAttention()), SCHEDULES["mixed"])
    for sequence, logits in run_schedule(paged(declared), SCHEDULES["mixed"]).items():
        torch.testing.assert_close(found[sequence], logits, rtol=1e-4, atol=1e-4)
