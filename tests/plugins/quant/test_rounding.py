"""The arithmetic of the integer formats."""

from __future__ import annotations

import pytest
import torch

from lsv_quant.rounding import exact_product, from_nibbles, in_groups, row_chunks, to_int4, to_int8, to_nibbles


def test_int8_rounds_half_to_even_of_the_largest() -> None:
    codes, scales = to_int8(torch.tensor([[127.0, 0.5, 1.5, -2.5, -126.4], [0, 0, 0, 0, 0], [-1e3, 0, 0, 500, 1]]))
    assert codes.tolist() == [[127, 0, 2, -2, -126], [0, 0, 0, 0, 0], [-127, 0, 0, 64, 0]]
    torch.testing.assert_close(scales, torch.tensor([1.0, 1.0, 1e3 / 127]))


def test_int8_is_off_by_half_a_step_at_most() -> None:
    x = torch.randn(50, 333)
    codes, scales = to_int8(x)
    assert ((codes * scales[:, None] - x).abs() <= scales[:, None] * 0.50001).all()


def test_a_row_that_is_not_finite_has_such_a_scale() -> None:
    x = torch.ones(3, 8)
    x[1, 2], x[2, 7] = torch.nan, -torch.inf
    assert to_int8(x)[1].isfinite().tolist() == [True, False, False]


def test_a_layer_without_memory_is_not_rounded() -> None:
    """Memory is planned on meta, and a large layer has thousands of steps."""
    assert list(row_chunks(torch.empty(4096, 14336, device="meta"))) == []
    steps = list(row_chunks(torch.empty(1000, 14336)))
    assert len(steps) > 1
    assert (steps[0].start, steps[-1].stop >= 1000) == (0, True)


@pytest.mark.parametrize("group", [32, 64, 128])
def test_int4_beats_plain_rounding(group: int) -> None:
    x = torch.randn(500, group)
    codes, scales = to_int4(x)
    assert codes.min() == -8
    assert codes.max() == 7
    plain = x.abs().amax(dim=1, keepdim=True) / 7
    found = (codes * scales[:, None] - x).square().sum(dim=1)
    assert found.sum() < 0.8 * ((x / plain).round() * plain - x).square().sum()
    assert (found.sum() / x.square().sum()).sqrt() < {32: 0.09, 64: 0.1, 128: 0.11}[group]


def test_int4_keeps_what_it_can_represent() -> None:
    exact = torch.tensor([[-8.0, 7, 0, 3], [8, -7, 1, 0], [0, 0, 0, 0]]) * 0.25
    codes, scales = to_int4(exact)
    assert torch.equal(codes * scales[:, None], exact)


def test_int4_keeps_large_weights() -> None:
    """Of a heavy-tailed group the weighted error is less than with the scale that is best for all weights alike."""
    x = torch.distributions.StudentT(3.0).sample((2000, 64))
    codes, scales = to_int4(x)
    weighted = (x.square() * (codes * scales[:, None] - x).square()).sum()
    alike = min(
        (x.square() * ((x / scale).round().clamp(-8, 7) * scale - x).square()).sum()
        for scale in (x.abs().amax(dim=1, keepdim=True) / divisor for divisor in (7, 7.5, 8, 8.5, 9))
    )
    assert weighted < 0.75 * alike


def test_an_int4_group_that_is_not_finite_has_such_a_scale() -> None:
    x = torch.ones(3, 8)
    x[1, 2], x[2, 7] = torch.nan, -torch.inf
    assert to_int4(x)[1].isfinite().tolist() == [True, False, False]


@pytest.mark.parametrize("count", [8, 7])
def test_nibbles(count: int) -> None:
    codes = torch.tensor([[-8, 7, 0, -1, 3, 2, -5, 6]], dtype=torch.int8)[:, :count]
    nibbles = to_nibbles(codes)
    assert nibbles[0, :2].tolist() == [0xF0, 0x78]
    assert torch.equal(from_nibbles(nibbles, count), codes)


@pytest.mark.row("F-1020")
def test_groups_are_filled_with_zeros() -> None:
    assert in_groups(torch.ones(2, 5), 4).tolist() == [[[1, 1, 1, 1], [1, 0, 0, 0]]] * 2


def test_products_of_the_largest_numbers_are_exact() -> None:
    x = torch.full((1, 5000), 127, dtype=torch.int8)
    weight = torch.full((2, 5000), -128, dtype=torch.int8)
    weight[1, ::2] = 127
    wanted = (x.long() @ weight.T.long()).int()
    assert torch.equal(exact_product(x, weight), wanted)
