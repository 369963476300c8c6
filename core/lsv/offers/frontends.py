"""Commands, and what stands in front of an engine."""

from __future__ import annotations

import msgspec


class CommandOffer(msgspec.Struct, frozen=True):
    """``lsv <name>``."""

    name: str
    load: str
    """``(arguments: list[str], context) -> int``, the exit code."""
    help: str


class FrontendOffer(msgspec.Struct, frozen=True):
    """Something that ``lsv serve`` runs in front of an engine."""

    name: str
    load: str
    """``async (service, settings) -> None``."""
    default: bool = False
    """Whether it always runs."""
    switch: str | None = None
    """The setting that turns on one that does not always run."""
    processes: str | None = None
    """The setting for its number of processes. If there are several, each opens its own clients
    (``lsv.engine.connect``), and the clients of the given service carry no requests."""
    explain: str | None = None
    """``(config, settings) -> Iterable[tuple[str, str]]``: findings about a model, for ``lsv doctor MODEL``."""
    check: str | None = None
    """``(settings) -> None``, called before an engine is started: raises ``ConfigError`` for what would be refused."""
