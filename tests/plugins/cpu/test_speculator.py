"""All places of an MLP speculator in one native call, against the places one by one in plain torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lsv.request.params import SamplingParams
from lsv.resolve.locate import read_config
from lsv_cpu import plugin
from lsv_cpu.speculator import NativeSpeculator
from lsv_cpu.team import set_team
from lsv_drafters.speculator import SpeculatorHeads
from lsv_runtime.devices.device import Device
from lsv_runtime.drafts.speculator import Speculator
from lsv_runtime.nn.sampling import NOT_FINITE, Choices, Sampling
from lsv_runtime.weights.checkpoint import SafetensorsSource
from lsv_runtime.worker.load.bound import bind_filled
from lsv_runtime.worker.sampling.choices import join_choices, make_choice
from lsv_runtime.worker.sampling.edits import NO_EDITS
from lsv_testing.catalog import catalog_of
from lsv_testing.fakes.engine import engine_config
from lsv_testing.fakes.speculator import write_speculator

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
FORMS = pytest.mark.parametrize(("tied", "normed"), [(True, False), (False, True)])
PLACES, HIDDEN, VOCABULARY = 4, 64, 1100
PLAIN = Sampling()


@pytest.fixture(params=[1, 2, 3], ids=lambda members: f"{members} members")
def team(device: Device, request: pytest.FixtureRequest) -> Iterator[int]:
    set_team(request.param, None)
    yield request.param
    set_team(1, None)


def choose(logits: Tensor, choices: Choices) -> Tensor:
    return PLAIN.choose(logits, choices, NO_EDITS)


def make(folder: Path, dtype: torch.dtype, *, native: bool, **form: Any) -> Speculator:
    if not folder.exists():
        write_speculator(folder, hidden=HIDDEN, vocabulary=VOCABULARY, places=PLACES, **form)
    with closing(SafetensorsSource(folder)) as source:
        heads = SpeculatorHeads(read_config(folder, {}), source, dtype, torch.device("cpu"))
    bind_filled(heads, engine_config(platform="cpu", reference_ops=not native), catalog_of(plugin))
    assert isinstance(heads.chain.kernel, NativeSpeculator) == native
    return heads.chain


def ask(rows: int, dtype: torch.dtype, temperature: float = 0.0, seed: int = 0) -> tuple[Tensor, Tensor, Choices]:
    draw = torch.Generator().manual_seed(seed)
    states = torch.randn(rows, HIDDEN, generator=draw).to(dtype)
    tokens = torch.randint(0, VOCABULARY, (rows,), generator=draw)
    choices = join_choices([
        make_choice(SamplingParams(temperature=temperature * (row % 3), top_k=40 * (row % 2)), row)
        for row in range(rows)
    ])  # fmt: skip
    choices["position"] = range(10, 10 + rows)
    return states, tokens, choices


@FORMS
@pytest.mark.row("F-361")
def test_drafts_are_those_of_plain_torch(team: int, tied: bool, normed: bool, tmp_path: Path) -> None:
    plain, native = (make(tmp_path / "s", torch.float32, native=one, tied=tied, scales=normed) for one in (False, True))
    for counts in ([1, 1, 1, 1], [1], [5, 5, 2, 1], [9, 1], [90, 33, 17, 16]):
        given = ask(counts[0], torch.float32, 0.7, len(counts))
        assert (
            native(*given[:2], counts, given[2], choose).tolist()
            == plain(*given[:2], counts, given[2], choose).tolist()
        )


@FORMS
@DTYPES
def test_a_draft_is_a_likeliest_token_but_for_rounding(
    dtype: torch.dtype, tied: bool, normed: bool, device: Device, tmp_path: Path
) -> None:
    """Behind the drafts that the kernel has made itself."""
    plain, native = (make(tmp_path / "s", dtype, native=one, tied=tied, scales=normed) for one in (False, True))
    states, tokens, choices = ask(30, dtype)
    drawn = native(states, tokens, [30] * PLACES, choices, choose).view(PLACES, 30)
    x, same, width = plain.begin(states), 0, 1e-4 if dtype == torch.float32 else 2**-5
    for place, drafts in zip(plain.places, drawn, strict=True):
        x = place.go_on(x, tokens)
        logits = place.head(x).float()
        own, best = logits.gather(-1, drafts[:, None])[:, 0], logits.amax(-1)
        assert bool((best - own <= width * logits.abs().amax(-1)).all())
        same += int((own == best).sum())
        tokens = drafts
    assert same >= 0.9 * PLACES * 30


@DTYPES
def test_a_row_is_drafted_for_the_same_in_any_company(team: int, dtype: torch.dtype, tmp_path: Path) -> None:
    native = make(tmp_path / "s", dtype, native=True, tied=False, scales=True)
    states, tokens, choices = ask(20, dtype, 1.0)
    together = native(states, tokens, [20] * PLACES, choices, choose).view(PLACES, 20)
    for row in range(20):
        one = slice(row, row + 1)
        alone = native(states[one], tokens[one], [1] * PLACES, choices[one], choose)
        assert torch.equal(alone, together[:, row])


def test_a_row_that_is_not_finite_has_no_drafts_and_harms_nobody(team: int, tmp_path: Path) -> None:
    native = make(tmp_path / "s", torch.float32, native=True, tied=True, scales=False)
    states, tokens, choices = ask(3, torch.float32)
    wanted = native(states, tokens, [3] * PLACES, choices, choose).view(PLACES, 3)
    states[1, 5] = float("nan")
    found = native(states, tokens, [3] * PLACES, choices, choose).view(PLACES, 3)
    assert set(found[:, 1].tolist()) == {NOT_FINITE}
    assert torch.equal(found[:, [0, 2]], wanted[:, [0, 2]])
