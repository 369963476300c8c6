"""Engines that the tests of a module share: opening and closing one takes longer than most answers."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from lsv import LLM
from lsv_base.errors import LsvError

KEPT = 3
"""How many engines stay open."""

Key = tuple[str, str]


class Engines:
    """Opens engines, and reuses an open engine for the same checkpoint and options.

    A test gets an engine without cached prefixes, whose ``stats`` go on from the tests before it. Each test asks for
    the engine again, because engines that have not been used recently are closed. Do not use it in tests that change
    the environment, parts of lsv, or the files of a checkpoint.
    """

    def __init__(self) -> None:
        self._open: dict[Key, LLM] = {}
        self._lent: set[Key] = set()

    def __call__(self, checkpoint: str | Path, **options: Any) -> LLM:
        """An engine for a checkpoint with the options of ``LLM``; the test must not close it."""
        key = str(checkpoint), repr(sorted(options.items()))
        llm = self._open.pop(key, None)
        if llm is None:
            self._make_room()
            llm = LLM(str(checkpoint), **options)
        self._open[key] = llm
        self._lent.add(key)
        return llm

    def check(self) -> None:
        """Take back the engines of the last test. Raises ``AssertionError`` if it left requests or lost blocks.

        An engine that fails the check is closed, and the next test gets a new one.
        """
        lent, self._lent = self._lent, set()
        wrong: list[Exception] = []
        for key in lent:
            try:
                _take_back(self._open[key])
            except Exception as error:
                wrong.append(error)
                _close(self._open.pop(key))
        if wrong:
            raise wrong[0].with_traceback(None)  # its frames refer to the engine

    def close(self) -> None:
        """Close all engines."""
        self._lent.clear()
        while self._open:
            _close(self._open.popitem()[1])

    def _make_room(self) -> None:
        """Close the least recently used engines, except engines of the running test."""
        idle = [key for key in self._open if key not in self._lent]
        for key in idle[: max(0, len(self._open) - KEPT + 1)]:
            _close(self._open.pop(key))


def _take_back(llm: LLM) -> None:
    engine = llm.llm_engine.client._engine
    assert engine.failure is None, f"the test ended a shared engine: {engine.failure}"
    left = llm.llm_engine.client.unfinished
    assert not left, f"the test left requests in a shared engine: {', '.join(left)}"
    while engine.has_work and not engine.stalled:
        engine.step()  # steps that were planned ahead
    assert (llm.stats.running, llm.stats.waiting) == (0, 0), "the test left requests in a shared engine"
    assert not llm.llm_engine.client.asleep, "the test left a shared engine asleep"
    engine._scheduler.check()
    llm.reset_prefix_cache()


def _close(llm: LLM) -> None:
    with suppress(LsvError):
        llm.close()
