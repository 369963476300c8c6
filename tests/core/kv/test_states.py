"""State groups: which borders get a checkpoint, who goes on from one, and which are given up."""

from __future__ import annotations

import pytest

from lsv.kv.manager import KVManager
from lsv.kv.spec import STATE_WINDOW, Cohort, KVGroup, KVSpec, blocks_for, find_cohorts, group_specs
from lsv.kv.table import Table
from lsv.request.params import SamplingParams
from lsv_testing.fakes.requests import make_request

SIZE = 4
STATE = KVGroup(0, "state", (0,), 0, window=STATE_WINDOW, state_bytes=64)


def manager(*, blocks: int = 32, prefix_caching: bool = True) -> KVManager:
    return KVManager((STATE,), blocks, SIZE, root=b"root", prefix_caching=prefix_caching)


def open_table(kv: KVManager, id: int, tokens: list[int]) -> Table:
    table = kv.open(make_request(id, tuple(tokens), sampling=SamplingParams()))
    kv.allocate(table, kv.match(table, len(tokens) - 1), len(tokens), 0)
    return table


def compute(kv: KVManager, id: int, tokens: list[int], *chunks: int) -> Table:
    """A request whose prompt has been computed, in chunks that end at these tokens."""
    table = open_table(kv, id, tokens)
    for end in (*chunks, len(tokens)):
        assert kv.grow(table, end)
        kv.settle(table, end)
        kv.check([table])
    return table


def hit(kv: KVManager, tokens: list[int]) -> int:
    return kv.match(kv.open(make_request(99, tuple(tokens), sampling=SamplingParams())), len(tokens) - 1).tokens


def test_a_chunk_keeps_its_end_and_its_last_border():
    kv = manager()
    table = open_table(kv, 1, list(range(30)))
    assert kv.grow(table, 18)
    assert [bool(block) for block in table.blocks[0]] == [False, False, False, True, True]
    kv.settle(table, 18)
    assert kv.grow(table, 30)
    assert [bool(block) for block in table.blocks[0]] == [False, False, False, False, True, False, True, True]


def test_a_request_goes_on_from_the_last_checkpoint_of_its_prefix():
    kv = manager()
    compute(kv, 1, list(range(30)), 18)
    assert hit(kv, list(range(40))) == 28
    assert hit(kv, [*range(20), 99, 99, 99, 99]) == 20, "the second chunk passes the border of the block it begins in"
    assert hit(kv, [*range(18), 99, 99, 99, 99]) == 16
    assert hit(kv, [*range(14), 99, 99, 99, 99]) == 0


def test_the_same_prompt_hits_even_where_it_ends_at_a_border():
    kv = manager()
    compute(kv, 1, list(range(16)))
    assert hit(kv, list(range(16))) == 12
    assert hit(kv, list(range(20))) == 16


def test_where_prompts_part_gets_a_checkpoint_from_the_second_coming_on():
    kv = manager()
    shared = list(range(10))
    kv.release([compute(kv, 1, [*shared, *range(50, 60)])])
    assert hit(kv, [*shared, *range(60, 70)]) == 0
    compute(kv, 2, [*shared, *range(60, 70)])
    assert hit(kv, [*shared, *range(70, 80)]) == 8


def test_others_wait_for_promised_checkpoints_alone():
    kv = manager()
    open_table(kv, 1, list(range(20)))
    same = kv.open(make_request(2, tuple(range(20)), sampling=SamplingParams()))
    assert kv.find_pending(same, kv.match(same, 19), 19) == same.hashes[3]
    other = kv.open(make_request(3, (*range(12), *range(50, 60)), sampling=SamplingParams()))
    assert kv.find_pending(other, kv.match(other, 21), 21) is None


def test_an_answer_holds_one_state_and_leaves_only_its_last_checkpoint():
    kv = manager()
    table = compute(kv, 1, list(range(10)))
    for end in range(11, 31):
        table.request.output.append(end - 1)
        assert kv.grow(table, end)
        kv.settle(table, end)
        kv.check([table])
        assert table.allocated <= 2
    assert hit(kv, list(range(40))) == 28
    kv.release([table])
    kv.check([])
    assert hit(kv, list(range(40))) == 28
    assert hit(kv, [*range(27), 99, 99]) == 8, "a checkpoint in the middle of an answer, or none behind the prompt"


def test_checkpoints_are_evicted_like_any_block():
    kv = manager(blocks=8)
    kv.release([compute(kv, 1, list(range(10)))])
    for id in range(2, 12):
        kv.release([compute(kv, id, [id * 100 + place for place in range(10)])])
    assert hit(kv, list(range(10))) == 0
    assert hit(kv, [1100 + place for place in range(10)]) == 8


def test_without_a_prefix_cache_only_the_end_is_kept():
    kv = manager(prefix_caching=False)
    table = open_table(kv, 1, list(range(30)))
    assert kv.grow(table, 18)
    assert sum(map(bool, table.blocks[0])) == 1


def test_a_request_holds_few_states_however_long_it_is():
    assert blocks_for(100_000, (STATE,), SIZE, 4096) == blocks_for(1000, (STATE,), SIZE, 4096) < 10
    assert blocks_for(5, (STATE,), SIZE, 4096) == 2


def drafts_of(kv: KVManager, table: Table, start: int, drafts: int) -> tuple[int, ...]:
    """Room for a row of one token and so many drafts."""
    assert kv.draft_states is not None
    assert kv.grow(table, start + 1 + drafts, drafts)
    taken = kv.draft_states.take(table, drafts)
    kv.check([table])
    return taken


def settle_drafts(kv: KVManager, table: Table, start: int, drafts: int, kept: int) -> None:
    assert kv.draft_states is not None
    table.request.output.extend(range(start, start + kept))
    kv.draft_states.settle(table, start + kept, 1 + drafts - kept)
    kv.settle(table, start + kept)
    kv.check([table])


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_the_state_behind_the_last_token_that_stands_takes_its_place(kept: int):
    kv = manager()
    table = compute(kv, 1, list(range(8)))
    taken = drafts_of(kv, table, 8, 2)
    ahead, left = table.blocks[0][2], kv.unreserved
    settle_drafts(kv, table, 8, 2, kept)
    standing = (*taken, ahead)[kept - 1]
    assert table.blocks[0][2] == standing
    assert table.kept_state == (None if standing == ahead else (2, (standing,)))
    assert kv.unreserved == left + 3, "two states, and the one before the row"


def test_a_state_at_a_border_is_where_checkpoints_are():
    kv = manager()
    table = compute(kv, 1, list(range(10)))
    drafts_of(kv, table, 10, 5)
    border = table.blocks[0][2]
    assert all(table.blocks[0][2:4]), "it may turn out to end in any of these blocks"
    settle_drafts(kv, table, 10, 5, 2)
    assert table.blocks[0][2] == border
    assert table.kept_state is None
    assert hit(kv, list(range(20))) == 12


def test_drafts_that_were_wrong_leave_no_checkpoint():
    kv = manager()
    table = compute(kv, 1, list(range(10)))
    drafts_of(kv, table, 10, 5)
    settle_drafts(kv, table, 10, 5, 1)
    assert hit(kv, list(range(20))) == 8


def test_who_leaves_gives_back_the_states_behind_its_drafts():
    kv = manager()
    table = compute(kv, 1, list(range(10)))
    drafts_of(kv, table, 10, 3)
    kv.release([table])
    kv.check([])
    assert kv.unreserved == kv.num_blocks


def test_pages_balance_states_and_tokens():
    tokens = [KVSpec(layer, "full", 100) for layer in range(4)]
    states = [KVSpec(layer, "state", 0, 1000, window=STATE_WINDOW) for layer in range(4, 10)]
    small, large = (group_specs([*tokens, *states], size) for size in (1, 16))
    assert [len(group.layers) for group in small] == [4, 1, 1, 1, 1, 1, 1]
    assert [len(group.layers) for group in large] == [3, 1, 6]
    assert find_cohorts(large) == (Cohort(0, 2), Cohort(2, 1, STATE_WINDOW, None, True))
