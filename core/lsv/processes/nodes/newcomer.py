"""What a machine says of itself when it joins another, and what has to be equal on both."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from lsv.config import EngineConfig
from lsv.errors import ConfigError
from lsv.untrusted.files import read_regular
from lsv.version import __version__

_OWN = frozenset(
    {"model", "parts", "tokenizer", "generation", "kv_scales", "served_names", "reasons", "options", "device", "nodes"}
    | {"unlisted_names", "max_queue", "traces", "topology", "replica_nodes"}
)
"""Fields that a machine may have its own values for: where its files are, its devices and its plugins' settings; and
what only the engine reads. Of the topology only the place is its own."""
_WEIGHTS = frozenset({".safetensors", ".gguf", ".bin", ".pt", ".pth"})


class Newcomer(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that joins. What follows the version is read only where that is equal."""

    version: str
    config: bytes
    """The ``EngineConfig`` resolved there, in msgpack."""
    checkpoint: str
    """See ``name_checkpoint``."""


def describe(config: EngineConfig) -> dict[str, Any]:
    """The fields of a ``Newcomer`` that runs ``config``."""
    return {
        "version": __version__,
        "config": msgspec.msgpack.encode(config),
        "checkpoint": name_checkpoint(config),
    }


class Likeness:
    """What newcomers are held against."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._checkpoint = name_checkpoint(config)

    def read(self, newcomer: Newcomer) -> EngineConfig:
        """The configuration there. Raises ``ConfigError`` with what has to be equal and is not."""
        if newcomer.version != __version__:
            raise ConfigError(f"lsv {newcomer.version} there, lsv {__version__} here: install the same version on both")
        try:
            config = msgspec.msgpack.decode(newcomer.config, type=EngineConfig)
        except ValueError as cause:
            raise ConfigError(
                f"its configuration is not one of this version ({cause}): install the same build on both"
            ) from None
        if found := differences(self._config, config):
            raise ConfigError(f"here and there {'; '.join(found)}: start both with the same options")
        if newcomer.checkpoint != self._checkpoint:
            raise ConfigError(f"{self._config.model} here and {config.model} there are different checkpoints")
        return config


def name_checkpoint(config: EngineConfig) -> str:
    """What tells checkpoints apart without reading them: config.json, and the sizes of the files of weights, of the
    model and of its parts.
    """
    digest = hashlib.sha256()
    for folder in map(Path, (config.model, *(part.folder for part in config.parts if part.folder))):
        file = folder / "config.json"
        sizes = sorted(file.stat().st_size for file in folder.glob("*") if file.suffix in _WEIGHTS)
        digest.update((read_regular(file) if file.is_file() else b"") + repr(sizes).encode())
    return digest.hexdigest()[:16]


def differences(mine: EngineConfig, theirs: EngineConfig) -> list[str]:
    """The fields that ought to be equal and are not, with both values."""
    fields = [field for field in mine.__struct_fields__ if field not in _OWN]
    pairs = [(field, getattr(mine, field), getattr(theirs, field)) for field in fields]
    shapes = mine.topology.anywhere, theirs.topology.anywhere
    pairs += [(f"topology.{field}", *(getattr(one, field) for one in shapes)) for field in shapes[0].__struct_fields__]
    return [f"{field} is {one!r:.80} and {other!r:.80}" for field, one, other in pairs if one != other]
