"""Stop strings are found wherever they lie, as by looking through all of the text at every character."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsv.text.stops import StopFinder, Stopped, StopStrings


def cut(text: str, sizes: list[int]) -> list[str]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(text[at : at + size])
        at += size
    return [*pieces, text[at:]]


def find(stops: list[str], pieces: list[str], *, include: bool = False, early: int = 0) -> tuple[str, str | None]:
    """The text that is shown and the stop string; the first ``early`` pieces may complete none."""
    finder, shown = StopFinder(StopStrings(stops), include=include), ""
    for number, piece in enumerate(pieces):
        found = finder.push(piece, early=number < early)
        if isinstance(found, Stopped):
            return shown + found.text, found.stop
        shown += found
    return shown + finder.flush(), None


def search(stops: list[str], text: str, early: int, include: bool) -> tuple[str, str | None]:
    """The same by brute force: ``early`` characters may complete none."""
    for end in range(early + 1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


texts = st.text("abc", max_size=30)
words = st.lists(st.text("abc", min_size=1, max_size=6), min_size=1, max_size=4)
cuts = st.lists(st.integers(0, 4), max_size=20)


@given(texts, words, cuts, st.booleans(), st.integers(0, 8))
@settings(max_examples=1000, deadline=None)
def test_found_as_by_brute_force(text: str, stops: list[str], sizes: list[int], include: bool, early: int):
    pieces = cut(text, sizes)
    passed = sum(map(len, pieces[:early]))
    assert find(stops, pieces, include=include, early=early) == search(stops, text, passed, include)


@given(texts, words, cuts)
@settings(max_examples=500, deadline=None)
def test_no_more_is_held_back_than_may_become_a_stop_string(text: str, stops: list[str], sizes: list[int]):
    finder, read, shown = StopFinder(StopStrings(stops)), "", ""
    for piece in cut(text, sizes):
        found = finder.push(piece)
        if isinstance(found, Stopped):
            return
        read, shown = read + piece, shown + found
        held = max(size for stop in stops for size in range(len(stop)) if read.endswith(stop[:size]))
        assert shown == read[: len(read) - held]


def test_text_is_held_no_longer_than_needed():
    finder = StopFinder(StopStrings(["\n\nUser:"]))
    assert finder.push("Hi\n") == "Hi"
    assert finder.push("there") == "\nthere"
    assert finder.flush() == ""
    assert finder.push("\n") == ""
    assert finder.flush() == "\n"


def test_one_that_begins_early_counts_when_it_is_complete_later():
    assert find(["two three"], ["one", " two", " three", " four"], early=2) == ("one ", "two three")
    assert find(["two three"], ["one", " two", " three", " four"], early=3) == ("one two three four", None)
    assert find(["aa"], ["a", "a", "a"], early=2) == ("a", "aa")


@pytest.mark.parametrize("others", [0, 63])
def test_work_is_linear_however_long_the_match(others: int):
    """Not by time: by the number of states that are looked at."""
    size = 2000
    stops = StopStrings(["a" * size + "!", *("ab" * (size // 2) + str(number) for number in range(others))])
    looked = 0

    class Counted(list):
        def __getitem__(self, state):
            nonlocal looked
            looked += 1
            return super().__getitem__(state)

    stops._next = Counted(stops._next)
    finder, text = StopFinder(stops), ("a" * 16 * 100 + "ab" * 8 * 100) * 2
    for at in range(0, len(text), 16):
        assert isinstance(finder.push(text[at : at + 16]), str)
    assert looked <= 4 * len(text)
