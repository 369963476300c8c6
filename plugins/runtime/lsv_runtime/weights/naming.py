"""Checkpoints of one family name the same tensor differently: pairs of prefixes, theirs and the model's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

Prefixes = tuple[tuple[str, str], ...]
"""(in checkpoints, in the model), whole components of names. ``*`` is any component, and the same one in both: the
number of a layer. The first pair that fits applies."""


def rename(name: str, prefixes: Prefixes) -> str:
    """A checkpoint's name of a tensor -> the model's."""
    found = (_replace(name, theirs, own) for theirs, own in prefixes)
    return next((one for one in found if one is not None), name)


Rules = Sequence[tuple[str, str | Callable[[re.Match[str]], str]]]
"""Regular expressions of parts of names in checkpoints, and what stands there in the model's. All apply, in order."""


def substitute(name: str, rules: Rules) -> str:
    """A checkpoint's name of a tensor -> the model's."""
    for theirs, own in rules:
        name = re.sub(theirs, own, name)
    return name


def spellings(name: str, prefixes: Prefixes) -> tuple[str, ...]:
    """All names that a checkpoint or its configuration may use for the model's ``name``, which stands first."""
    found = (_replace(name, own, theirs) for theirs, own in prefixes)
    return (name, *(one for one in found if one is not None))


def _replace(name: str, old: str, new: str) -> str | None:
    """``name`` with its beginning ``old`` replaced by ``new``; None for a name that begins otherwise."""
    if "*" not in old:  # most, and checkpoints may have tens of thousands of names
        return f"{new}{name[len(old) :]}" if f"{name}.".startswith(f"{old}.") else None
    parts, begin = name.split("."), old.split(".")
    if len(parts) < len(begin) or any(want not in ("*", part) for part, want in zip(parts, begin, strict=False)):
        return None
    kept = [part for part, want in zip(parts, begin, strict=False) if want == "*"]
    filled = [kept.pop(0) if part == "*" else part for part in new.split(".")]
    return ".".join((*filled, *parts[len(begin) :]))
