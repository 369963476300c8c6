"""The checkpoints of a model's parts, behind its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack

from lsv.config import EngineConfig, Part
from lsv.resolve.parts import how_to_give
from lsv_base.errors import ConfigError
from lsv_runtime.weights.checkpoint import CheckpointSource
from lsv_runtime.weights.parts import PartedSource
from lsv_runtime.worker.load.declared import Declared

log = logging.getLogger(__name__)


def with_parts(
    own: CheckpointSource, config: EngineConfig, declared: Declared, open_folder: Callable[[str], CheckpointSource]
) -> CheckpointSource:
    """``own`` with what the checkpoints of the model's parts add; closed where it raises.

    Raises ``ConfigError`` for a part that is nowhere, and for one that was asked for and of which nothing is needed.
    """
    with ExitStack() as opened:
        opened.callback(own.close)
        sources: dict[str, CheckpointSource] = {}
        for part in config.parts:
            if part.folder is not None:
                sources[part.place] = source = open_folder(part.folder)
                opened.callback(source.close)
        rename = declared.rename
        joined = PartedSource(own, sources, rename)
        needed = {piece.name for slot in declared.slots if not slot.optional for piece in slot.pieces}
        lacks = not needed <= set(map(rename, joined.tensors()))
        for part in config.parts:
            if part.folder is not None:
                _tell_use(part, joined, needed, config)
            elif lacks and not any(name.startswith(f"{part.place}.") for name in own.tensors()):
                raise ConfigError(
                    f"{config.model} has no weights of {part.place} and does not say which checkpoint has: "
                    f"{how_to_give(part)}",
                    param="hf_overrides",
                )
        opened.pop_all()
        return joined


def _tell_use(part: Part, joined: PartedSource, needed: set[str], config: EngineConfig) -> None:
    """Say what of a part is not read since the model's own checkpoint has it."""
    added, shadowed = (needed & names[part.place] for names in (joined.added, joined.shadowed))
    if not added and part.key in config.overrides:
        raise ConfigError(
            f"{part.key}: nothing of {part.folder} would be read, as {config.model} has all weights of {part.place} "
            "itself: leave it out",
            param="hf_overrides",
        )
    if shadowed:
        log.info("%d tensors of %s are read from %s, not from %s", len(shadowed), part.place, config.model, part.folder)
