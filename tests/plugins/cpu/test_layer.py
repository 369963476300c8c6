"""A decoder layer in one native call, against the same model with every op left to plain torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lsv_models.plugin
from lsv_cpu import native, plugin
from lsv_cpu.attention import CpuAttention
from lsv_runtime.attention.dense import DenseAttention
from lsv_runtime.devices.device import Device
from lsv_runtime.nn.moe import MoE, Router
from lsv_runtime.worker.load.declared import Declared
from lsv_testing.catalog import catalog_of
from lsv_testing.model import SCHEDULES, Sequences, check_kernels, engine_config, load, load_bound, run_schedule
from lsv_testing.tiny import tiny

FAMILIES = pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe"])
TOLERANCE = {"float32": 2e-5, "bfloat16": 6e-2, "float16": 8e-3}


def make(path: Path, family: str, dtype: str) -> Declared:
    """``family`` is that of a model's own code, or ``transformers``."""
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


@pytest.mark.parametrize("family", ["mistral", "qwen3"])
def test_layers_of_transformers_models_are_the_same_call(family: str, tmp_path: Path, device: Device) -> None:
    checkpoint = tiny(family, tmp_path)
    own, adapted = (run_schedule(paged(make(checkpoint, name, "bfloat16")), SCHEDULES["mixed"])
                    for name in (family, "transformers"))  # fmt: skip
    assert all(torch.equal(adapted[sequence], logits) for sequence, logits in own.items())


@pytest.mark.parametrize("dtype", TOLERANCE)
@FAMILIES
def test_a_token_gets_the_same_bits_in_any_company(family: str, dtype: str, tmp_path: Path, device: Device) -> None:
    declared = make(tiny(family, tmp_path), family, dtype)
    whole = run_schedule(paged(declared), SCHEDULES["whole"])
    for name in ("single tokens", "chunks of 7", "mixed"):
        found = run_schedule(paged(declared), SCHEDULES[name])
        assert all(torch.equal(found[sequence], logits) for sequence, logits in whole.items()), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_threads_do_not_change_a_bit(dtype: str, tmp_path: Path, device: Device) -> None:
    """Members share panels, of which the gate has an odd number here, and the last is not full."""
    library, declared = native.library(), make(tiny("qwen2", tmp_path, intermediate_size=72), "qwen2", dtype)
    assert library is not None
    wanted = run_schedule(paged(declared), SCHEDULES["single tokens"])
    for threads in (1, 2, 3):
        library.lsv_set_team(threads, None)
        found = run_schedule(paged(declared), SCHEDULES["whole"])
        library.lsv_set_team(1, None)
        assert all(torch.equal(found[sequence], logits) for sequence, logits in wanted.items()), threads


def test_another_attention_backend_is_served_by_the_parts(tmp_path: Path, device: Device) -> None:
    checkpoint = tiny("qwen3", tmp_path)
    declared = make(checkpoint, "qwen3", "float32")
    found = run_schedule(Sequences(declared, DenseAttention()), SCHEDULES["mixed"])
    for sequence, logits in run_schedule(paged(declared), SCHEDULES["mixed"]).items():
        torch.testing.assert_close(found[sequence], logits, rtol=1e-4, atol=1e-4)


class OtherRouter(nn.Module):
    """What ``Router`` computes, as another class."""

    def __init__(self, router: Router) -> None:
        super().__init__()
        self.router, self.top = router, router.top

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, experts = self.router(x)
        return weights.flip(-1), experts.flip(-1)


def test_experts_behind_another_router_have_a_call_of_their_own(
    tmp_path: Path, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tiny("mixtral", tmp_path)
    wanted = run_schedule(paged(make(checkpoint, "mixtral", "float32")), SCHEDULES["mixed"])
    build = MoE.__init__

    def build_other(self: MoE, *args: Any, **options: Any) -> None:
        build(self, *args, **options)
        self.router = OtherRouter(self.router)  # type: ignore[assignment]

    monkeypatch.setattr(MoE, "__init__", build_other)
    found = run_schedule(paged(make(checkpoint, "mixtral", "float32")), SCHEDULES["mixed"])
    for sequence, logits in wanted.items():
        torch.testing.assert_close(found[sequence], logits, rtol=1e-4, atol=1e-4)
