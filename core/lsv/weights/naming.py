"""Checkpoints of one family name the same tensor differently: pairs of prefixes, theirs and the model's own."""

from __future__ import annotations

Prefixes = tuple[tuple[str, str], ...]
"""(in checkpoints, in the model), whole components of names. The first one that fits applies."""


def rename(name: str, prefixes: Prefixes) -> str:
    """A checkpoint's name of a tensor -> the model's."""
    for theirs, own in prefixes:
        if _begins(name, theirs):
            return own + name[len(theirs) :]
    return name


def spellings(name: str, prefixes: Prefixes) -> tuple[str, ...]:
    """All names that a checkpoint or its configuration may use for the model's ``name``, which stands first."""
    return (name, *(theirs + name[len(own) :] for theirs, own in prefixes if _begins(name, own)))


def _begins(name: str, prefix: str) -> bool:
    return f"{name}.".startswith(f"{prefix}.")
