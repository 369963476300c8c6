"""What a joining machine reports about itself, and what must be equal on both machines."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from lsv.config import EngineConfig
from lsv_base.errors import ConfigError
from lsv_base.untrusted.files import read_regular
from lsv_base.version import __version__

_OWN = frozenset(
    {"model", "parts", "tokenizer", "generation", "kv_scales", "served_names", "reasons", "options", "device", "nodes"}
    | {"unlisted_names", "max_queue", "traces", "topology", "replica_nodes"}
)
"""Fields that may differ between machines: where files are, devices, settings of plugins, and fields that only the
engine reads. In the topology, only the place may differ."""
_WEIGHTS = frozenset({".safetensors", ".gguf", ".bin", ".pt", ".pth"})


class Newcomer(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that joins. Fields after the version are only read if the versions are equal."""

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
    """Compares newcomers with this machine."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._checkpoint = name_checkpoint(config)

    def read(self, newcomer: Newcomer) -> EngineConfig:
        """The newcomer's configuration. Raises ``ConfigError`` that names the differences."""
        if newcomer.version != __version__:
            raise ConfigError(f"lsv {newcomer.version} there and {__version__} here: install the same version on both")
        try:
            config = msgspec.msgpack.decode(newcomer.config, type=EngineConfig)
        except ValueError as cause:
            raise ConfigError(f"its configuration can't be decoded ({cause}): install the same build on both") from None
        if found := differences(self._config, config):
            raise ConfigError(f"{'; '.join(found)}: start both with the same options")
        if newcomer.checkpoint != self._checkpoint:
            raise ConfigError(f"{self._config.model} here and {config.model} there are different checkpoints")
        return config


def name_checkpoint(config: EngineConfig) -> str:
    """A hash that tells checkpoints apart without reading weights.

    It covers config.json and the sizes of the weight files, of the model and of its parts.
    """
    digest = hashlib.sha256()
    for folder in map(Path, (config.model, *(part.folder for part in config.parts if part.folder))):
        file = folder / "config.json"
        sizes = sorted(file.stat().st_size for file in folder.glob("*") if file.suffix in _WEIGHTS)
        digest.update((read_regular(file) if file.is_file() else b"") + repr(sizes).encode())
    return digest.hexdigest()[:16]


def differences(mine: EngineConfig, theirs: EngineConfig) -> list[str]:
    """The fields that must be equal and are not, with both values."""
    fields = [field for field in mine.__struct_fields__ if field not in _OWN]
    pairs = [(field, getattr(mine, field), getattr(theirs, field)) for field in fields]
    shapes = mine.topology.anywhere, theirs.topology.anywhere
    pairs += [(f"topology.{field}", *(getattr(one, field) for one in shapes)) for field in shapes[0].__struct_fields__]
    return [f"{field} is {one!r:.80} here and {other!r:.80} there" for field, one, other in pairs if one != other]
