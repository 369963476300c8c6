"""A decoder layer over vllm_xpu_kernels: its values are those of plain torch, and how many launches it takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

import lsv_models.plugin
from lsv_runtime.emulation.vendors.signatures import Op
from lsv_runtime.nn.step import Step
from lsv_runtime.worker.load.declared import Declared
from lsv_testing.catalog import catalog_of
from lsv_testing.model import Sequences, check_kernels, engine_config, load, load_bound
from lsv_testing.tiny import tiny
from lsv_xpu import libraries, plugin
from lsv_xpu.emulation.vllm_kernels import FakeVllmKernels
from lsv_xpu.vllm.layer import VllmLayer

LAYER = "lsv_xpu.vllm.layer:VllmLayer"
TOLERANCE = {"float16": 8e-3, "bfloat16": 6e-2}


@pytest.fixture(autouse=True)
def fakes() -> Iterator[None]:
    libraries.use(libraries.VLLM, FakeVllmKernels())
    yield
    libraries.forget()


def make(path: Path, family: str, dtype: str) -> tuple[Declared, dict[str, str]]:
    """The model, and by which implementation each op is bound."""
    return load_bound(engine_config(path, family, dtype=dtype), catalog_of(plugin, lsv_models.plugin), "xpu")


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        ("llama", "float16"),
        ("qwen3", "bfloat16"),
        pytest.param("qwen2", "float16", marks=pytest.mark.slow),
        pytest.param("qwen3_moe", "float16", marks=pytest.mark.slow),
    ],
)
def test_logits_are_those_of_the_plain_model(family: str, dtype: str, tmp_path: Path) -> None:
    checkpoint = tiny(family, tmp_path)
    plain = load(engine_config(checkpoint, family, dtype=dtype), catalog_of(plugin, lsv_models.plugin))
    fused, ops = make(checkpoint, family, dtype)
    assert ops["layer"] == LAYER
    assert ops["rope"] == "lsv_xpu.vllm.ops:Rotate"
    check_kernels(Sequences(fused), plain, "mixed", TOLERANCE[dtype])


class Launches(TorchDispatchMode):
    """What a device is given to do: torch's operations that are more than views, and the package's, one each."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {one.untyped_storage().data_ptr() for one in tree_leaves(args) if isinstance(one, torch.Tensor)}
        shared = func.is_view and {one.untyped_storage().data_ptr() for one in tree_leaves(result)} <= given
        if not shared and not func._schema.name.startswith("aten::empty"):
            self.names.append(func._schema.name.partition("::")[2])
        return result


class Attention:
    """In the place of a backend: one launch."""

    def __init__(self, launches: Launches) -> None:
        self._launches = launches

    def attend(self, q: torch.Tensor, k: Any, v: Any, layer: Any, cache: Any, plan: Any) -> torch.Tensor:
        self._launches.names.append("attention")
        with _disable_current_modes():
            return q.clone()


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    found = Launches()
    answer = Op.__call__

    def counted(op: Op, *args: Any, **kwargs: Any) -> Any:
        found.names.append(op._schema.name.partition("::")[2])
        with _disable_current_modes():
            return answer(op, *args, **kwargs)

    monkeypatch.setattr(Op, "__call__", counted)
    return found


@pytest.mark.parametrize(("family", "norms"), [("llama", []), ("qwen3", ["rms_norm", "rms_norm"])])
def test_launches_of_a_layer(family: str, norms: list[str], launches: Launches, tmp_path: Path) -> None:
    declared, _ = make(tiny(family, tmp_path), family, "float16")
    layers: list[Any] = list(declared.model.layers)
    tokens, hidden = 3, declared.model.norm.weight.shape[0]
    backend: Any = Attention(launches)
    positions = torch.arange(tokens)
    step = Step(positions, positions[None], backend, (None,), None, positions)
    kernel = layers[0].kernel
    assert isinstance(kernel, VllmLayer)
    with torch.inference_mode(), launches:
        x = torch.randn(tokens, hidden).half()
        change = torch.randn(tokens, hidden).half()
        launches.names.clear()
        kernel.carry(x, change, step)
    assert launches.names == [
        "fused_add_rms_norm", "linear", *norms, "rotary_embedding", "attention", "linear",
        "fused_add_rms_norm", "linear", "silu_and_mul", "linear",
    ]  # fmt: skip
