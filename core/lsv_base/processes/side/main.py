"""The main of a side process: it receives its terms, loads its work, confines itself and runs commands."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from lsv_base.errors import LsvError
from lsv_base.processes import heap
from lsv_base.processes.confinement import confine, leave_network
from lsv_base.processes.confinement.limits import limit_processor_time
from lsv_base.processes.confinement.terms import Measure, Terms
from lsv_base.processes.lifeline import connect
from lsv_base.processes.side.messages import OutOfMemory, Ready
from lsv_base.processes.wire import Channel, Failed

_log = logging.getLogger(__name__)

_NICENESS = 10
_NO_MORE = object()


class Loaded(NamedTuple):
    """The work of a side process."""

    carry_out: Callable[[Any], Iterator[Any]]
    """Yields the replies to a command. An ``LsvError`` fails this command only."""
    readable: tuple[str, ...] = ()
    """Folders that stay readable once it is confined."""


def run(name: str, receives: Any, load: Callable[[Any], Loaded]) -> int:
    """Serve ``python -m module FD… FD PARENT`` until the parent closes its end; returns the exit code.

    ``receives`` is the union of the commands. ``load`` is called with the first one.
    """
    # the server handles interrupts, and then closes the channel
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format=f"%(levelname)s {name} %(name)s: %(message)s")
    channel = connect(int(sys.argv[-2]), int(sys.argv[-1]), Terms | receives)
    _lower_priority()
    try:
        terms = channel.receive()
        assert isinstance(terms, Terms), "the first message must be the terms"
        _serve(channel, terms, load)
    except (EOFError, BrokenPipeError):
        return 0
    return 1


def _serve(channel: Channel[Any, Any], terms: Terms, load: Callable[[Any], Loaded]) -> None:
    """Returns if loading fails, or once memory has run out."""
    measures: list[Measure] = leave_network() if terms.mode != "off" else []
    try:
        with heap.without_collections():
            loaded = load(channel.receive())
            gc.freeze()  # collections will trace only later objects
    except LsvError as error:
        _log.error("can't start: %s", error.message)
        channel.send(Failed(error.record()))
        return
    if terms.mode != "off":
        measures += confine(terms, loaded.readable)
    channel.send(Ready(tuple(measures)))
    while True:
        command = channel.receive()
        try:
            for reply in _timed(loaded.carry_out(command), terms):
                channel.send(reply)
        except MemoryError:
            channel.send(OutOfMemory())
            return
        except LsvError as error:
            channel.send(Failed(error.record()))


def _timed(replies: Iterator[Any], terms: Terms) -> Iterator[Any]:
    """Limit the processor time of each reply."""
    reply: object = None
    while reply is not _NO_MORE:
        if terms.mode != "off":
            limit_processor_time(terms.seconds)
        reply = next(replies, _NO_MORE)
        if reply is not _NO_MORE:
            yield reply


def _lower_priority() -> None:
    """Give way to running answers, and be the first process that the kernel kills when memory runs out."""
    os.nice(_NICENESS)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
