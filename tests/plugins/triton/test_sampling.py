"""The sampler on the device against the plain one: the same tokens, whatever is asked for."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lsv.offers import load_object
from lsv_runtime.nn import sample_ops
from lsv_runtime.nn.sampling import CHOICE, EDIT, NO_TOKEN_LEFT, NOT_FINITE, WHOLE, Choices, Edits, Kind, Sampling, told
from lsv_runtime.ops import bind
from lsv_triton import plugin

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NO_EDITS: Edits = np.empty(0, EDIT)
PLAIN = Sampling()

TEMPERATURES = (0.0, 1e-300, 0.01, 0.7, 1.0, 1.3, 100.0)
TOP_K = (0, 1, 2, 3, 50, 200, 5000, 100_000)
TOP_P = (1.0, 1e-12, 0.1, 0.5, 0.9, 0.999, 1 - 1e-9)
MIN_P = (0.0, 1e-9, 0.02, 0.333, 0.9, 1.0)

Row = dict[str, Any]


def kernel() -> Any:
    from lsv_triton.sampling.ops import DeviceChoose

    return DeviceChoose(PLAIN.choose, PLAIN.choose.spec())


def choices(rows: Sequence[Row]) -> Choices:
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


def random_rows(chance: random.Random, count: int) -> list[Row]:
    """Half of the rows ask for one filter at most: together they leave few tokens to tell apart."""
    fields: dict[str, Sequence[float]] = {"top_k": TOP_K, "top_p": TOP_P, "min_p": MIN_P}
    rows: list[Row] = []
    for _ in range(count):
        names = chance.sample(sorted(fields), chance.choice([0, 1, 1, 2, 3]))
        row: Row = {"temperature": chance.choice(TEMPERATURES), **{name: chance.choice(fields[name]) for name in names}}
        rows.append(row | {"seed": chance.getrandbits(64), "position": chance.randrange(100_000)})
    return rows


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


def check(logits: torch.Tensor, rows: Choices, edits: Edits = NO_EDITS) -> list[int]:
    expected = PLAIN.choose.reference(logits.cpu(), rows, edits)
    before = logits.clone()
    found = kernel().forward(logits, rows, edits)
    assert (found.dtype, found.device) == (torch.int64, logits.device)
    assert found.tolist() == expected.tolist()
    assert torch.equal(logits.nan_to_num(9e9), before.nan_to_num(9e9))
    return [int(token) for token in found]


@pytest.mark.parametrize("platform", plugin.PLATFORMS)
def test_both_ops_are_bound(platform: str) -> None:
    offers = list(plugin.lsv_kernels())
    lines = bind(Sampling(20, torch.bfloat16), offers, platform, lambda offer: load_object(offer.load))
    assert [(line.op, line.implementation) for line in lines] == [
        ("sample", "lsv_triton.sampling.ops:DeviceChoose"),
        ("logprobs", "lsv_triton.sampling.ops:DeviceDescribe"),
    ]


@pytest.mark.parametrize(("dtype", "vocabulary"), [*zip(DTYPES, (1100, 37, 2500), strict=True)], ids=str)
def test_random_rows_get_the_plain_path_s_tokens(dtype: torch.dtype, vocabulary: int, device: torch.device) -> None:
    chance = random.Random(f"{dtype} {vocabulary}")
    check(random_logits(14, vocabulary, 14, dtype).to(device), choices(random_rows(chance, 14)))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocabulary", [1, 5, 17, 1024, 3000, 20_011])
def test_many_random_rows(dtype: torch.dtype, vocabulary: int, device: torch.device) -> None:
    chance = random.Random(f"{dtype} {vocabulary}")
    for rows in (1, 2, 7, 40):
        check(random_logits(rows, vocabulary, rows, dtype).to(device), choices(random_rows(chance, rows)))


@pytest.mark.slow
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_all_filters_together(temperature: float, device: torch.device) -> None:
    rows = [
        {"temperature": temperature, "top_k": k, "top_p": p, "min_p": q, "seed": place, "position": 3}
        for place, (k, p, q) in enumerate(itertools.product(TOP_K[::2], TOP_P[::2], MIN_P[::2]))
    ]
    check(random_logits(len(rows), 700, 8, torch.float32).to(device), choices(rows))


def edited_rows(chance: random.Random, count: int, vocabulary: int) -> tuple[Choices, Edits]:
    rows = choices(random_rows(chance, count))
    rows["only"] = [chance.random() < 0.4 for _ in range(count)]
    edits = [random_edits(chance, vocabulary, bool(one["only"])) for one in rows]
    rows["edits"] = [len(some) for some in edits]
    return rows, np.array([*itertools.chain(*edits)], EDIT)


@pytest.mark.parametrize(("dtype", "vocabulary"), [*zip(DTYPES, (600, 1500, 5), strict=True)], ids=str)
def test_edited_rows_get_the_plain_path_s_tokens(dtype: torch.dtype, vocabulary: int, device: torch.device) -> None:
    rows, edits = edited_rows(random.Random(str(dtype)), 11, vocabulary)
    check(random_logits(11, vocabulary, 3, dtype).to(device), rows, edits)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_many_edited_rows(seed: int, device: torch.device) -> None:
    rows, edits = edited_rows(random.Random(seed), 40, 5000)
    check(random_logits(40, 5000, seed, DTYPES[seed % 3]).to(device), rows, edits)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_rows_that_are_not_finite_fail_alone(value: float, device: torch.device) -> None:
    rows = choices(random_rows(random.Random(7), 5))
    for dtype, vocabulary, place in zip(DTYPES, (1400, 1400, 3), (1024, 1399, 0), strict=True):
        logits = random_logits(5, vocabulary, 5, dtype)
        logits[[0, 4], place] = value
        tokens = check(logits.to(device), rows)
        assert [row for row, token in enumerate(tokens) if token == NOT_FINITE] == [0, 4]


def test_a_row_that_is_not_finite_fails_even_where_edits_would_mend_it(device: torch.device) -> None:
    rows = choices([{"edits": 1}, {"edits": 1, "temperature": 1.0}])
    edits = np.array([(1, Kind.FORBID, 0.0, 0.0)] * 2, EDIT)
    logits = torch.tensor([[0.0, float("inf"), 1.0], [0.0, 3.0, 1.0]], device=device)
    assert check(logits, rows, edits)[0] == NOT_FINITE


def test_a_row_whose_tokens_are_all_forbidden_fails_alone(device: torch.device) -> None:
    rows = choices([{"only": 1}, {"temperature": 1.0}, {"edits": 3, "temperature": 1.0}])
    edits = np.array([(token, Kind.FORBID, 0.0, 0.0) for token in range(3)], EDIT)
    tokens = check(torch.randn(3, 3).to(device), rows, edits)
    assert tokens[::2] == [NO_TOKEN_LEFT] * 2
    assert tokens[1] >= 0


def test_the_lowest_number_is_as_good_as_forbidden(device: torch.device) -> None:
    """So logits processors hand on what they have forbidden: an infinity would fail the row."""
    chance = random.Random(19)
    rows = choices(random_rows(chance, 8))
    logits = random_logits(8, 1100, 6, torch.float32)
    tokens = [chance.sample(range(1100), 900) for _ in rows]
    edits = np.array([(token, Kind.FORBID, 0.0, 0.0) for some in tokens for token in some], EDIT)
    edited = rows.copy()
    edited["edits"] = 900
    expected = check(logits.to(device), edited, edits)
    for row, some in zip(logits, tokens, strict=True):
        row[some] = torch.finfo(torch.float32).min
    assert check(logits.to(device), rows) == expected


def test_ties_go_to_the_lowest_id(device: torch.device) -> None:
    logits = torch.full((3, 3000), -7.0)
    logits[0, [2999, 1024, 1025]] = 3.0
    logits[1, [1500, 2500]] = torch.tensor([-0.0, 0.0])
    assert check(logits.to(device), choices([{}, {}, {}])) == [1024, 1500, 0]


def test_equal_logits_are_drawn_by_their_place(device: torch.device) -> None:
    """All weights are equal, so the fraction drawn is the token's place; no filter can tell them apart."""
    row = {"temperature": 1.0, "seed": 5, "position": 9}
    filtered = ({"top_k": 3}, {"top_p": 0.3}, {"min_p": 1.0})
    logits = torch.full((4, 3000), 2.5, device=device)
    assert len(set(check(logits, choices([row, *(row | one for one in filtered)])))) == 1


def test_top_k_tells_apart_what_a_high_temperature_does_not(device: torch.device) -> None:
    logits = torch.zeros(1, 3000, device=device)
    logits[0, 2500] = 1e-6
    assert check(logits, choices([{"temperature": 100.0, "top_k": 1, "seed": 1}])) == [2500]


def test_a_row_does_not_depend_on_its_batch(device: torch.device) -> None:
    rows = choices(random_rows(random.Random(11), 6))
    logits = random_logits(6, 1300, 2, torch.bfloat16).to(device)
    together = kernel().forward(logits, rows, NO_EDITS)
    alone = [kernel().forward(logits[row : row + 1], rows[row : row + 1], NO_EDITS) for row in range(6)]
    assert together.tolist() == torch.cat(alone).tolist()


def test_a_batch_of_no_rows_has_no_tokens(device: torch.device) -> None:
    assert check(torch.empty(0, 7, device=device), choices([])) == []


def test_rows_may_be_part_of_wider_ones(device: torch.device) -> None:
    rows, edits = edited_rows(random.Random(3), 4, 1200)
    wide = random_logits(4, 1400, 8, torch.bfloat16).to(device)
    wide[:, 1200:] = float("nan")
    check(wide[:, :1200], rows, edits)
    check(wide[:, :1200].t().contiguous().t(), rows, edits)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_descriptions_are_those_of_the_plain_path(dtype: torch.dtype, device: torch.device) -> None:
    from lsv_triton.sampling.ops import DeviceDescribe

    described = DeviceDescribe(PLAIN.describe, PLAIN.describe.spec())
    chance = random.Random(str(dtype))
    for vocabulary, counts in ((1, (0, 1)), (17, (5, 17)), (2100, (0, 20, 2100))):
        logits = random_logits(7, vocabulary, 4, dtype)
        logits[6, 0] = float("nan")
        rows = torch.tensor([0, 3, 5, 1, 2, 6])
        tokens = torch.tensor([chance.randrange(vocabulary) for _ in logits])
        tokens[2] = NOT_FINITE
        for most in counts:
            found = described.forward(logits.to(device), rows.to(device), tokens.to(device), most)
            expected = PLAIN.describe.reference(logits, rows, tokens, most).numpy()
            assert (found.dtype, found.device.type) == (torch.int64, device.type)
            assert found[:, -1, 2].tolist() == expected[:, -1, 2].tolist() == [1, 1, 1, 1, 0, 0]
            np.testing.assert_array_equal(told(found.cpu().numpy()[:4]), told(expected[:4]))


@pytest.mark.parametrize("room", [64, 4096])
def test_what_a_list_has_no_room_for_is_found_in_the_row(
    room: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lsv_triton import device_table
    from lsv_triton.sampling.ops import DeviceDescribe

    sizes = {"tokens": 512, "room": room}
    monkeypatch.setattr(device_table, "_TABLE", device_table._TABLE | {"draw": {"default": device_table.Launch(sizes)}})
    device_table.launch.cache_clear()
    logits = random_logits(8, 1500, 3, torch.float32).to(device)
    filters = ({"top_p": 0.97}, {"top_k": 700}, {"top_k": 900, "top_p": 0.9, "min_p": 1e-4}, {"min_p": 1e-6}) * 2
    try:
        check(logits, choices([{"temperature": 1.1, "seed": place, **one} for place, one in enumerate(filters)]))
        flat = torch.zeros(2, 1500)
        found = DeviceDescribe(PLAIN.describe, PLAIN.describe.spec()).forward(
            flat.to(device), torch.arange(2, device=device), torch.tensor([7, 1499], device=device), 3
        )
        expected = PLAIN.describe.reference(flat, torch.arange(2), torch.tensor([7, 1499]), 3)
        np.testing.assert_array_equal(told(found.cpu().numpy()), told(expected.numpy()))
    finally:
        device_table.launch.cache_clear()


class Launches:
    """In the place of the module of kernels: remembers launches, and makes none."""

    def __init__(self) -> None:
        self.made: list[tuple[str, tuple[int, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        from lsv_triton.sampling import kernels

        if name.isupper():
            return getattr(kernels, name)
        made = self.made

        class Kernel:
            def __getitem__(self, grid: tuple[int, ...]) -> Any:
                made.append((name, grid))
                return lambda *args, **named: None

        return Kernel()


class Allocations(TorchDispatchMode):
    """Bytes of the tensors that are made without a value."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.empty.memory_format:
            self.bytes.append(found.nbytes)
        return found


@pytest.mark.parametrize("rows", [1, 32, 256])
def test_launches_and_memory_do_not_grow_with_rows_that_do_not_draw(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from lsv_triton.sampling import ops

    vocabulary, room = 20_000, 256
    logits = torch.zeros(rows, vocabulary)

    def launch(drawn: int) -> tuple[list[tuple[str, tuple[int, ...]]], list[int]]:
        launches = Launches()
        monkeypatch.setattr(ops, "kernels", launches)
        asked = choices([{"temperature": float(row < drawn)} for row in range(rows)])
        with Allocations() as allocations:
            kernel().forward(logits, asked, NO_EDITS)
        return launches.made, allocations.bytes

    greedy, small = launch(0)
    chunks = greedy[0][1][1]
    assert greedy == [("survey", (rows, chunks)), ("find_best", (rows,))]
    assert chunks > 1
    assert len(small) <= 3
    assert sum(small) < rows * vocabulary, "there is no room for candidates"
    for drawn in {1, rows}:
        made, allocated = launch(drawn)
        assert made == [*greedy, ("list_candidates", (rows, chunks)), ("draw", (rows,))]
        assert len(allocated) <= 7
        assert sum(allocated) - sum(small) <= drawn * (8 * room + 8 * chunks + 64)
