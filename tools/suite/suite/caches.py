"""Cache folders that a test has to itself."""

from __future__ import annotations

from pathlib import Path

from lsv.settings.caching import cache_root

COMPILED = ("cpu", "emulation")
"""Parts of the cache with native code, which takes a minute to compile."""


def own_cache(folder: Path) -> Path:
    """Make ``folder`` a cache root that is empty but for native code, which all tests share."""
    own = folder / "lsv"
    own.mkdir(parents=True)
    for name in COMPILED:
        shared = cache_root() / "lsv" / name
        shared.mkdir(parents=True, exist_ok=True)
        (own / name).symlink_to(shared)
    return folder
