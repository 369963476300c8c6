"""Supervisors of engines that start and end together: threads, and no engine."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lsv.engine.supervision.gang import Gang
from lsv.errors import ConfigError, EngineDied, LsvError

SOON = 20.0


def prepare(folder: Path) -> None:
    (folder / "prepared").touch()


def assemble(gang: Gang, count: int) -> list[Path | None]:
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(lambda _: gang.assemble(), range(count)))


def test_all_start_together_in_a_folder_of_that_start() -> None:
    gang = Gang(2, prepare)
    early = threading.Thread(target=gang.assemble)
    early.start()
    early.join(0.05)
    assert early.is_alive(), "one waits for the other"
    first = gang.assemble()
    early.join(SOON)
    assert first is not None
    assert (first / "prepared").exists()
    second, other = assemble(gang, 2)
    assert second is not None
    assert second == other != first
    assert not first.exists()
    gang.disband()
    assert not second.exists()


def test_the_first_that_ends_is_what_all_end_of() -> None:
    gang, fallen = Gang(3, prepare), dict[int, list[LsvError]]()
    assemble(gang, 3)
    for number in range(2):
        gang.enter(number, fallen.setdefault(number, []).append)
    gang.leave(1, EngineDied("it was killed"))
    gang.leave(0, EngineDied("that follows"))
    gang.enter(2, fallen.setdefault(2, []).append)  # it was about to start
    why = "replica 1 is gone, with which this one shares experts: it was killed"
    assert {number: [one.message for one in errors] for number, errors in fallen.items()} == {0: [why], 1: [], 2: [why]}
    assemble(gang, 3)
    gang.enter(0, fallen[0].append)
    assert len(fallen[0]) == 1, "what was before is forgotten"
    gang.disband()


def test_what_keeps_one_from_starting_keeps_all() -> None:
    gang, fallen = Gang(2, prepare), list[LsvError]()
    assemble(gang, 2)
    gang.enter(0, fallen.append)
    error = ConfigError("there is too little memory")
    gang.leave(1, error)
    assert fallen == [error]
    gang.disband()


def test_nobody_waits_for_one_that_has_given_up() -> None:
    gang, found = Gang(2, prepare), list[Path | None]()
    waiting = threading.Thread(target=lambda: found.append(gang.assemble()))
    waiting.start()
    gang.disband()
    waiting.join(SOON)
    assert found == [None]
    assert gang.assemble() is None
