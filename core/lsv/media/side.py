"""A side process: ``python -m lsv.media.side FD PARENT`` prepares media, and may be killed at any time."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from lsv import plugins, settings
from lsv.errors import LsvError, PluginError, RequestFailed
from lsv.media.orders import Answer, Cut, Equip, Equipped, Order, Prepare, Refused
from lsv.media.workshop import Workshop
from lsv.processes.lifeline import die_with
from lsv.processes.wire import Channel

_log = logging.getLogger(__name__)

_NICENESS = 10


def main(descriptor: int, parent: int) -> int:
    """Serve until the pool closes its end."""
    die_with(parent)
    step_back()
    channel: Channel[Answer, Order] = Channel(socket.socket(fileno=descriptor), Order)
    try:
        serve(channel)
    except (EOFError, BrokenPipeError):
        return 0
    return 1


def step_back() -> None:
    """Leave the processor to answers that are under way, and be the first to go when memory runs out."""
    os.nice(_NICENESS)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def serve(channel: Channel[Answer, Order]) -> None:
    """Load the processor as told, then answer one order after the other. Returns when it can't be loaded."""
    equip = channel.receive()
    assert isinstance(equip, Equip), "the first order must be Equip"
    try:
        workshop = Workshop(equip.config, plugins.load(equip.config.plugins or None).catalog, equip.limits)
    except LsvError as error:
        _log.error("media can't be prepared: %s", error.message)
        channel.send(Refused(error.record()))
        return
    except Exception as cause:
        _log.exception("the processor can't be loaded")
        channel.send(Refused(PluginError(f"the model's processor can't be loaded: {_named(cause)}").record()))
        return
    channel.send(Equipped())
    while True:
        order = channel.receive()
        assert not isinstance(order, Equip), "a side process is equipped once"
        for answer in carry_out(workshop, order):
            channel.send(answer)


def carry_out(workshop: Workshop, order: Prepare | Cut) -> Iterator[Answer]:
    """What comes of an order; a fault of the processor's fails the one item."""
    modality = "audio" if isinstance(order, Cut) else order.modality
    try:
        if isinstance(order, Cut):
            yield from workshop.cut(order)
        else:
            yield workshop.prepare(order)
    except LsvError as error:
        yield Refused(error.record())
    except Exception as cause:
        _log.exception("an item of kind %s could not be prepared", modality)
        yield Refused(RequestFailed(f"the {modality} could not be prepared ({type(cause).__name__})").record())


def _named(cause: Exception) -> str:
    return f"{type(cause).__name__}: {cause}"


if __name__ == "__main__":
    # interrupts are for the server, which then closes the channel
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings.export({"OMP_NUM_THREADS": "1"})
    logging.basicConfig(level=logging.INFO, format="%(levelname)s media %(name)s: %(message)s")
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
