"""Products of bfloat16 with an odd inner size: a non-finite row affects no other row, also with the bug of AMX."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from lsv_runtime import products
from lsv_runtime.adapters.slots import AdapterSlots
from lsv_runtime.emulation.vendors.onednn import check_rows_apart, leaky_products
from lsv_runtime.nn import encoder
from lsv_runtime.nn.model import ActiveAdapters
from lsv_runtime.nn.pooling.scoring import Score
from lsv_runtime.weights.quantizer import LinearLayer, PlainLinear
from lsv_runtime.worker.transfer import send_adapters
from lsv_testing.tensors import TensorsSource, fill_module, place

pytestmark = pytest.mark.onednn

Compute = Callable[[torch.Tensor], torch.Tensor]


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.bfloat16)


def as_heads(x: torch.Tensor) -> torch.Tensor:
    """[T, 2 * dim] -> [1, 2, T, dim]"""
    return x.view(1, len(x), 2, -1).transpose(1, 2)


def products_of(module: object) -> dict[str, tuple[int, Compute]]:
    """By name, the width of a row and a product of rows, with functions of torch or ``lsv_runtime.products``."""
    plain = module is torch
    linear = functional.linear if plain else products.linear
    matmul = torch.matmul if plain else products.matmul
    einsum = torch.einsum if plain else products.einsum
    attend = functional.scaled_dot_product_attention if plain else products.attend
    torch.manual_seed(0)
    weight, bias, heads = randn(8, 33), randn(8), randn(2, 33, 8)
    k, v, odd = randn(1, 2, 257, 16), randn(1, 2, 257, 16), randn(1, 2, 8, 33)
    return {
        "linear": (33, lambda x: linear(x, weight, bias)),
        "matmul": (66, lambda x: matmul(as_heads(x)[0], heads).transpose(0, 1)),
        "rank one": (1, lambda x: matmul(x, weight[:1])),
        "einsum": (66, lambda x: einsum("thd,hdr->thr", x.view(len(x), 2, 33), heads)),
        "257 keys": (32, lambda x: attend(as_heads(x), k, v)[0].transpose(0, 1)),
        "odd heads": (66, lambda x: attend(as_heads(x), odd, odd)[0].transpose(0, 1)),
    }


@pytest.mark.parametrize("name", products_of(torch))
def test_the_comparison_sees_what_torch_does_with_amx(name: str) -> None:
    width, compute = products_of(torch)[name]
    with pytest.raises(AssertionError):
        check_rows_apart(compute, randn(6, width))


@pytest.mark.parametrize("name", products_of(products))
def test_rows_do_not_affect_each_other(name: str) -> None:
    width, compute = products_of(products)[name]
    check_rows_apart(compute, randn(6, width))


@pytest.mark.parametrize("name", products_of(products))
def test_results_are_those_of_torch(name: str) -> None:
    width, compute = products_of(products)[name]
    x = randn(6, width)
    torch.testing.assert_close(compute(x), products_of(torch)[name][1](x), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("seen", ["bool", "added"])
def test_a_mask_and_groups_are_followed(seen: str) -> None:
    q, k, v = randn(1, 4, 3, 16), randn(1, 2, 7, 16), randn(1, 2, 7, 16)
    mask = torch.rand(3, 7) > 0.4
    mask[:, 0] = True
    if seen == "added":
        mask = torch.zeros(3, 7, dtype=q.dtype).masked_fill(~mask, -torch.inf)
    wanted = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3, enable_gqa=True)
    found = products.attend(q, k, v, mask=mask, scale=0.3, grouped=True)
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("dtype", "size"), [(torch.bfloat16, 32), (torch.float32, 33), (torch.float16, 33)], ids=str)
def test_other_products_have_no_fault_and_the_bits_of_torch(dtype: torch.dtype, size: int) -> None:
    x, weight = torch.randn(6, size).to(dtype), torch.randn(8, size).to(dtype)
    assert torch.equal(products.linear(x, weight), functional.linear(x, weight))
    x[1] = torch.nan
    with leaky_products() as seen:
        products.linear(x, weight)
    assert seen.leaked == 0


def plain_linear() -> tuple[int, Compute]:
    layer = LinearLayer("m", "column", 33, (8,), False, torch.bfloat16)
    return 33, PlainLinear(layer, nn.Parameter(randn(8, 33)), None).reference


def score() -> tuple[int, Compute]:
    w = place(dtype=torch.bfloat16)
    return 33, fill_module(Score(w, 33, 3), w, TensorsSource({"score.weight": randn(3, 33)}))


def adapters_of_rank_three() -> tuple[int, Compute]:
    """All tokens have the same adapter, so they are in one tile."""
    slots = AdapterSlots(
        LinearLayer("m", "column", 32, (8,), False, torch.bfloat16), 1, 3, torch.bfloat16, ActiveAdapters()
    )
    for name in ("a", "b"):
        slots.keep(name, randn(*slots.get_buffer(name).shape))
    slots.ranks[:] = array("i", [3])
    return 32, lambda x: slots.reference(
        torch.zeros(len(x), 8, dtype=x.dtype), x, send_adapters(np.ones(len(x), np.int64), x.device)
    )


@pytest.mark.parametrize("make", [plain_linear, score, adapters_of_rank_three])
def test_layers_keep_rows_apart(make: Callable[[], tuple[int, Compute]]) -> None:
    width, compute = make()
    check_rows_apart(compute, randn(6, width))


def test_images_of_257_patches_are_apart() -> None:
    def attend(x: torch.Tensor) -> torch.Tensor:
        q, k, v = x.view(-1, 3, 2, 16).unbind(1)
        return encoder.attend(q, k, v, [(2, 257)])

    check_rows_apart(attend, randn(2 * 257, 3 * 32), slice(257, None))


@pytest.mark.parametrize("supported", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_convolutions_are_those_of_torch(
    monkeypatch: pytest.MonkeyPatch, axes: int, dtype: torch.dtype, supported: bool
) -> None:
    monkeypatch.setattr(products, "has_instructions", lambda asked: supported or asked.dtype is not dtype)
    convolution = (functional.conv1d, functional.conv2d, functional.conv3d)[axes - 1]
    x, weight, bias = (torch.randn(*shape).to(dtype) for shape in ((2, 4, *(9,) * axes), (6, 2, *(3,) * axes), (6,)))
    exact = convolution(x.double(), weight.double(), bias.double(), 2, 1, 1, 2)
    made = products.convolve(x, weight, bias, stride=2, padding=1, groups=2)
    assert made.dtype is dtype
    torch.testing.assert_close(made.double(), exact, rtol=torch.finfo(dtype).eps, atol=0.02)
    without = products.convolve(x, weight, stride=(2,) * axes, padding=1, groups=2)
    torch.testing.assert_close(without + bias.view(-1, *(1,) * axes), made, rtol=0.02, atol=0.05)


@pytest.mark.parametrize("supported", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [7, 40])
def test_products_are_those_of_torch(
    monkeypatch: pytest.MonkeyPatch, rows: int, dtype: torch.dtype, supported: bool
) -> None:
    monkeypatch.setattr(products, "has_instructions", lambda asked: supported or asked.dtype is not dtype)
    monkeypatch.setattr(products, "_OUTPUTS_AT_ONCE", 20)
    x, weight, bias, heads = (torch.randn(*shape).to(dtype) for shape in ((rows, 96), (48, 96), (48,), (4, 24, 8)))
    wide, of_heads = x.double(), x.view(rows, 4, 24)
    for made, exact in (
        (products.linear(x, weight, bias), functional.linear(wide, weight.double(), bias.double())),
        (products.linear(x[None], weight)[0], wide @ weight.double().T),
        (products.matmul(x, weight.T), wide @ weight.double().T),
        (
            products.einsum("thd,hdr->thr", of_heads, heads),
            torch.einsum("thd,hdr->thr", of_heads.double(), heads.double()),
        ),
    ):
        assert made.dtype is dtype
        torch.testing.assert_close(made.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-3)
