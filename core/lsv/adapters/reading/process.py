"""Runs the process that reads an adapter, a new one each time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lsv.adapters import peft
from lsv.adapters.reading.messages import Begin, Command, Digest, Look, Reply
from lsv.config import Confinement
from lsv_base.errors import CheckpointError
from lsv_base.processes.confinement.terms import Terms
from lsv_base.processes.side.process import Broken, Kind, SideProcess

SECONDS = 120.0
"""Time limit for reading a whole adapter."""
_MEMORY = 1 << 30
"""Bytes. Enough for the longest header, as JSON text and as parsed objects."""


def look(folder: Path, mode: Confinement = "auto") -> bytes:
    """The hash of an adapter's files. Raises ``CheckpointError`` if the configuration is unsupported."""
    found: list[bytes] = []

    def take(reply: Reply) -> bool:
        assert isinstance(reply, Digest), "nothing else was asked for"
        found.append(reply.found)
        return False

    ask(folder, Look(), take, mode)
    return found[0]


def ask(folder: Path, command: Command, take: Callable[[Reply], bool], mode: Confinement) -> None:
    """Pass each reply to ``take`` until ``take`` returns False.

    Raises ``CheckpointError`` for files that can't be read or take too long.
    """
    with _opened(folder) as (weights, *descriptors):
        pickled = weights.suffix != ".safetensors"
        memory = _MEMORY + (2 * os.fstat(descriptors[1]).st_size if pickled else 0)
        terms = Terms(memory, SECONDS, mode)
        kind = Kind("reads adapters", "lsv_runtime.adapters.reader", Reply, terms)
        begin = Begin(str(folder), weights.name, pickled)
        process: SideProcess[Any, Any] = SideProcess(kind, begin, inherited=descriptors)
        deadline = time.monotonic() + SECONDS

        def take_in_time(reply: Reply) -> bool:
            if time.monotonic() > deadline:
                raise TimeoutError
            return take(reply)

        try:
            process.start()
            process.ask_all(command, take_in_time, SECONDS)
        except Broken as broken:
            raise CheckpointError(
                f"{folder}: the adapter can't be read: the process that reads it {broken.how}"
            ) from None
        except OSError as cause:
            raise CheckpointError(f"the process that reads adapters can't be started: {cause}") from cause
        finally:
            process.end()


@contextmanager
def _opened(folder: Path) -> Iterator[tuple[Path, int, int]]:
    """The path of the weights, the descriptor of the configuration and the descriptor of the weights."""
    config = peft.open_config(folder / peft.CONFIG)
    try:
        path = peft.weights_file(folder)
        weights = peft.open_weights(path)
        try:
            yield path, config, weights
        finally:
            os.close(weights)
    finally:
        os.close(config)
