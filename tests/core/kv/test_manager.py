"""Prefix hits, windows, eviction order and reservations."""

from __future__ import annotations

import pytest

from lsv.kv.manager import KVManager
from lsv.kv.spec import KVGroup, blocks_for, longest_length
from lsv.kv.table import Table
from lsv.request.params import SamplingParams
from lsv.request.request import Request
from lsv_testing.fakes.requests import make_request

FULL = KVGroup(0, "full", (0,), 1)
WINDOW = KVGroup(1, "window", (1,), 1, window=6)
SIZE = 4


def manager(*groups: KVGroup, blocks: int = 32, prefix_caching: bool = True) -> KVManager:
    return KVManager(groups or (FULL,), blocks, SIZE, root=b"root", prefix_caching=prefix_caching)


def request(id: int, prompt: range | tuple[int, ...], salt: bytes = b"") -> Request:
    return make_request(id, tuple(prompt), sampling=SamplingParams(), salt=salt)


def compute(kv: KVManager, asked: Request, reservation: int = 0) -> Table:
    """A table whose whole prompt has been computed."""
    table = kv.open(asked)
    kv.allocate(table, kv.match(table, len(asked) - 1), len(asked), reservation)
    assert kv.grow(table, len(asked))
    kv.settle(table, len(asked))
    return table


def hit(kv: KVManager, prompt: range | tuple[int, ...], salt: bytes = b"") -> int:
    return kv.match(kv.open(request(99, prompt, salt)), len(prompt) - 1).tokens


@pytest.mark.row("F-352")
def test_whole_blocks_of_a_common_prefix_are_found():
    kv = manager()
    compute(kv, request(1, range(10)))
    assert hit(kv, range(20)) == 8
    assert hit(kv, (0, 1, 2, 3, 9, 9, 9, 9, 9)) == 4
    assert hit(kv, range(1, 20)) == 0


def test_one_token_at_least_is_left_to_compute():
    kv = manager()
    compute(kv, request(1, range(8)))
    assert hit(kv, range(8)) == 4
    assert hit(kv, range(9)) == 8


def test_only_settled_blocks_are_found():
    kv = manager()
    table = kv.open(request(1, range(12)))
    kv.allocate(table, kv.match(table, 11), 12, 0)
    kv.grow(table, 12)
    assert hit(kv, range(12)) == 0
    kv.settle(table, 7)
    assert hit(kv, range(12)) == 4


@pytest.mark.row("F-354")
def test_tenants_do_not_share():
    kv = manager()
    compute(kv, request(1, range(12), b"a"))
    assert hit(kv, range(12), b"a") == 8
    assert hit(kv, range(12), b"b") == 0
    assert hit(kv, range(12)) == 0


@pytest.mark.row("F-253", "F-351")
def test_no_hits_without_prefix_caching():
    kv = manager(prefix_caching=False)
    compute(kv, request(1, range(12)))
    assert hit(kv, range(12)) == 0


def test_forgetting_spares_blocks_in_use():
    kv = manager()
    table = compute(kv, request(1, range(12)))
    kv.reset_prefix_cache()
    assert hit(kv, range(12)) == 0
    kv.check([table])


def test_blocks_behind_the_window_are_freed_and_indices_stay():
    kv = manager(WINDOW_ONLY)
    table = compute(kv, request(1, range(16)))
    # The token at 16 sees 11 … 16: blocks 0 and 1 are behind its window.
    assert [block == 0 for block in table.blocks[0]] == [True, True, False, False]
    assert kv.unreserved == 30
    kv.check([table])


WINDOW_ONLY = KVGroup(0, "window", (0,), 1, window=6)


def test_window_needs_only_its_last_blocks_for_a_hit():
    kv = manager(WINDOW_ONLY, blocks=4)
    kv.release([compute(kv, request(1, range(16)))])
    other = kv.open(request(2, range(50, 58)))
    kv.allocate(other, kv.match(other, 7), 8, 0)
    kv.grow(other, 8)  # evicts the first two blocks
    match = kv.match(kv.open(request(3, range(17))), 16)
    assert match.tokens == 16
    assert match.blocks[0][:2] == [0, 0]
    assert 0 not in match.blocks[0][2:]


def test_every_group_must_have_what_it_needs():
    kv = manager(FULL, WINDOW)
    tables = [compute(kv, request(1, range(24)))]
    assert hit(kv, range(25)) == 24
    # Blocks 0 … 3 of the window group have been freed; evict them by using up all free blocks.
    filler = kv.open(request(2, range(100, 104)))
    tables.append(filler)
    assert kv.grow(filler, 24 // 2 * SIZE)
    assert kv.unreserved <= 1
    assert hit(kv, range(25)) == 24
    assert hit(kv, (*range(12), 7, 7, 7, 7, 7)) == 0
    kv.check(tables)


@pytest.mark.row("F-1013", "F-353")
def test_end_of_the_longest_prefix_is_evicted_first_among_equals():
    kv = manager(blocks=8)
    short, long = compute(kv, request(1, range(100, 108))), compute(kv, request(2, range(24)))
    kv.release([short, long])
    table = kv.open(request(3, range(200, 220)))
    kv.grow(table, 16)
    assert hit(kv, range(25)) == 8
    assert hit(kv, range(100, 109)) == 8
    kv.grow(table, 20)
    assert hit(kv, range(25)) + hit(kv, range(100, 109)) == 12


@pytest.mark.row("F-1013", "F-353")
def test_least_recently_used_is_evicted_first():
    kv = manager(blocks=4)
    kv.release([compute(kv, request(1, range(8)))])
    kv.release([compute(kv, request(2, range(100, 108)))])
    kv.release([compute(kv, request(3, range(9)))])  # uses the first again; evicts one block of the second
    table = kv.open(request(4, range(200, 204)))
    kv.grow(table, 8)
    assert hit(kv, range(9)) == 8
    assert hit(kv, range(100, 109)) == 0


def test_growing_is_all_or_nothing():
    kv = manager(FULL, WINDOW, blocks=5)
    table = kv.open(request(1, range(12)))
    assert kv.grow(table, 8)
    assert not kv.grow(table, 12)
    assert (table.capacity, kv.unreserved) == (8, 1)
    kv.check([table])


def test_reserved_blocks_are_kept_available():
    kv = manager(blocks=6)
    reserved = compute(kv, request(1, range(4)), reservation=4)
    other = kv.open(request(2, range(50, 70)))
    assert kv.unreserved == 2
    assert not kv.grow(other, 12)
    assert kv.grow(other, 8)
    assert kv.grow(reserved, 16)
    kv.check([reserved, other])


def test_window_bounds_what_a_long_request_holds():
    assert blocks_for(1000, (FULL,), 4, 8) == 250
    assert blocks_for(1000, (WINDOW_ONLY,), 4, 8) == 5
    assert longest_length(250, (FULL,), 4, 8) == 1000
    assert longest_length(250, (FULL, WINDOW), 4, 8) == 980
