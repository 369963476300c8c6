"""Manifest: one command, which writes the skeleton of a plugin."""

from __future__ import annotations

from collections.abc import Iterable

from lsv import hookimpl
from lsv.offers import CommandOffer

api = 2


@hookimpl
def lsv_commands() -> Iterable[CommandOffer]:
    yield CommandOffer("new", "lsv_scaffold.command:run", "write the skeleton of a plugin")
