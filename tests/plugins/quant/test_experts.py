"""Formats of experts alone: what they quantise, what they leave, and that a model without experts is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lsv_models.plugin
import lsv_quant.plugin
from lsv import LLM
from lsv_base.errors import ConfigError
from lsv_runtime.weights.quantizer import Linear
from lsv_testing.catalog import catalog_of
from lsv_testing.model import engine_config, load
from lsv_testing.quantised import answer
from lsv_testing.tiny import tiny

CATALOG = catalog_of(lsv_models.plugin, lsv_quant.plugin)


def layers(folder: Path, family: str, quantization: str | None) -> dict[str, Linear]:
    model = load(engine_config(folder, family, quantization=quantization), CATALOG).model
    return {module.layer.name: module for module in model.modules() if isinstance(module, Linear)}


@pytest.mark.row("F-419")
@pytest.mark.parametrize("family", ["qwen3_moe", "qwen2_moe", "mixtral"])
def test_experts_are_rounded_and_nothing_else(family: str, tmp_path: Path) -> None:
    """To int8 by output; what all tokens go through, shared experts too, stays as it is."""
    folder = tiny(family, tmp_path / "tiny")
    found, plain = (layers(folder, family, quantization) for quantization in ("experts_int8", None))
    formats = {name: layer.format for name, layer in found.items()}
    assert {name for name, format in formats.items() if format != "plain"} == {
        name for name in formats if ".experts." in name
    }
    assert len(set(formats.values())) == 2
    for name, layer in found.items():
        weight, before = layer.dequantise(), plain[name].dequantise()
        assert weight is not None
        assert before is not None
        steps = before.abs().amax(dim=1, keepdim=True) / 127
        if ".experts." in name:
            assert ((weight - before).abs() <= 0.501 * steps).all()
            torch.testing.assert_close(weight / steps, (weight / steps).round())
        else:
            assert torch.equal(weight, before)


@pytest.mark.row("F-419")
def test_a_model_answers(tmp_path: Path) -> None:
    """By the platform's kernels what plain torch answers."""
    folder = tiny("qwen3_moe", tmp_path / "tiny")
    found = answer(folder, quantization="experts_int8")
    assert found == answer(folder, quantization="experts_int8", reference_ops=True)


def test_a_model_without_experts_is_refused(tmp_path: Path) -> None:
    folder = tiny("llama", tmp_path / "tiny")
    with pytest.raises(ConfigError, match="quantization=experts_int8 is for experts, and LlamaForCausalLM has none"):
        LLM(str(folder), quantization="experts_int8", dtype="float32", skip_tokenizer_init=True)
