"""Suffix lookup: it finds what followed in past answers, agrees with most of them, and forgets the oldest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lsv.config import Drafts
from lsv_base.errors import ConfigError
from lsv_drafters.suffix import Past, Pasts, SuffixDrafter, agree
from lsv_runtime.drafts.drafter import Draftable


def drafter(**options: Any) -> SuffixDrafter:
    return SuffixDrafter(Drafts(drafter="suffix", most=4, options=options))


def ask(
    asked: SuffixDrafter, ids: list[int], prompt: int = 1, most: int = 4, salt: bytes = b""
) -> tuple[list[int], dict[str, Any]]:
    memory: dict[str, Any] = {}
    return asked.propose([Draftable(memory, np.array(ids, np.int32), prompt, most, salt=salt)])[0], memory


def answer(asked: SuffixDrafter, ids: list[int], salt: bytes = b"") -> None:
    asked.end(ask(asked, ids, salt=salt)[1])


def test_answers_to_others_are_looked_through() -> None:
    asked = drafter()
    assert ask(asked, [9, 5, 6])[0] == []
    answer(asked, [1, 4, 5, 6, 7, 8, 9])
    assert ask(asked, [9, 5, 6])[0] == [7, 8, 9]
    assert ask(asked, [9, 5, 6], most=2)[0] == [7, 8]


def test_the_longest_run_wins_and_then_the_most_frequent() -> None:
    asked = drafter()
    for ids in ([3, 5, 6, 7, 7], [3, 5, 6, 8, 8], [3, 5, 6, 8, 9], [4, 3, 5, 6, 1, 1]):
        answer(asked, ids)
    assert ask(asked, [4, 3, 5, 6])[0] == [1, 1]
    assert ask(asked, [2, 3, 5, 6])[0][:1] == [8]


def test_unlikely_tokens_are_not_proposed() -> None:
    places = [([0, token], 1) for token in range(5)]
    assert agree(places, 3, 0.5) == []
    assert len(agree(places, 3, 0.2)) == 1


def test_a_sequence_knows_itself() -> None:
    assert ask(drafter(), [1, 2, 3, 4, 1, 2])[0] == [3, 4, 1, 2]


def test_the_oldest_answers_are_forgotten() -> None:
    past = Past(8, 100, 64)
    for _ in range(200):
        past.add(range(7))
        assert len(past) <= 64
    few = Past(8, 4, 1000)
    for _ in range(200):
        few.add(range(7))
        assert len(few) <= 4 * 8
    none = Past(8, 0, 1000)
    none.add(range(7))
    assert len(none) == 0


@pytest.mark.parametrize("value", ["many", -1, True])
def test_what_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="suffix_decoding_min_token_prob"):
        drafter(suffix_decoding_min_token_prob=value)


def test_answers_to_other_tenants_are_not_looked_through() -> None:
    asked = drafter()
    answer(asked, [1, 4, 5, 6, 7, 8, 9], salt=b"a")
    for other in (b"", b"b"):
        assert ask(asked, [9, 5, 6], salt=other)[0] == []
    answer(asked, [1, 4, 5, 6, 3], salt=b"b")
    assert ask(asked, [9, 5, 6], salt=b"a")[0] == [7, 8, 9]
    assert ask(asked, [9, 5, 6], salt=b"b")[0] == [3]


@pytest.mark.parametrize(("requests", "tokens"), [(10, 1000), (1000, 64)], ids=["answers", "tokens"])
def test_tenants_share_one_bound(requests: int, tokens: int) -> None:
    """A client that invents a salt for each request takes no more memory."""
    pasts = Pasts(8, requests, tokens)
    for number in range(200):
        pasts.add(b"%d" % number, range(7))
        assert len(pasts) <= min(tokens, 8 * requests)
    assert len(pasts) > 0
