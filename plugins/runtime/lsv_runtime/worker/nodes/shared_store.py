"""Where ranks of several replicas meet that share experts, on whichever machines they are: a store of the first's
engine, of which the others, all on the same machine, learn in the folder in which they meet themselves.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from lsv.config import EngineConfig
from lsv_base.errors import StartError
from lsv_runtime.devices.collectives import serve_store

_LOOK_SECONDS = 0.05


class SharedStore:
    """The address of that store, and of replica 0 the store itself, which lasts as long as this."""

    def __init__(self, config: EngineConfig, host: str) -> None:
        """``host`` is this machine's address. Raises ``StartError`` where nothing is heard of the first engine."""
        file = Path(config.topology.meeting) / "experts"
        self._store: Any = None
        if config.topology.replica == 0:
            self._store, self.address = serve_store(host)
            _write(file, self.address)
        else:
            self.address = _await(file, config.load_timeout)


def _write(file: Path, address: str) -> None:
    """All at once: whoever finds the file finds the whole address."""
    begun = file.with_suffix(".part")
    begun.write_text(address)
    os.replace(begun, file)


def _await(file: Path, seconds: float) -> str:
    deadline = time.monotonic() + seconds
    while not file.exists():
        if time.monotonic() > deadline:
            raise StartError(f"the engine of replica 0 has not said after {seconds:g} s where ranks meet: see its log")
        time.sleep(_LOOK_SECONDS)
    return file.read_text()
