"""The router: prompts stay where they are cached, unless that replica is too busy."""

from __future__ import annotations

from collections import Counter

from lsv.engine.replicas.router import Load, Router


def test_equals_take_turns():
    router, idle = Router(), {0: Load(), 1: Load(), 2: Load()}
    assert [router.choose(idle) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_one_that_was_away_does_not_get_all_turns_it_missed():
    router = Router()
    for _ in range(10):
        router.choose({0: Load(), 1: Load()})
    chosen = [router.choose({0: Load(), 1: Load(), 2: Load()}) for _ in range(9)]
    assert Counter(chosen) == {0: 3, 1: 3, 2: 3}


def test_the_shortest_queue_is_chosen():
    assert Router().choose({0: Load(depth=3), 1: Load(depth=1), 2: Load(depth=2)}) == 1


def test_the_one_that_has_the_prompt_is_chosen_although_it_is_busier():
    assert Router().choose({0: Load(depth=1), 1: Load(held=1024, depth=4)}) == 1


def test_a_queue_that_takes_longer_than_computing_anew_is_left():
    assert Router().choose({0: Load(depth=1), 1: Load(held=1024, depth=20)}) == 0
    assert Router().choose({0: Load(), 1: Load(held=1024, owed=4000)}) == 0


def test_prompts_that_are_not_computed_yet_count():
    assert Router().choose({0: Load(owed=2000, depth=1), 1: Load(owed=10, depth=1)}) == 1
