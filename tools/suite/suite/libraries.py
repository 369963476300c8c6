"""Packages that ``make test-libraries`` installs, and no other test has."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lsv.settings import environment_with

_PLACE = environment_with({}).get("LSV_TEST_LIBRARIES")

LIBRARIES = None if _PLACE is None else Path(_PLACE)
"""Where ``make test-libraries`` has an environment with the libraries, and vLLM's examples."""

MINERU = ("mineru_vl_utils", "loguru")
"""MinerU's package, and what it imports that lsv does not need."""


def site_packages() -> Path:
    """The folder of the installed packages."""
    assert LIBRARIES is not None, "make test-libraries and make test-seeds install them"
    (found,) = (LIBRARIES / "env" / "lib").glob("python3*/site-packages")
    return found


def link_packages(names: Iterable[str], folder: Path) -> Path:
    """Make some of the packages importable from ``folder``, without the others, one of which is called vllm."""
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).symlink_to(site_packages() / name)
    return folder
