"""How an engine process is, as its supervisor tells all clients: a file beside the socket they connect to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

from lsv.errors import EngineDied, ErrorRecord, LsvError, from_record

_SOCKET, _STATE = "engine.sock", "supervision.json"


class Supervision(msgspec.Struct, frozen=True):
    """What clients have to know of an engine that they can't reach."""

    state: Literal["running", "down", "lost", "ended"]
    """``down``: it has ended or hangs, and another one will be started; ``lost``: another one comes only with its
    machine, should that be started anew; ``ended``: there will be no other.
    """

    run: int = 0
    """How many processes there have been, this one included."""

    error: ErrorRecord | None = None
    """What the last process ended of."""

    served: bool = False
    """Whether one that has ended had taken requests."""

    @property
    def reason(self) -> LsvError:
        """What the last process ended of, as an error."""
        return EngineDied("the engine is gone") if self.error is None else from_record(self.error)


_STOPPED = Supervision("ended", error=EngineDied("the engine has been stopped").record())


def socket_in(folder: Path) -> Path:
    """Where the engine listens that is supervised in ``folder``."""
    return folder / _SOCKET


def publish(folder: Path, supervision: Supervision) -> None:
    """Tell clients; they see the old or the new state, nothing between."""
    fresh = folder / f"{_STATE}.new"
    fresh.write_bytes(msgspec.json.encode(supervision))
    os.replace(fresh, folder / _STATE)


def read(address: Path) -> Supervision:
    """The state of the engine that listens at ``address``."""
    try:
        return msgspec.json.decode(address.with_name(_STATE).read_bytes(), type=Supervision)
    except FileNotFoundError:  # the folder goes with the supervisor
        return _STOPPED
