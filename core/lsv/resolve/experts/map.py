"""``--expert-map``: the rank of each expert. Imports no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lsv_base.errors import ConfigError

_FORM = "a list of the ranks of a layer's experts by number, or a list of such lists"


def read_map(given: str | None, ranks: int) -> tuple[tuple[int, ...], ...]:
    """JSON, or a file with it, as ``ExpertOptions.map``. Raises ``ConfigError`` for what is no map onto ``ranks``.

    How many layers have experts, and how many each, is known where the model is declared, and checked there.
    """
    if given is None:
        return ()
    found = _parse(given)
    if not isinstance(found, list) or not found:
        raise _refusal(f"it must be {_FORM}")
    rows = found if all(isinstance(row, list) for row in found) else [found]
    for number, row in enumerate(rows):
        where = f" (list {number})" if len(rows) > 1 else ""
        for expert, rank in enumerate(row):
            if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < ranks:
                raise _refusal(
                    f"expert {expert}{where} is on rank {rank!r:.100}, and there are {ranks}, counted from 0"
                )
        if idle := sorted(set(range(ranks)) - set(row)):
            raise _refusal(f"rank {idle[0]} has no expert{where}: each must have one or more")
    return tuple(map(tuple, rows))


def _parse(given: str) -> Any:
    text = given.strip()
    if not text.startswith(("[", "{")):
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, ValueError) as cause:
            raise _refusal(
                f"{text:.200} can't be read ({cause}); it must be JSON or a file with it: {_FORM}"
            ) from cause
    try:
        return json.loads(text)
    except ValueError as cause:
        raise _refusal(f"it must be JSON ({cause}): {_FORM}") from cause


def _refusal(why: str) -> ConfigError:
    return ConfigError(f"expert_map: {why}", param="expert_map")
