"""A media worker: ``python -m lsv_multimodal.worker.main FD PARENT`` prepares media, and may be killed at any time."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from lsv import plugins, settings
from lsv.errors import LsvError, PluginError, RequestFailed
from lsv.processes.lifeline import connect
from lsv.processes.wire import Channel, Failed
from lsv_multimodal.preprocessing import Preprocessor
from lsv_multimodal.worker.messages import Command, Init, Initialized, Prepare, Reply, SplitAudio

_log = logging.getLogger(__name__)

_NICENESS = 10


def main(descriptor: int, parent: int) -> int:
    """Serve until the pool closes its end."""
    channel = connect(descriptor, parent, Command)
    lower_priority()
    try:
        serve(channel)
    except (EOFError, BrokenPipeError):
        return 0
    return 1


def lower_priority() -> None:
    """Leave the processor to answers in progress, and be the first process to be killed when memory runs out."""
    os.nice(_NICENESS)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def serve(channel: Channel[Reply | Failed, Command]) -> None:
    """Load the processor as told, then carry out one command after the other. Returns when it can't be loaded."""
    init = channel.receive()
    assert isinstance(init, Init), "the first command must be Init"
    try:
        preprocessor = Preprocessor(init.config, plugins.load(init.config.plugins or None).catalog, init.limits)
    except LsvError as error:
        _log.error("media can't be prepared: %s", error.message)
        channel.send(Failed(error.record()))
        return
    except Exception as cause:
        _log.exception("the processor can't be loaded")
        channel.send(Failed(PluginError(f"the model's processor can't be loaded: {_named(cause)}").record()))
        return
    channel.send(Initialized())
    while True:
        command = channel.receive()
        assert not isinstance(command, Init), "a media worker is initialised once"
        for reply in carry_out(preprocessor, command):
            channel.send(reply)


def carry_out(preprocessor: Preprocessor, command: Prepare | SplitAudio) -> Iterator[Reply | Failed]:
    """The replies to a command; a fault of the processor's fails the one item."""
    modality = "audio" if isinstance(command, SplitAudio) else command.modality
    try:
        if isinstance(command, SplitAudio):
            yield from preprocessor.split_audio(command.item, command.seconds, command.options)
        else:
            yield preprocessor.prepare(command.modality, command.item, command.options)
    except LsvError as error:
        yield Failed(error.record())
    except Exception as cause:
        _log.exception("an item of kind %s could not be prepared", modality)
        yield Failed(RequestFailed(f"the {modality} could not be prepared ({type(cause).__name__})").record())


def _named(cause: Exception) -> str:
    return f"{type(cause).__name__}: {cause}"


if __name__ == "__main__":
    # interrupts are for the server, which then closes the channel
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings.export({"OMP_NUM_THREADS": "1"})
    logging.basicConfig(level=logging.INFO, format="%(levelname)s media %(name)s: %(message)s")
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
