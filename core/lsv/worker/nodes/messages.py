"""What a machine that joins and the engine's machine say to each other, and what has to be equal on both."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path

import msgspec

from lsv.config import EngineConfig

_KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}
"""A machine that has vanished is missed after 25 s, or after a minute where something was on its way to it (ms)."""
_OWN = frozenset(
    {"model", "tokenizer", "generation", "kv_scales", "served_names", "reasons", "options", "device", "nodes"}
    | {"max_queue", "traces"}
)
"""Fields that a machine may have its own values for: where its files are, its devices and its plugins' settings; and
what only the engine reads."""
_WEIGHTS = frozenset({".safetensors", ".gguf", ".bin", ".pt", ".pth"})


class Join(msgspec.Struct, frozen=True, tag=True):
    """A machine with room for its ranks. What follows the version is read only where that is equal."""

    version: str
    number: int
    count: int
    config: bytes
    """The ``EngineConfig`` resolved there, in msgpack."""
    checkpoint: str
    """See ``name_checkpoint``."""
    nearby: str
    """Where ranks of this machine meet."""


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """A machine has joined: it is to start these ranks."""

    ranks: tuple[int, ...]


class Goodbye(msgspec.Struct, frozen=True, tag=True):
    """The engine has ended as it was told to."""


Answer = Welcome | Goodbye


def name_checkpoint(folder: Path) -> str:
    """What tells checkpoints apart without reading them: config.json, and the sizes of the files of weights."""
    config = folder / "config.json"
    sizes = sorted(file.stat().st_size for file in folder.glob("*") if file.suffix in _WEIGHTS)
    content = config.read_bytes() if config.is_file() else b""
    return hashlib.sha256(content + repr(sizes).encode()).hexdigest()[:16]


def differences(mine: EngineConfig, theirs: EngineConfig) -> list[str]:
    """The fields that ought to be equal and are not, with both values."""
    fields = [field for field in mine.__struct_fields__ if field not in _OWN]
    pairs = [(field, getattr(mine, field), getattr(theirs, field)) for field in fields]
    return [f"{field} is {one!r:.80} and {other!r:.80}" for field, one, other in pairs if one != other]


def prepare(end: socket.socket) -> None:
    """Settings of a connection that stays: small messages go out at once, and its end is noticed."""
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):
            end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
