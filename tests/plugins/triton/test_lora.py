"""Low-rank adapters by token against plain torch."""

from __future__ import annotations

import pytest
import torch

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-6, torch.float16: 2**-9}
SHAPES = [(6, 40, 8, 70), (5, 300, 16, 33), (3, 17, 5, 130)]  # tokens, inputs, rank, outputs


@pytest.mark.parametrize(("dtype", "shape"), [*zip(TOLERANCE, SHAPES, strict=True)], ids=str)
def test_each_token_has_its_adapter(dtype: torch.dtype, shape: tuple[int, int, int, int], device: torch.device) -> None:
    from lsv_triton.layers.lora import expand, expand_reference, shrink, shrink_reference

    tokens, inputs, rank, outputs = shape
    x = torch.randn(tokens, inputs).to(device, dtype)
    a, b = torch.randn(3, rank, inputs).to(device, dtype), torch.randn(3, outputs, rank).to(device, dtype)
    slots = torch.tensor([2, -1, 0, 2, 1, -1][:tokens], dtype=torch.int32, device=device)
    y = torch.randn(tokens, outputs + 7).to(device, dtype)
    part = slice(3, 3 + outputs)

    small = shrink(x, slots, a)
    exact = shrink_reference(x, slots, a)
    assert (small - exact).abs().max() <= 2e-6 * exact.abs().max()
    found, wanted = y.clone(), y.clone()
    expand(found[:, part], small, slots, b)
    expand_reference(wanted[:, part], small, slots, b)
    assert (found - wanted).abs().max() <= TOLERANCE[dtype] * wanted.abs().max()
    assert torch.equal(found[:, :3], y[:, :3])
    assert torch.equal(found[1], y[1])  # no adapter, no change
    for token in range(tokens):
        one = slice(token, token + 1)
        alone = y[one].clone()
        assert torch.equal(shrink(x[one], slots[one], a)[0], small[token])
        expand(alone[:, part], small[one], slots[one], b)
        assert torch.equal(alone[0], found[token])
