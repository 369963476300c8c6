"""The folder for caches."""

from __future__ import annotations

from pathlib import Path

from lsv.settings import Declared, gather, options


def cache_root() -> Path:
    """The folder of this user's caches, as set by environment variables, or ~/.cache.

    Raises ``RuntimeError`` if no variable is set and the user has no home.
    """
    chosen: str | None = gather(Declared(options.CACHING), {})["cache_root"]
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache"
