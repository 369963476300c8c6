"""The release of transformers that the table of classes was checked with. Light to import."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from lsv_base.errors import ConfigError
from lsv_doctor.models.classes import TABLE

PACKAGE = "transformers"
_RELEASE = re.compile(r"\d+\.\d+")
_FIRST_LINE = re.compile(rf"# {PACKAGE} (\d+\.\d+)\n")


def read_release(path: Path = TABLE) -> str:
    """The release in the first line of the table, such as 5.24. Raises ``ConfigError`` for a table without one."""
    with path.open(encoding="utf-8") as file:
        found = _FIRST_LINE.fullmatch(file.readline())
    if found is None:
        raise ConfigError(f"{path} must begin with a line such as '# {PACKAGE} 5.24'")
    return found[1]


def installed_release() -> str:
    """The major and minor version of the installed transformers, such as 5.24; empty if it is not installed."""
    try:
        found = _RELEASE.match(version(PACKAGE))
    except PackageNotFoundError:
        return ""
    return found[0] if found else ""


def warn() -> str:
    """A warning if the installed transformers is newer than the release of the table; empty if it is not."""
    installed, checked = installed_release(), read_release()
    if not installed or _numbers(installed) <= _numbers(checked):
        return ""
    return (
        f"{PACKAGE} {installed} is newer than {checked}, which lsv's models were checked with: "
        "run lsv models --check CLASS for the classes you serve"
    )


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))
