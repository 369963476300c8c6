"""Activations rounded to int8 by scales of the checkpoint's own, compared with products of integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lsv_base.errors import CheckpointError
from lsv_quant.checkpoints.compressed_tensors import make
from lsv_testing.quantised import answer, fused_layer, write_quantised
from lsv_testing.quantizer import check_quantizer

Tensors = dict[str, torch.Tensor]
WEIGHTS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
INPUTS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "tensor", "dynamic": False}


def config(*, symmetric: bool = True, weights: dict[str, Any] = WEIGHTS, **inputs: Any) -> dict[str, Any]:
    group = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": INPUTS | {"symmetric": symmetric, **inputs},
    }
    return {"quant_method": "compressed-tensors", "format": "int-quantized", "ignore": ["lm_head"],
            "config_groups": {"group_0": group}}  # fmt: skip


def pack(weight: torch.Tensor, scale: float = 0.02, zero: int | None = None) -> Tensors:
    scales = weight.abs().amax(dim=1) / 127
    codes = (weight / scales[:, None]).round().to(torch.int8)
    found = {"weight": codes, "weight_scale": scales, "input_scale": torch.tensor([scale])}
    return found if zero is None else {**found, "input_zero_point": torch.tensor([zero], dtype=torch.int8)}


def multiply(x: torch.Tensor, tensors: Tensors) -> torch.Tensor:
    """The published form: a product of integers, then of the scales; float64."""
    scale, zero = tensors["input_scale"].double(), int(tensors.get("input_zero_point", torch.zeros(1)))
    codes = ((x.float() / tensors["input_scale"]).round() + zero).clamp(-128, 127).long() - zero
    return (codes @ tensors["weight"].long().T).double() * scale * tensors["weight_scale"].double()


@pytest.mark.row("F-413")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("zeros", [(None, None), (0, 0), (7, 7), (-128, 100)])
@pytest.mark.parametrize("scales", [(0.02, 0.02), (0.02, 0.013)])
def test_products_are_those_of_integers(
    dtype: torch.dtype, zeros: tuple[int | None, ...], scales: tuple[float, ...]
) -> None:
    """Of parts with one scale or with several; some activations are beyond what the scale can tell."""
    packed = [pack(torch.randn(width, 96), *how) for width, *how in zip((40, 24), scales, zeros, strict=True)]
    layer = fused_layer(make(config(symmetric=zeros in ((None, None), (0, 0)))), packed, [40, 24], 96)
    x = 2 * torch.randn(5, 96).to(dtype)
    wanted = torch.cat([multiply(x, tensors) for tensors in packed], dim=1)
    assert layer.op == "linear.int8_static"
    torch.testing.assert_close(layer(x).double(), wanted, rtol=2**-8 if dtype == torch.bfloat16 else 1e-5, atol=1e-4)


def test_weights_may_be_of_any_form() -> None:
    weights = WEIGHTS | {"strategy": "group", "group_size": 32, "symmetric": False}
    scales, zeros = torch.rand(8, 2) + 0.5, torch.randint(-5, 5, (8, 2), dtype=torch.int8)
    codes = torch.randint(-128, 127, (8, 64), dtype=torch.int8)
    tensors = {"weight": codes, "weight_scale": scales, "weight_zero_point": zeros, "input_scale": torch.tensor(0.5)}
    layer = fused_layer(make(config(weights=weights)), [tensors], [8], 64)
    meant = (codes.unflatten(1, (2, 32)) - zeros[..., None].float()) * scales[..., None]
    x = torch.randn(3, 64)
    torch.testing.assert_close(layer(x), 0.5 * (x / 0.5).round() @ meant.flatten(1).T)


def test_suite() -> None:
    check_quantizer(lambda: make(config(symmetric=False)), lambda weight: pack(weight, 0.04, 3), tolerance=0.05)


def test_an_identity_is_not_cut_off() -> None:
    """What absorbs a projection asks for its weights: ones may be far beyond the calibrated range."""
    weight = torch.randn(8, 32)
    packed = [pack(weight[:4], 0.001, 5), pack(weight[4:], 0.002, 5)]
    for parts, widths in ((packed[:1], [4]), (packed, [4, 4])):
        layer = fused_layer(make(config(symmetric=False)), parts, widths, 32)
        meant = torch.cat([part["weight"] * part["weight_scale"][:, None] for part in parts])
        torch.testing.assert_close(layer.unrounded(torch.eye(32)), meant.T)


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        (pack(torch.randn(8, 32), 0.0), "0.input_scale is 0"),
        (
            pack(torch.randn(8, 32), 0.1, 3),
            "0.input_zero_point is not 0 everywhere, but .* these activations symmetric",
        ),
    ],
)
def test_tensors_that_are_refused(tensors: Tensors, problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        fused_layer(make(config()), [tensors], [8], 32)


@pytest.mark.row("F-413")
def test_a_checkpoint_is_loaded_and_answers(tmp_path: Path) -> None:
    """Alike by the platform's kernels and by plain torch, and not like the plain weights with coarse activations."""

    def packed(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor] | None:
        if name == "lm_head":
            return None
        tensors = pack(weight, 0.08, -20)
        return tensors, tensors["weight"] * tensors["weight_scale"][:, None]

    found, plain = write_quantised("llama", tmp_path, config(symmetric=False), packed)
    assert answer(found) == answer(found, reference_ops=True)
    assert answer(found) != answer(plain)
