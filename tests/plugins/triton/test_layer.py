"""A decoder layer with fused seams, against the same model with every op left to plain torch."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import GridExecutor

import lsv_models.plugin
from lsv.offers import OpSpec
from lsv_runtime.attention import CacheSpec
from lsv_runtime.devices.device import Device
from lsv_runtime.nn import model
from lsv_runtime.worker.load.declared import Declared
from lsv_testing.catalog import catalog_of
from lsv_testing.model import SCHEDULES, Sequences, check_kernels, engine_config, load, load_bound, run_schedule
from lsv_testing.tiny import tiny
from lsv_triton import plugin
from lsv_triton.attention.backend import TritonAttention
from lsv_triton.attention.cache import KVCache
from lsv_triton.layers import layer

LAYER = "lsv_triton.layers.layer:FusedLayer"
DENSE, SPARSE = ("llama", "mistral", "qwen2", "qwen3"), ("mixtral", "qwen3_moe")
EXACT = ("float32", "float16")  # the interpreter cuts bfloat16 off: that alone lets a router choose other experts
TOLERANCE = {"float32": 2e-5, "bfloat16": 6e-2, "float16": 8e-3}

pytestmark = pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="the suite's models live on the host")


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what torch computes, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count[str(function)] += 1
        return function(*args, **(kwargs or {}))


class HostAttention(TritonAttention):
    """On the host, wherever it is told to be."""

    def __init__(self, host: Device) -> None:
        super().__init__()
        self.host = host

    def allocate(self, spec: CacheSpec, device: Device) -> KVCache:
        return super().allocate(spec, self.host)  # type: ignore[no-any-return]


def make(path: Path, family: str, dtype: str) -> tuple[Declared, dict[str, str]]:
    """The model, and by which implementation each op is bound."""
    return load_bound(engine_config(path, family, dtype=dtype), catalog_of(plugin, lsv_models.plugin), "cuda")


def check(family: str, dtype: str, schedule: str, path: Path) -> None:
    checkpoint = tiny(family, path)
    plain = load(engine_config(checkpoint, family, dtype=dtype), catalog_of(plugin, lsv_models.plugin))
    fused, ops = make(checkpoint, family, dtype)
    assert ops["layer"] == LAYER
    assert ops["rms_norm"] == "lsv_triton.layers.norm:RmsNorm"
    check_kernels(Sequences(fused), plain, schedule, TOLERANCE[dtype])


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_logits_are_those_of_the_plain_model(family: str, tmp_path: Path) -> None:
    check(family, "float32", "whole", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "dtype"), [*itertools.product(DENSE, TOLERANCE), *itertools.product(SPARSE, EXACT)])
def test_every_family_and_dtype(family: str, dtype: str, tmp_path: Path) -> None:
    check(family, dtype, "mixed", tmp_path)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_launches_of_a_step(family: str, tmp_path: Path, host: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """By layer, apart from products: projection to attention, attention, each sum with the norm after it, the gate."""
    declared, _ = make(tiny(family, tmp_path), family, "float32")
    sequences = Sequences(declared, HostAttention(host))
    launched: list[str] = []
    launch = GridExecutor.__call__

    def note(self: Any, *args: Any, **names: Any) -> None:
        launched.append(self.fn.__name__.strip("_"))
        launch(self, *args, **names)

    monkeypatch.setattr(GridExecutor, "__call__", note)
    sequences.add(0, [1, 2, 3, 4, 5])
    with Operations() as operations:
        sequences.step([(0, 5)])
    per_layer = ["turn_and_write", "attend_tiles", "rms_norm", "gated", "rms_norm"]
    layers = len(declared.model.layers)
    assert layers > 1
    others = [name for name in launched if name not in ("multiply", "add_parts")]
    assert others == ["rms_norm", *per_layer * layers], "beside the last norm, which is the model's"
    assert operations.count["aten.add.Tensor"] == 1, "what the last layer leaves to the head's rows"


@pytest.mark.daily(family=["llama"], kv_dtype=["auto"])
@pytest.mark.daily(family=["qwen3"], kv_dtype=["int8"])
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_fused_layer_changes_no_bit(
    family: str, kv_dtype: str, tmp_path: Path, host: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the same kernels launched one after the other."""
    declared, _ = make(tiny(family, tmp_path), family, "float32")
    dtype = torch.int8 if kv_dtype == "int8" else torch.float32
    found = run_schedule(Sequences(declared, HostAttention(host), kv_dtype=dtype), SCHEDULES["whole"])
    monkeypatch.setattr(layer, "PagedPlan", int)  # as if plans were of another kind, which the fused kernel can't take
    monkeypatch.setattr(model, "CarryingKernel", int)
    plain = run_schedule(Sequences(declared, HostAttention(host), kv_dtype=dtype), SCHEDULES["whole"])
    assert found.keys() == plain.keys()
    assert all(torch.equal(found[sequence], plain[sequence]) for sequence in plain)


def test_modules_below_the_layer_have_kernels_of_their_own(tmp_path: Path) -> None:
    declared, ops = make(tiny("qwen3", tmp_path), "qwen3", "float32")
    layer = declared.model.layers[0]
    assert type(layer.kernel).__name__ == "FusedLayer"
    assert layer.before_attn.kernel is not None
    assert layer.mlp.act.kernel is not None
    assert ops["gated_mlp"] == "reference"
    assert {"attention", "linear"} <= ops.keys()


def test_another_dtype_is_refused_by_name() -> None:
    refusals = {offer.supports(OpSpec("layer", "float64")) for offer in plugin.lsv_kernels() if offer.op == "layer"}
    assert refusals == {"float64 is not one of float32, bfloat16, float16"}
