"""How an engine process is, as its supervisor tells all clients: a file beside the socket they connect to."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from lsv_base.errors import EngineDied, ErrorRecord, LsvError, from_record

_SOCKET, _STATE = "engine.sock", "supervision.json"
_ROOM = 4096
"""Size of a state on disk. A fixed size lets later states overwrite the first one even if the disk is full."""
_READS = 100
"""How often to retry reading a state that was being overwritten."""


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
    """Write the state; clients see either the old or the new one. Raises ``OSError`` if not even one fits.

    If a full disk has no room for both, the new state overwrites the old one in place.
    """
    content, path, fresh = _encode(supervision), folder / _STATE, folder / f"{_STATE}.new"
    try:
        fresh.write_bytes(content)
        os.replace(fresh, path)
    except OSError:
        with suppress(OSError):
            fresh.unlink()
        with path.open("r+b", buffering=0) as file:
            file.write(content)


def read(address: Path) -> Supervision:
    """The state of the engine that listens at ``address``."""
    path = address.with_name(_STATE)
    try:
        for _ in range(_READS):
            with suppress(msgspec.DecodeError):  # it is being overwritten
                return msgspec.json.decode(path.read_bytes(), type=Supervision)
        return msgspec.json.decode(path.read_bytes(), type=Supervision)
    except FileNotFoundError:  # the folder goes with the supervisor
        return _STOPPED


def _encode(supervision: Supervision) -> bytes:
    """Encode a state in ``_ROOM`` bytes; a long error is truncated."""
    content = msgspec.json.encode(supervision)
    error = supervision.error
    if len(content) > _ROOM and error is not None:
        message = error.message.encode()
        kept = message[: max(0, len(message) - len(content) + _ROOM)].decode(errors="ignore")
        cut = msgspec.structs.replace(error, message=kept)
        content = msgspec.json.encode(msgspec.structs.replace(supervision, error=cut))
    return content.ljust(_ROOM)
