"""Supervisors of engines that start and end together: threads, and no engine."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from lsv.engine.supervision.gang import Gang
from lsv_base.errors import ConfigError, EngineDied, LsvError

SOON = 20.0
BECAUSE = "replica {} is gone, with which this one shares experts: {}"


class Place:
    """A number."""

    numbers = count()

    def __init__(self) -> None:
        self.address, self.closed = str(next(self.numbers)), False

    def close(self) -> None:
        self.closed = True


def assemble(gang: Gang, size: int) -> list[str | None]:
    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(gang.assemble, range(size)))


def test_all_start_together_in_a_place_of_that_start() -> None:
    places: list[Place] = []

    def make_place() -> Place:
        places.append(Place())
        return places[-1]

    gang = Gang(2, make_place)
    assert gang.meeting == ""
    early = threading.Thread(target=gang.assemble, args=(1,))
    early.start()
    early.join(0.05)
    assert early.is_alive(), "one waits for the other"
    first = gang.assemble(0)
    early.join(SOON)
    assert first == gang.meeting == places[0].address
    assert assemble(gang, 2) == [gang.meeting] * 2 == [places[1].address] * 2
    assert [place.closed for place in places] == [True, False]
    gang.disband()
    assert places[1].closed


def test_one_that_is_elsewhere_is_called() -> None:
    gang, begun, fallen, over = Gang(2, Place), list[str](), list[LsvError](), list[LsvError]()
    gang.follow(over.append)

    def begin(meeting: str) -> None:
        begun.append(meeting)
        gang.enter(1, fallen.append)

    gang.expect(1, begin)
    gang.leave(1, EngineDied("its machine is lost"))  # and comes again
    gang.expect(1, begin)
    assert gang.assemble(0) == begun[0]
    gang.leave(0, EngineDied("it was killed"))
    assert [one.message for one in fallen] == [BECAUSE.format(0, "it was killed")]
    gang.leave(1, EngineDied("that follows"))
    gang.disband()
    gang.disband()
    assert over == fallen


def test_the_first_that_ends_is_what_all_end_of() -> None:
    gang, fallen = Gang(3, Place), dict[int, list[LsvError]]()
    assemble(gang, 3)
    for number in range(2):
        gang.enter(number, fallen.setdefault(number, []).append)
    gang.leave(1, EngineDied("it was killed"))
    gang.leave(0, EngineDied("that follows"))
    gang.enter(2, fallen.setdefault(2, []).append)  # it was about to start
    why = BECAUSE.format(1, "it was killed")
    assert {number: [one.message for one in errors] for number, errors in fallen.items()} == {0: [why], 1: [], 2: [why]}
    assemble(gang, 3)
    gang.enter(0, fallen[0].append)
    assert len(fallen[0]) == 1, "what was before is forgotten"
    gang.disband()


def test_what_keeps_one_from_starting_keeps_all() -> None:
    gang, fallen = Gang(2, Place), list[LsvError]()
    assemble(gang, 2)
    gang.enter(0, fallen.append)
    error = ConfigError("there is too little memory")
    gang.leave(1, error)
    assert fallen == [error]
    gang.disband()


def test_nobody_waits_for_one_that_has_given_up() -> None:
    gang, found = Gang(2, Place), list[str | None]()
    waiting = threading.Thread(target=lambda: found.append(gang.assemble(0)))
    waiting.start()
    gang.disband()
    waiting.join(SOON)
    assert found == [None]
    assert gang.assemble(0) is None
