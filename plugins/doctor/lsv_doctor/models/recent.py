"""Families published in 2026, with the classes that their checkpoints name: the table beside this module.

A line has the family, a tab, and classes. Where transformers has a class under another name, it follows after ``=``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_TABLE = Path(__file__).with_name("recent.tsv")


class Published(NamedTuple):
    """A class of a family."""

    family: str
    """What people know it by."""
    architecture: str
    """As config.json names it in ``architectures``."""
    named: str
    """As transformers names the class."""


def read_recent(path: Path = _TABLE) -> Iterator[Published]:
    """The classes, in the table's order."""
    for line in path.read_text(encoding="utf-8").splitlines():
        family, _, architectures = line.partition("\t")
        for one in architectures.split():
            architecture, _, named = one.partition("=")
            yield Published(family, architecture, named or architecture)
