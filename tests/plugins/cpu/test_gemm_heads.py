"""Products of attention heads, each with weights of its own, under each instruction set that this machine can run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from lsv_cpu import native
from lsv_cpu.linear import PanelHeads
from lsv_runtime.nn.latent import HeadProduct
from suite.instruction_sets import RUNNABLE

SHAPES = ((16, 128, 512), (3, 12, 24), (5, 65, 33), (1, 32, 32))
"""Heads, inputs and outputs: DeepSeek's, and some that fill no panel."""
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}
"""Of sums of about 1, the largest of which are 5."""
ROWS = (1, 2, 5, 13, 40, 255, 257)


@pytest.fixture(params=RUNNABLE)
def team(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    library = native.load(request.param)
    if library is None:
        pytest.skip("no C++ compiler")
    monkeypatch.setattr("lsv_cpu.linear.selected_library", lambda: library)
    library.lsv_set_team(1, None)
    yield
    library.lsv_set_team(1, None)


def make(heads: int, inputs: int, outputs: int, dtype: torch.dtype) -> tuple[HeadProduct, torch.Tensor]:
    """A product with a native kernel, and its weights."""
    module = HeadProduct(heads, inputs, outputs, dtype)
    module.use(PanelHeads(module, module.spec()))
    weight = (torch.randn(heads, outputs, inputs) * inputs**-0.5).to(dtype)
    module.fill(weight.clone())
    return module, weight


@pytest.mark.row("F-657")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_each_head_has_weights_of_its_own(dtype: torch.dtype, team: None) -> None:
    for shape in SHAPES:
        module, weight = make(*shape, dtype)
        apart = torch.randn(60, shape[0], shape[1] + 7).to(dtype)[..., 3:-4]  # neither rows nor heads lie densely
        expected = torch.einsum("thi,hoi->tho", apart.double(), weight.double())
        found = module(apart)
        assert found.is_contiguous()
        torch.testing.assert_close(found.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        assert torch.equal(module(apart.transpose(1, 2).contiguous().transpose(1, 2)), found)


@pytest.mark.row("F-657")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_row_has_the_same_bits_in_any_batch(dtype: torch.dtype, team: None) -> None:
    for shape in SHAPES:
        module, _ = make(*shape, dtype)
        x = torch.randn(ROWS[-1], *shape[:2]).to(dtype)
        whole = module(x)
        for rows in ROWS:
            assert torch.equal(module(x[:rows]), whole[:rows])
        assert torch.equal(module(x[254:]), whole[254:])


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_threads_change_no_bit(threads: int) -> None:
    library = native.load("auto")
    if library is None:
        pytest.skip("no C++ compiler")
    module, _ = make(3, 40, 100, torch.bfloat16)
    x = torch.randn(300, 3, 40).bfloat16()
    library.lsv_set_team(1, None)
    alone = module(x)
    library.lsv_set_team(threads, None)
    together = module(x)
    library.lsv_set_team(1, None)
    assert torch.equal(together, alone)


def test_weights_that_are_filled_again_go_to_the_same_place(team: None) -> None:
    module, weight = make(3, 40, 100, torch.float32)
    x, place = torch.randn(4, 3, 40), module.get_buffer("packed").data_ptr()
    before = module(x)
    module.pack()  # the loader's own call, when the weights are not there yet
    assert torch.equal(module(x), before)
    module.fill(2 * weight)
    assert torch.equal(module(x), 2 * before)
    assert module.get_buffer("packed").data_ptr() == place
    assert module.get_buffer("weight").is_meta, "the weights are held twice"
