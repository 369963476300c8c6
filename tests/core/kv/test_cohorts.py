"""Groups that keep the same tokens share all work on a request's blocks; a waiting request is not looked up again."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator

import pytest

from lsv.kv.blocks import NULL_BLOCK, BlockPool
from lsv.kv.manager import KVManager
from lsv.kv.spec import Cohort, KVGroup, KVSpec, find_cohorts, group_specs
from lsv.kv.table import Table
from lsv.request.params import SamplingParams
from lsv.request.request import Request
from lsv_testing.fakes.requests import make_request

SIZE = 4
WINDOW = 9


def groups(full: int, window: int) -> tuple[KVGroup, ...]:
    """So many groups of each kind."""
    kinds = ["full"] * full + ["window"] * window
    return tuple(
        KVGroup(index, kind, (index,), 1, WINDOW if kind == "window" else None) for index, kind in enumerate(kinds)
    )


def manager(full: int, window: int, blocks: int = 60) -> KVManager:
    return KVManager(groups(full, window), blocks, SIZE, root=b"root")


def request(id: int, prompt: tuple[int, ...]) -> Request:
    return make_request(id, prompt, sampling=SamplingParams())


def compute(kv: KVManager, asked: Request) -> Table:
    table = kv.open(asked)
    kv.allocate(table, kv.match(table, len(asked) - 1), len(asked), 0)
    assert kv.grow(table, len(asked))
    kv.settle(table, len(asked))
    return table


def test_groups_of_a_cohort_keep_the_same_tokens_and_stand_together() -> None:
    specs = [
        KVSpec(0, "full", 8),
        KVSpec(1, "window", 8, window=5),
        KVSpec(2, "latent", 8),
        KVSpec(3, "window", 16, window=5),
        KVSpec(4, "window", 8, window=7),
        KVSpec(5, "cross", 8, cross_len=5),
    ]
    found = group_specs(specs)
    assert [group.layers for group in found] == [(0,), (2,), (1,), (3,), (4,), (5,)]
    assert [group.index for group in found] == list(range(6))
    assert find_cohorts(found) == (Cohort(0, 2), Cohort(2, 2, 5), Cohort(4, 1, 7), Cohort(5, 1, None, 5))


def test_a_bundle_is_evicted_as_a_whole() -> None:
    pool = BlockPool(7)
    first = pool.take(2, width=3)
    pool.publish(first[0], b"a")
    pool.unref(first[0])
    pool.unref(first[3])
    pool.check([])
    assert pool.available == 7
    assert sorted(pool.take(1, width=4)) == sorted([*first[3:], *({*range(1, 8)} - {*first})])
    assert pool.bundle(pool.find(b"a") or 0) == first[:3]
    assert pool.take(1) == [first[0]]
    assert pool.find(b"a") is None
    assert pool.available == 2


def test_the_groups_of_a_match_get_the_blocks_they_had() -> None:
    kv = manager(2, 3)
    table = kv.open(request(1, tuple(range(20))))
    assert kv.grow(table, 20)
    had = [list(blocks) for blocks in table.blocks]
    kv.settle(table, 20)
    kv.release([table])
    match = kv.match(kv.open(request(2, tuple(range(17)))), 16)
    assert match.tokens == 16
    assert match.blocks == (had[0][: 4 * 2], [NULL_BLOCK] * 2 * 3 + had[1][2 * 3 : 4 * 3])


@pytest.mark.parametrize(("full", "window"), [(1, 0), (2, 0), (1, 1), (3, 2), (0, 3)])
def test_work_does_not_grow_with_the_groups_of_a_cohort(full: int, window: int) -> None:
    def calls(times: int) -> int:
        kv = manager(full * times, window * times, blocks=2000)
        table = compute(kv, request(1, tuple(range(21))))
        table.take_grown()
        for length in range(22, 60):
            table.request.output.append(length)
        kv.settle(table, 22)

        def decode() -> None:
            for length in range(22, 50):
                assert kv.grow(table, length + 1)
                table.take_grown()
                kv.settle(table, length)

        return count_calls(decode)

    assert calls(8) <= calls(2)


def count_calls(action: Callable[[], None]) -> int:
    """Calls of functions in Python, and of builtins from there."""
    import sys

    calls = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


def populate(kv: KVManager, rng: random.Random, turns: int) -> Iterator[None]:
    """Requests with few prefixes come, grow and go; yields after every change."""
    tables: list[Table] = []
    for id in range(turns):
        choice = rng.random()
        if choice < 0.4 and kv.unreserved > 24:
            prompt = tuple(range(rng.randint(3, 30))) + (rng.randrange(3),) * rng.randint(0, 6)
            table = kv.open(request(id, prompt))
            match = kv.match(table, len(prompt) - 1)
            kv.allocate(table, match, len(prompt), 0)
            tables.append(table)
        elif choice < 0.8 and tables:
            table = rng.choice(tables)
            length = min(len(table.request), table.capacity + rng.randint(1, 9))
            if kv.grow(table, length):
                kv.settle(table, length)
        elif choice < 0.98 and tables:
            kv.release([tables.pop(rng.randrange(len(tables)))])
        elif choice > 0.995:
            kv.reset_prefix_cache()
        kv.check(tables)
        yield


@pytest.mark.parametrize(("full", "window"), [(1, 0), (2, 0), (1, 2), (2, 1), (0, 1)])
@pytest.mark.daily(seed=[0, 1])
@pytest.mark.parametrize("seed", range(6))
def test_what_a_waiting_request_finds_stays_true(full: int, window: int, seed: int) -> None:
    rng = random.Random(seed)
    kv = manager(full, window, blocks=rng.choice([40, 60]))
    waiting = kv.open(request(10_000, (*range(30), 1, 1, 2)))
    kept = 0
    for _ in populate(kv, rng, 400):
        for _ in range(rng.randint(0, 2)):
            seen = kv._pool.lookup
            match = kv.match(waiting, 32)
            kept += seen is not None and kv._pool.lookup is seen
            anew = copy.deepcopy(kv)
            anew._pool.lookup = None
            expected = anew.match(anew.open(request(10_001, waiting.request.prompt)), 32)
            assert match == expected
            assert kv.in_use(match) == anew.in_use(expected)
    assert kept > 20


@pytest.mark.parametrize(("full", "window"), [(1, 0), (1, 1)])
def test_a_waiting_request_costs_nothing_while_nothing_changes(
    full: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kv = manager(full, window, blocks=600)
    kv.release([compute(kv, request(1, tuple(range(1000))))])
    waiting = kv.open(request(2, tuple(range(1001))))
    first, second = kv.match(waiting, 1000), kv.match(waiting, 1000)
    assert first == second
    looked_up = []
    find = BlockPool.find
    monkeypatch.setattr(BlockPool, "find", lambda pool, key: looked_up.append(key) or find(pool, key))
    other = kv.open(request(3, (7, 7, 7, 7, 7)))
    assert kv.grow(other, 5)
    kv.settle(other, 5)
    assert kv.match(waiting, 1000) is second
    assert not looked_up


def test_a_prefix_that_loses_its_end_is_not_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kv = manager(1, 0, blocks=260)
    kv.release([compute(kv, request(1, tuple(range(1000))))])
    waiting = kv.open(request(2, tuple(range(1001))))
    assert [kv.match(waiting, 1000).tokens for _ in range(2)] == [1000, 1000]
    looked_up = []
    find = BlockPool.find
    taker = kv.open(request(3, (7,) * 60))
    assert kv.grow(taker, 60)
    monkeypatch.setattr(BlockPool, "find", lambda pool, key: looked_up.append(key) or find(pool, key))
    assert kv.match(waiting, 1000).tokens == 1000 - 5 * SIZE
    assert not looked_up


def test_a_long_salt_is_hashed_once() -> None:
    kv = manager(1, 0)
    asked = make_request(1, tuple(range(30)), sampling=SamplingParams(), salt=b"s" * 10_000)
    table = kv.open(asked)
    assert len(table.extras(0, SIZE)) < 64
    kv.release([compute(kv, asked)])
    assert kv.match(kv.open(asked), 29).tokens == 28
    other = make_request(2, tuple(range(30)), sampling=SamplingParams(), salt=b"s" * 9_999)
    assert kv.match(kv.open(other), 29).tokens == 0
