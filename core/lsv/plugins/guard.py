"""What plugins' own functions may do to core: raise or hang, each told with the plugin's name, and nothing else.

Offers carry functions: ``probe``, ``recognises``, ``supports`` and others. They are guarded when offers are collected.
One that raises makes its plugin a broken one and answers as if it had nothing to say; one that takes long is named in
the log while it runs, and a probe that does not come back is left behind.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from lsv_base.errors import LsvError

log = logging.getLogger(__name__)

Offer = TypeVar("Offer", bound=msgspec.Struct)

SLOW_SECONDS = 5.0
"""After so long it is said in the log who is at work."""
PROBE_SECONDS = 30.0
"""Devices of a platform whose probe takes longer are not waited for."""

_FAILED = "its plugin failed: "
_SILENT: Mapping[str, Callable[[Exception], Any]] = {
    "probe": lambda error: (),
    "explain": lambda error: f"{_FAILED}{error!r}",
    "missing": lambda error: f"a plugin that works: {error!r}",
    "recognises": lambda error: False,
    "supports": lambda error: f"{_FAILED}{error!r}",
    "unwanted": lambda error: f"{_FAILED}{error!r}",
}
"""What a function that failed answers, by the field of the offer; those of other fields raise what they raise."""


_LONG = frozenset({"explain", "missing", "recognises"})
"""Those that look at the machine or at files; the others are asked hundreds of times."""


def guarded(offer: Offer, plugin: str, blame: Callable[[Exception], None]) -> Offer:
    """The offer with guards around its functions."""
    changes = {
        name: _guard(function, plugin, name, blame)
        for name in offer.__struct_fields__
        if name in _SILENT and callable(function := getattr(offer, name))
    }
    return msgspec.structs.replace(offer, **changes) if changes else offer


def _guard(
    function: Callable[..., Any], plugin: str, name: str, blame: Callable[[Exception], None]
) -> Callable[..., Any]:
    what = f"plugin {plugin}: {name}"

    def ask(*about: Any) -> Any:
        try:
            if name == "probe":
                return in_time(function, what)
            if name not in _LONG:
                return function(*about)
            with watching() as begin:
                begin(what)
                return function(*about)
        except LsvError:
            raise
        except Exception as error:
            log.exception("%s failed", what)
            blame(error)
            return _SILENT[name](error)

    return ask


class Watch:
    """A thread that watches work done in turns. It logs who has been at work for long, so that a hang has a name."""

    def __init__(self) -> None:
        self._turn = ("", 0.0)  # who is at work, and since when
        self._thread: threading.Thread | None = None
        self._over = threading.Event()

    def begin(self, what: str) -> None:
        """Start a turn, which ends the previous one."""
        self._turn = (what, time.monotonic())
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="plugin watch", daemon=True)
            self._thread.start()

    def end(self) -> None:
        self._over.set()

    def _look(self) -> None:
        named, wait = None, SLOW_SECONDS
        while not self._over.wait(wait):
            turn = self._turn
            wait = turn[1] + SLOW_SECONDS - time.monotonic()
            if wait > 0:
                continue
            if turn is not named:
                log.warning("%s has been at work for %g seconds", turn[0], SLOW_SECONDS)
                named = turn
            wait = SLOW_SECONDS


@contextmanager
def watching() -> Iterator[Callable[[str], None]]:
    """Watch the block. Call the yielded function with a name at the start of each turn."""
    watch = Watch()
    try:
        yield watch.begin
    finally:
        watch.end()


def in_time(function: Callable[[], Any], what: str, seconds: float | None = None) -> Any:
    """What ``function`` answers within ``seconds``. Raises what it raises, ``TimeoutError`` where it takes longer."""
    limit = PROBE_SECONDS if seconds is None else seconds
    answers: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(function())
        except BaseException as error:  # a plugin that ends the process would end this thread alone
            errors.append(error)

    thread = threading.Thread(target=run, name=what, daemon=True)
    with watching() as begin:
        begin(what)
        thread.start()
        thread.join(limit)
    if errors:
        error = errors[0]
        raise error if isinstance(error, Exception) else RuntimeError(f"it tried to end the process: {error!r}")
    if not answers:
        raise TimeoutError(f"no answer within {limit:g} seconds")
    return answers[0]
