"""The native sampler against the plain one: the same tokens, whatever is asked for and however rows are split."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from lsv.offers import load_object
from lsv_cpu import plugin
from lsv_cpu.sampling import NativeChoose, NativeDescribe
from lsv_cpu.team import set_team
from lsv_runtime.devices.device import Device
from lsv_runtime.nn import sample_ops
from lsv_runtime.nn.sampling import CHOICE, EDIT, NO_TOKEN_LEFT, NOT_FINITE, WHOLE, Choices, Edits, Kind, Sampling, told
from lsv_runtime.ops import bind

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
VOCABULARIES = (1, 5, 17, 1024, 3000, 20_011)
NO_EDITS: Edits = np.empty(0, EDIT)
PLAIN = Sampling()

Row = dict[str, Any]


@pytest.fixture(params=[1, 2, 3], ids=lambda members: f"{members} members")
def team(device: Device, request: pytest.FixtureRequest) -> Iterator[int]:
    """Members that share rows, or take whole ones."""
    set_team(request.param, None)
    yield request.param
    set_team(1, None)


def native() -> NativeChoose:
    return NativeChoose(PLAIN.choose, PLAIN.choose.spec())


def choices(*rows: Row) -> Choices:
    """Records of rows; ``temperature`` 0 is greedy."""
    found = np.zeros(len(rows), CHOICE)
    found["top_p"] = WHOLE
    for record, row in zip(found, rows, strict=True):
        for name, value in row.items():
            if name == "temperature":
                record["rate"] = sample_ops.rate(value) if value else 0.0
            elif name in ("top_p", "min_p"):
                record[name] = round(value * WHOLE)
            else:
                record[name] = value
    return found


def random_row(chance: random.Random) -> Row:
    row: Row = {"temperature": chance.choice([0.0, 1e-300, 0.01, 0.7, 1.0, 1.3, 100.0])}
    fields: dict[str, Callable[[], float]] = {
        "top_k": lambda: chance.choice([1, 2, 3, 50, 200, 5000, 100_000]),
        "top_p": lambda: chance.choice([1e-12, 0.1, 0.5, 0.9, 0.999, 1 - 1e-9]),
        "min_p": lambda: chance.choice([1e-9, 0.02, 0.333, 0.9, 1.0]),
    }
    for name in chance.sample(sorted(fields), chance.randint(0, 3)):
        row[name] = fields[name]()
    return row | {"seed": chance.getrandbits(64), "position": chance.randrange(100_000)}


def random_logits(rows: int, vocabulary: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows from flat to peaked, some of them full of ties."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocabulary, generator=generator) * torch.linspace(0.0, 8.0, rows)[:, None]
    logits[::5] = logits[::5].round()
    logits[1::7] *= 20
    return logits.to(dtype)


def random_edits(chance: random.Random, vocabulary: int, only: bool) -> list[tuple[int, int, float, float]]:
    def some(most: int) -> list[int]:
        return chance.sample(range(vocabulary), min(vocabulary, chance.randint(0, most)))

    return [
        *((token, Kind.ALLOW, 0.0, 0.0) for token in (some(500) if only else ())),
        *((token, Kind.FORBID, 0.0, 0.0) for token in some(20)),
        *((token, Kind.ADD, chance.uniform(-20, 20), 0.0) for token in some(20)),
        *((token, Kind.PENALIZE, chance.uniform(0.5, 2), chance.uniform(-2, 2)) for token in some(400)),
    ]


def check(logits: torch.Tensor, rows: Choices, edits: Edits = NO_EDITS) -> torch.Tensor:
    expected = PLAIN.choose.reference(logits, rows, edits)
    before = logits.clone()
    found = native().forward(logits, rows, edits)
    assert found.tolist() == expected.tolist()
    assert torch.equal(logits.nan_to_num(9e9), before.nan_to_num(9e9))
    return found


def test_both_ops_are_bound(device: Device) -> None:
    lines = bind(Sampling(20, torch.bfloat16), list(plugin.lsv_kernels()), "cpu", lambda offer: load_object(offer.load))
    assert [(line.op, line.implementation) for line in lines] == [
        ("sample", "lsv_cpu.sampling:NativeChoose"),
        ("logprobs", "lsv_cpu.sampling:NativeDescribe"),
    ]


@DTYPES
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_random_rows_get_the_plain_path_s_tokens(dtype: torch.dtype, vocabulary: int, team: int) -> None:
    chance = random.Random(f"{dtype} {vocabulary} {team}")
    for rows in (1, 2, 7, 24):
        check(random_logits(rows, vocabulary, rows, dtype), choices(*(random_row(chance) for _ in range(rows))))


@DTYPES
def test_edited_rows_get_the_plain_path_s_tokens(dtype: torch.dtype, team: int) -> None:
    chance = random.Random(str(dtype))
    for vocabulary in (5, 1500, 20_000):
        rows = choices(*(random_row(chance) for _ in range(17)))
        rows["only"] = [chance.random() < 0.4 for _ in range(17)]
        edits = [random_edits(chance, vocabulary, bool(one["only"])) for one in rows]
        rows["edits"] = [len(some) for some in edits]
        check(random_logits(17, vocabulary, 3, dtype), rows, np.array([*itertools.chain(*edits)], EDIT))


@DTYPES
def test_rows_with_nothing_but_forbidden_tokens(dtype: torch.dtype, team: int) -> None:
    """As grammars make them; some tokens are named twice, and the best are among them."""
    chance = random.Random(f"forbidden {dtype}")
    for vocabulary in (5, 1500, 20_000):
        rows, logits = choices(*(random_row(chance) for _ in range(17))), random_logits(17, vocabulary, 4, dtype)
        edits = []
        for row, best in zip(rows, logits.topk(3).indices.tolist(), strict=True):
            some = [*best, *chance.choices(range(vocabulary), k=chance.choice([0, 1, vocabulary // 4]))]
            row["edits"] = len(some)
            edits += [(token, Kind.FORBID, 0.0, 0.0) for token in some]
        check(logits, rows, np.array(edits, EDIT))


@DTYPES
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_rows_that_are_not_finite_fail_alone(dtype: torch.dtype, value: float, team: int) -> None:
    chance = random.Random(7)
    rows = choices(*(random_row(chance) for _ in range(9)))
    for vocabulary, place in ((2000, 0), (2000, 1023), (2000, 1024), (2000, 1999), (3, 2), (37, 36)):
        logits = random_logits(9, vocabulary, 5, dtype)
        logits[[0, 4, 8], place] = value
        tokens = check(logits, rows)
        assert (tokens == NOT_FINITE).nonzero().flatten().tolist() == [0, 4, 8]


def test_a_row_whose_tokens_are_all_forbidden_fails_alone(team: int) -> None:
    rows = choices({"only": 1}, {"temperature": 1.0}, {"edits": 3, "temperature": 1.0})
    edits = np.array([(token, Kind.FORBID, 0.0, 0.0) for token in range(3)], EDIT)
    tokens = check(torch.randn(3, 3), rows, edits).tolist()
    assert tokens[::2] == [NO_TOKEN_LEFT] * 2
    assert tokens[1] >= 0


def test_the_lowest_number_is_as_good_as_forbidden(team: int) -> None:
    """So logits processors hand on what they have forbidden: an infinity would fail the row."""
    chance = random.Random(19)
    rows = choices(*(random_row(chance) for _ in range(24)))
    logits = random_logits(24, 3000, 6, torch.float32)
    tokens = [chance.sample(range(3000), 2500) for _ in rows]
    edits = np.array([(token, Kind.FORBID, 0.0, 0.0) for some in tokens for token in some], EDIT)
    edited = rows.copy()
    edited["edits"] = 2500
    expected = native().forward(logits, edited, edits)
    for row, some in zip(logits, tokens, strict=True):
        row[some] = torch.finfo(torch.float32).min
    assert check(logits, rows).tolist() == expected.tolist()


def test_ties_go_to_the_lowest_id(team: int) -> None:
    logits = torch.full((3, 5000), -7.0)
    logits[0, [4999, 1024, 1025]] = 3.0
    logits[1, [2000, 3000]] = torch.tensor([-0.0, 0.0])
    assert check(logits, choices({}, {}, {})).tolist() == [1024, 2000, 0]


def test_equal_logits_are_drawn_by_their_place(team: int) -> None:
    """All weights are equal, so the fraction drawn is the token's place; no filter can tell them apart."""
    row = {"temperature": 1.0, "seed": 5, "position": 9}
    filtered = ({"top_k": 3}, {"top_p": 0.3}, {"min_p": 1.0})
    tokens = check(torch.full((4, 50_000), 2.5), choices(row, *(row | one for one in filtered))).tolist()
    assert len(set(tokens)) == 1


def test_top_k_tells_apart_what_a_high_temperature_does_not(team: int) -> None:
    logits = torch.zeros(1, 3000)
    logits[0, 2500] = 1e-6
    assert check(logits, choices({"temperature": 100.0, "top_k": 1, "seed": 1})).tolist() == [2500]


def test_a_row_does_not_depend_on_its_batch(team: int) -> None:
    chance = random.Random(11)
    rows = choices(*(random_row(chance) for _ in range(13)))
    logits = random_logits(13, 9000, 2, torch.bfloat16)
    together = native().forward(logits, rows, NO_EDITS)
    alone = [native().forward(logits[row : row + 1], rows[row : row + 1], NO_EDITS) for row in range(13)]
    assert together.tolist() == torch.cat(alone).tolist()


def test_rows_may_be_part_of_wider_ones(team: int) -> None:
    chance = random.Random(3)
    rows = choices(*(random_row(chance) for _ in range(5)))
    wide = random_logits(5, 4000, 8, torch.bfloat16)
    wide[:, 3500:] = float("nan")
    check(wide[:, :3500], rows)
    check(wide[:, :3500].t().contiguous().t(), rows)


def test_draws_follow_the_distribution(device: Device) -> None:
    """Chi-square over 20 000 draws at p = 0.0001; the plain path is not asked."""
    logits = torch.randn(1, 30, generator=torch.Generator().manual_seed(1))
    share = (logits[0] / 0.8).softmax(-1)
    rows = choices(*({"temperature": 0.8, "seed": seed} for seed in range(20_000)))
    counts = torch.bincount(native().forward(logits.expand(20_000, -1).contiguous(), rows, NO_EDITS), minlength=30)
    assert float(((counts - share * 20_000) ** 2 / (share * 20_000)).sum()) < 66.2


@DTYPES
def test_descriptions_are_those_of_the_plain_path(dtype: torch.dtype, team: int) -> None:
    kernel = NativeDescribe(PLAIN.describe, PLAIN.describe.spec())
    chance = random.Random(str(dtype))
    for vocabulary in VOCABULARIES:
        logits = random_logits(12, vocabulary, 4, dtype)
        logits[7, -1] = float("inf")
        rows = torch.tensor([0, 3, 4, 5, 11, 8, 9, 7])
        tokens = torch.tensor([chance.randrange(vocabulary) for _ in logits])
        tokens[9] = NOT_FINITE
        for most in (0, 1, 5, 200, vocabulary):
            found = kernel.forward(logits, rows, tokens, most).numpy()
            expected = PLAIN.describe.reference(logits, rows, tokens, most).numpy()
            assert found[:, -1, 2].tolist() == expected[:, -1, 2].tolist() == [1] * 6 + [0] * 2
            entries = told(found[:6])
            np.testing.assert_array_equal(entries, told(expected[:6]))
            exact = logits[rows[:6]].double().log_softmax(-1).gather(-1, torch.from_numpy(entries[..., 0]).long())
            np.testing.assert_allclose(entries[..., 1], exact, rtol=2e-7, atol=2e-6)
