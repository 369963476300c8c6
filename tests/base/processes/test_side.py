"""Pools of side processes: work that is abandoned, a line that has an end, and what is said once."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys

import pytest

from lsv_base.errors import LsvError, Overloaded
from lsv_base.processes.confinement.probe import Begin, Tried, Try
from lsv_base.processes.confinement.terms import Measure, Terms
from lsv_base.processes.side import main
from lsv_base.processes.side.pool import SidePool
from lsv_base.processes.side.process import Kind
from suite.waiting import until

MIB = 1 << 20


def kind(seconds: float = 20) -> Kind:
    return Kind("tries", "lsv_base.processes.confinement.probe", Tried, Terms(memory=128 * MIB, seconds=seconds))


async def test_work_that_nobody_waits_for_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lsv_base.processes.side.pool._ABANDONED_SECONDS", 0.05)
    pool: SidePool[Begin | Try, Tried] = SidePool(kind(), Begin(), seconds=60, size=1)
    await pool.ask(Try("thread"))
    gone = asyncio.create_task(pool.ask(Try("spin")))
    await until(lambda: pool._busy)
    gone.cancel()
    assert (await asyncio.wait_for(pool.ask(Try("thread")), 30)).outcome == "done", "the process would spin for 20 s"
    pool.close()


async def test_the_line_for_a_process_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lsv_base.processes.side.pool._LINE", 2)
    pool: SidePool[Begin | Try, Tried] = SidePool(kind(), Begin(), seconds=60, size=1)
    tasks = [asyncio.create_task(pool.ask(Try("thread"))) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="2 requests are waiting for the process that tries"):
        await pool.ask(Try("thread"))
    tasks[1].cancel()
    assert [isinstance(found, Tried) for found in await asyncio.gather(*tasks, return_exceptions=True)] == [
        True,
        False,
        True,
    ]
    assert (await pool.ask(Try("thread"))).outcome == "done"
    pool.close()


async def test_no_room_for_a_process_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    pool: SidePool[Begin | Try, Tried] = SidePool(kind(), Begin(), seconds=60, size=1)

    def full(*_: object, **__: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("lsv_base.processes.side.process.Child", full)
    with pytest.raises(LsvError, match="the process that tries can't be started: Resource temporarily") as caught:
        await pool.ask(Try("thread"))
    assert caught.value.status == 503
    monkeypatch.undo()
    assert (await pool.ask(Try("thread"))).outcome == "done"
    pool.close()


async def test_what_is_missing_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    pool: SidePool[Begin | Try, Tried] = SidePool(kind(), Begin(), seconds=60, size=1)
    (process,) = pool._idle
    process.measures = (Measure("files", False, "not in force, denied: nothing"),)
    pool._tell(process)
    pool._tell(process)
    assert caplog.messages == ["the process that tries: files not in force, denied: nothing"]
    pool.close()


def test_what_side_processes_need_is_light() -> None:
    heavy = ("torch", "numpy", "transformers")
    script = f"import sys, lsv_base.processes.side.main; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_what_a_side_process_imports_is_never_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    enabled, frozen = [], []
    messages: list[object] = [Begin()]

    class Closed:
        """The end of a channel whose other end closes after the first message."""

        def receive(self) -> object:
            if not messages:
                raise EOFError
            return messages.pop()

        def send(self, message: object) -> None:
            enabled.append(gc.isenabled())

    def load(begin: object) -> main.Loaded:
        enabled.append(gc.isenabled())
        return main.Loaded(lambda command: iter(()))

    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(gc.isenabled()))
    with pytest.raises(EOFError):
        main._serve(Closed(), Terms(mode="off", memory=MIB, seconds=1), load)
    assert (enabled, frozen) == ([False, True], [False])
