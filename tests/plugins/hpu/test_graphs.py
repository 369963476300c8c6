"""How memory is split, and which shapes get an HPU graph within it."""

from __future__ import annotations

from itertools import product

import pytest

from lsv.platform import Shape
from lsv_hpu.buckets.table import DECODE, PROMPT
from lsv_hpu.graphs import Stage, bucket, capture, in_order, size
from lsv_hpu.memory import GIB, split, written

PROMPTS = [Shape(PROMPT, rows, query, 0) for rows, query in product((1, 2, 4), range(128, 1025, 128))]
DECODES = [Shape(DECODE, rows, 1, blocks) for rows, blocks in product((1, 2, 4), range(128, 2049, 128))]


class Memory:
    """A device on which a graph takes ``per_unit`` bytes for each token or block of its shape."""

    def __init__(self, free: int, per_unit: int) -> None:
        self.free, self.per_unit = free, per_unit

    def run(self, shapes: object) -> list[Shape]:
        taken = []
        for _, shape in shapes:  # type: ignore[attr-defined]
            taken.append(shape)
            self.free -= size(shape) * self.per_unit
        return taken


def test_worked_numbers_of_the_documentation() -> None:
    parts = split(round(79.16 * GIB), 0.5, 0.4)
    assert [round(part / GIB, 2) for part in (parts.usable, parts.graphs, parts.kv, parts.margin)] == [
        39.58,
        15.83,
        23.75,
        39.58,
    ]
    assert parts.graphs + parts.kv + parts.margin == round(79.16 * GIB)
    assert split(50 * GIB, 0.9, 0.0).usable == 45 * GIB


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (round(79.16 * GIB), "79.16 GiB"),
        (round(4.755 * GIB), "4.755 GiB"),
        (round(161.9 * 2**20), "161.9 MiB"),
        (GIB, "1 GiB"),
        (0, "0 B"),
        (-3 << 20, "-3 MiB"),
    ],
)
def test_bytes_in_four_digits(count: int, text: str) -> None:
    assert written(count) == text


def test_orders() -> None:
    shapes = [Shape(PROMPT, rows, query, 0) for rows, query in product((1, 32, 64), (128, 256))]
    assert [bucket(shape) for shape in in_order(shapes, "max_bs")] == [
        (64, 128),
        (64, 256),
        (32, 128),
        (32, 256),
        (1, 128),
        (1, 256),
    ]
    ties = [Shape(PROMPT, 1, 1024, 0), Shape(PROMPT, 4, 256, 0), Shape(PROMPT, 2, 512, 0), Shape(PROMPT, 1, 128, 0)]
    assert [bucket(shape) for shape in in_order(ties, "min_tokens")] == [(1, 128), (4, 256), (2, 512), (1, 1024)]


def test_warm_up_runs_against_the_order_of_min_tokens() -> None:
    prompts = [bucket(shape) for shape in reversed(in_order(PROMPTS, "min_tokens"))]
    assert prompts[:3] == [(4, 1024), (4, 896), (4, 768)]
    assert prompts[-1] == (1, 128)
    decodes = [bucket(shape) for shape in reversed(in_order(DECODES, "min_tokens"))]
    assert decodes[-2:] == [(2, 128), (1, 128)]


def test_all_are_captured_where_memory_suffices() -> None:
    memory = Memory(100 * GIB, 1000)
    prompts, decodes = Stage("Graph/Prompt", PROMPTS, "min_tokens"), Stage("Graph/Decode", DECODES, "max_bs")
    taken = memory.run(capture(prompts, decodes, 10 * GIB, 0.3, lambda: memory.free))
    assert taken == in_order(PROMPTS, "min_tokens") + in_order(DECODES, "max_bs")
    assert decodes.report().startswith("Graph/Decode captured:48 (100.0%) used_mem:")
    assert "buckets:[(1, 128), (1, 256)," in decodes.report()


def test_prompts_go_on_with_what_decoding_leaves() -> None:
    """As in the documentation's log: prompts in their share, then all decoding rows, then more prompts."""
    memory = Memory(100 * GIB, 1 << 20)
    prompts, decodes = Stage("Graph/Prompt", PROMPTS, "min_tokens"), Stage("Graph/Decode", DECODES[:6], "max_bs")
    pool = 24 * GIB
    taken = memory.run(capture(prompts, decodes, pool, 0.3, lambda: memory.free))
    kinds = [shape.kind for shape in taken]
    first = kinds.index(DECODE)
    assert kinds[first : first + 6] == [DECODE] * 6
    assert kinds[first + 6 :]
    assert set(kinds[first + 6 :]) == {PROMPT}
    assert not decodes.pending
    assert prompts.pending
    assert prompts.used + decodes.used <= pool
    assert 0 < len(prompts.captured) < len(PROMPTS)
    assert f"captured:{len(prompts.captured)} ({100 * len(prompts.captured) / 24:.1f}%)" in prompts.report()


def test_decoding_goes_on_with_what_prompts_leave() -> None:
    memory = Memory(100 * GIB, 1 << 20)
    prompts, decodes = Stage("Graph/Prompt", PROMPTS[:2], "min_tokens"), Stage("Graph/Decode", DECODES, "max_bs")
    memory.run(capture(prompts, decodes, 24 * GIB, 0.9, lambda: memory.free))
    assert decodes.used > 0.1 * 24 * GIB
    assert prompts.used + decodes.used <= 24 * GIB


def test_without_memory_nothing_is_captured() -> None:
    prompts, decodes = Stage("p", PROMPTS, "min_tokens"), Stage("d", DECODES, "max_bs")
    assert list(capture(prompts, decodes, 0, 0.3, lambda: 0)) == []
    assert prompts.report() == "p captured:0 (0.0%) used_mem:0 B buckets:[]"


def test_the_first_pass_may_exceed_its_share() -> None:
    """The first of a stage is always tried: what it takes is not known before."""
    memory = Memory(100 * GIB, 64 << 20)
    prompts, decodes = Stage("p", PROMPTS[:1], "min_tokens"), Stage("d", [], "max_bs")
    memory.run(capture(prompts, decodes, 4 * GIB, 0.3, lambda: memory.free))
    assert prompts.used == 8 * GIB
