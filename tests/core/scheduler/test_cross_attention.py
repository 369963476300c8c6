"""Requests that cross-attend to an item: its blocks in the cache, and when it is encoded and written to them."""

from __future__ import annotations

import hashlib
import random

import pytest

from lsv.kv.manager import KVManager
from lsv.kv.spec import KVGroup, KVSpec, blocks_for, group_specs, longest_length
from lsv.kv.table import Table
from lsv.request.media import Media
from lsv.request.params import SamplingParams
from lsv.request.request import Request
from lsv.scheduler.limits import Limits
from lsv.scheduler.policy import Priority
from lsv_base.errors import BadRequest
from lsv_testing.fakes.requests import make_request
from lsv_testing.fakes.rig import Rig
from lsv_testing.fakes.tokens import expected_output

SIZE, CROSS_LEN, PARTS = 4, 10, 3
ITEM_BLOCKS = 3
FULL = KVGroup(0, "full", (0,), 1)
CROSS = KVGroup(1, "cross", (1,), 1, cross_len=CROSS_LEN)


def sound(name: str, count: int = CROSS_LEN) -> Media:
    return Media(hashlib.sha256(name.encode()).digest(), "audio", 0, count, cross=True)


def manager(blocks: int = 32, *, prefix_caching: bool = True) -> KVManager:
    return KVManager((FULL, CROSS), blocks, SIZE, root=b"root", prefix_caching=prefix_caching)


def request(id: int, *media: Media, prompt: int = 6, salt: bytes = b"") -> Request:
    return make_request(id, tuple(range(prompt)), sampling=SamplingParams(), media=media, salt=salt)


def allocate(kv: KVManager, asked: Request) -> Table:
    """A table with blocks for the whole prompt, of which nothing has been computed."""
    table = kv.open(asked)
    kv.allocate(table, kv.match(table, len(asked) - 1), len(asked), 0)
    assert kv.grow(table, len(asked))
    return table


def test_an_item_takes_its_blocks_whatever_the_length() -> None:
    assert blocks_for(1000, (FULL, CROSS), SIZE, 8) == 250 + ITEM_BLOCKS
    assert longest_length(250 + ITEM_BLOCKS, (FULL, CROSS), SIZE, 8) == 1000
    kv = manager()
    table = allocate(kv, request(1, sound("a", 5)))
    assert [len(blocks) for blocks in (*table.blocks, *table.cross)] == [2, 2]
    assert kv.grow(table, 40)
    assert [len(blocks) for blocks in (*table.blocks, *table.cross)] == [10, 2]
    kv.check([table])


def test_cross_groups_come_last() -> None:
    specs = [
        KVSpec(0, "cross", 8, cross_len=9),
        KVSpec(1, "full", 8),
        KVSpec(2, "cross", 8, cross_len=9),
        KVSpec(3, "full", 8),
    ]
    assert group_specs(specs) == (
        KVGroup(0, "full", (1, 3), 8),
        KVGroup(1, "cross", (0, 2), 8, cross_len=9),
    )


def test_the_same_item_is_shared_once_it_stands() -> None:
    kv = manager()
    first = allocate(kv, request(1, sound("a")))
    table = kv.open(request(2, sound("a")))
    match = kv.match(table, 5)
    assert match.cross == ()
    pending = kv.find_pending(table, match, 5)
    assert pending == first.cross_hashes[0]
    kv.pending.park(pending, 2)
    kv.settle(first, 1)
    assert kv.pending.take_unparked() == [2]
    match = kv.match(table, 5)
    assert match.cross == tuple(first.cross)
    assert kv.in_use(match) == ITEM_BLOCKS
    kv.allocate(table, match, 6, 0)
    assert table.cross_ready
    kv.check([first, table])
    kv.release([first])
    kv.check([table])


def test_who_waits_for_an_item_is_unparked_when_its_owner_gives_up() -> None:
    kv = manager()
    first, table = allocate(kv, request(1, sound("a"))), kv.open(request(2, sound("a")))
    kv.pending.park(kv.find_pending(table, kv.match(table, 5), 5), 2)
    kv.release([first])
    assert kv.pending.take_unparked() == [2]
    assert kv.match(table, 5).cross == ()


def test_an_item_of_which_a_block_is_gone_is_computed_anew() -> None:
    kv = manager(blocks=8)
    first = allocate(kv, request(1, sound("a"), prompt=4))  # four blocks
    kv.settle(first, 4)
    kv.release([first])
    other, filler = kv.open(request(2, sound("a"))), kv.open(request(3, sound("b")))
    assert len(kv.match(other, 5).cross[0]) == ITEM_BLOCKS
    assert kv.grow(filler, 5 * SIZE)
    assert kv.match(other, 5).cross == ()
    kv.release([filler])
    kv.allocate(other, kv.match(other, 5), 6, 0)
    kv.settle(other, 1)
    assert kv.match(kv.open(request(4, sound("a"))), 5).cross != ()
    kv.check([other])


@pytest.mark.parametrize(("other", "salt"), [("b", b""), ("a", b"tenant")])
def test_neither_items_nor_tokens_are_shared_with_others(other: str, salt: bytes) -> None:
    kv = manager()
    first = allocate(kv, request(1, sound("a"), prompt=9))
    kv.settle(first, 9)
    match = kv.match(kv.open(request(2, sound(other), prompt=9, salt=salt)), 8)
    assert (match.tokens, match.cross) == (0, ())
    same = kv.match(kv.open(request(3, sound("a"), prompt=9)), 8)
    assert (same.tokens, same.cross) == (8, tuple(first.cross))


# The scheduler


def limits(**changes: object) -> Limits:
    fields = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "max_model_len": 64,
        "encoder_tokens": 2 * CROSS_LEN,
        "encoder_parts": PARTS,
        **changes,
    }
    return Limits(**fields)


def make_rig(*, changes: dict[str, object] | None = None, **options: object) -> Rig:
    return Rig(groups=(FULL, CROSS), limits=limits(**(changes or {})), **options)


def ask(rig: Rig, id: int, *media: Media, prompt: int = 6, output: int = 4, priority: int = 0) -> Request:
    sampling = SamplingParams(temperature=0.0, max_tokens=output)
    asked = make_request(id, tuple(range(1, prompt + 1)), sampling=sampling, media=media, priority=priority)
    return rig.add(asked)


def pieces(rig: Rig) -> list[tuple[int, int]]:
    return [(piece.first, piece.last) for plan in rig.plans for piece in plan.encode]


def test_it_is_encoded_and_written_in_the_step_of_the_first_row() -> None:
    rig = make_rig()
    asked = ask(rig, 0, sound("a"))
    rig.run()
    assert pieces(rig) == [(0, PARTS)]
    assert rig.plans[0].rows.count == (6,)
    assert [grown.blocks for grown in rig.plans[0].blocks if grown.group == 1] == [(1, 2, 3)]
    assert rig.tokens(0) == expected_output(asked, rig.scheduler.longest)


def test_beside_decoding_one_part_at_a_time_and_no_row_before_the_last() -> None:
    rig = make_rig()
    ask(rig, 0, sound("a"), output=12)
    rig.step()
    ask(rig, 1, sound("b"))
    rig.run()
    assert pieces(rig) == [(0, PARTS), (0, 1), (1, 2), (2, 3)]
    encoding = [plan for plan in rig.plans[1:] if plan.encode]
    assert [plan.rows.count for plan in encoding] == [(1,), (1,), (1, 6)]


@pytest.mark.parametrize("later", [False, True])
def test_the_same_sound_is_encoded_and_kept_once(later: bool) -> None:
    rig = make_rig()
    for id in range(3):
        ask(rig, id, sound("a"), prompt=5 + id)
        if later:
            rig.run()
    rig.run()
    assert pieces(rig) == [(0, PARTS)]
    assert len(rig.news) == 3


def test_without_prefix_caching_it_is_encoded_once_and_written_for_each() -> None:
    rig = make_rig(prefix_caching=False)
    for id in range(2):
        ask(rig, id, sound("a"))
    rig.run()
    assert pieces(rig) == [(0, PARTS), (PARTS, PARTS)]


@pytest.mark.parametrize("caching", [True, False])
def test_a_preempted_request_finds_it_or_encodes_it_again(caching: bool) -> None:
    rig = make_rig(num_blocks=12, prefix_caching=caching)
    asked = [ask(rig, id, sound(name), output=14) for id, name in enumerate("ab")]
    rig.run()
    assert rig.scheduler.preemptions > 0
    for one in asked:
        assert one.output == expected_output(one, rig.scheduler.longest)


@pytest.mark.parametrize("depth", [1, 2])
def test_aborting_in_the_middle_of_encoding_leaves_the_rest_to_others(depth: int) -> None:
    rig = make_rig(changes={"depth": depth})
    ask(rig, 0, sound("a"), output=20)
    rig.step()
    ask(rig, 1, sound("b"))
    rig.step()
    other = ask(rig, 2, sound("b"))
    rig.note(rig.scheduler.abort([1]))
    rig.run()
    assert pieces(rig) == [(0, PARTS), (0, 1), (1, 2), (2, 3)]
    assert other.output == expected_output(other, rig.scheduler.longest)
    assert rig.kv.usage == 0


def test_a_request_preempted_while_it_is_encoded_keeps_its_slot_until_that_has_settled() -> None:
    rig = make_rig(num_blocks=12, policy=Priority())
    ask(rig, 0, sound("a"), prompt=16, output=20)
    rig.step()
    ask(rig, 1, sound("b"), prompt=9, priority=1)
    rig.run()  # the worker of the rig fails on a piece for a slot that is free
    assert all(len(news) for news in rig.news.values())


@pytest.mark.parametrize(
    ("media", "why"),
    [
        ((), "expects exactly one media item next to its prompt, got 0"),
        ((sound("a"), sound("b")), "exactly one media item next to its prompt, got 2"),
        ((sound("a", CROSS_LEN + 1),), "the item has 11 embeddings, and the model attends to at most 10"),
    ],
)
def test_anything_but_one_item_is_refused(media: tuple[Media, ...], why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        ask(make_rig(), 0, *media)


def test_a_cross_item_is_refused_by_a_model_without_cross_attention() -> None:
    with pytest.raises(BadRequest, match="expects no media item next to its prompt, got 1"):
        ask(Rig(limits=limits()), 0, sound("a"))


@pytest.mark.parametrize("seed", range(8))
def test_random_tables_add_up(seed: int) -> None:
    """Entering, growing, settling and leaving in any order: blocks add up, and what is found is what was kept."""
    rng = random.Random(seed)
    kv = manager(blocks=24, prefix_caching=seed % 4 != 3)
    tables: list[Table] = []
    kept: dict[int, bytes] = {}
    for id in range(300):
        table = kv.open(
            request(id, sound(rng.choice("abcd"), rng.choice([3, 8, CROSS_LEN])), prompt=rng.randint(1, 20))
        )
        match = kv.match(table, len(table.request) - 1)
        found = match.cross[0] if match.cross else []
        assert all(kept.get(block) == name for block, name in zip(found, table.cross_hashes, strict=bool(found)))
        if kv.unreserved >= kv.blocks_for(len(table.request), 8) - kv.in_use(match):
            kv.allocate(table, match, len(table.request), 0)
            kept |= {block: b"" for block in table.cross[0] if not match.cross}
            tables.append(table)
            grown = kv.grow(table, len(table.request))
            kept |= dict.fromkeys(table.blocks[0][match.tokens // SIZE :], b"")
            if grown and rng.random() < 0.7:
                kept |= dict(zip(table.cross[0], table.cross_hashes, strict=True))
                kv.settle(table, len(table.request))
        while tables and rng.random() < 0.45:
            kv.release([tables.pop(rng.randrange(len(tables)))])
        kv.check(tables)
    kv.release(tables)
    assert kv.usage == 0
