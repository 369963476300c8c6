"""Which code a checkpoint brings: ``auto_map`` of config.json and tokenizer_config.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lsv_base.errors import CheckpointError

_REFERENCE = re.compile(r"([A-Za-z_]\w*\.)+[A-Za-z_]\w*")
_ELSEWHERE = "--"


def find_code(settings: Mapping[str, Any], *names: str) -> str | None:
    """The class (``module.Class``) under the first of ``names`` in ``auto_map``, None where there is none.

    A tokenizer has a pair of them, of which the fast one goes first. It may be in another repository
    (``org/name--module.Class``).
    """
    auto_map = settings.get("auto_map")
    if isinstance(auto_map, list | tuple):  # as older tokenizers wrote it
        auto_map = {"AutoTokenizer": auto_map}
    for name in names:
        found = auto_map.get(name) if isinstance(auto_map, Mapping) else None
        pair = reversed(found) if isinstance(found, list | tuple) else (found,)
        for one in pair:
            if isinstance(one, str):
                return one
    return None


def check_code(reference: str, folder: Path) -> str:
    """A reference whose file is there. Raises ``CheckpointError`` for code that is elsewhere, and for none at all."""
    if _ELSEWHERE in reference:
        repository, _, own = reference.partition(_ELSEWHERE)
        raise CheckpointError(
            f"the checkpoint's code {own} is in another repository, {repository}: put its Python files into {folder}, "
            f"and {own} into auto_map"
        )
    if _REFERENCE.fullmatch(reference) is None:
        raise CheckpointError(f"{folder}: auto_map names {reference!r:.100}, which is not of the form module.Class")
    file = folder.joinpath(*reference.split(".")[:-1]).with_suffix(".py")
    if not file.is_file():
        raise CheckpointError(f"auto_map names {reference}, but there is no {file}")
    return reference
