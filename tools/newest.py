"""Which of lsv's dependencies are newer in another environment than in the one that runs this: make test-newest.

.venv/bin/python tools/newest.py .venv-newest
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import distribution, distributions
from pathlib import Path


def dependencies() -> list[str]:
    """The packages that pyproject.toml names, for use and for development."""
    wanted = [text for text in distribution("lsv").requires or () if "extra ==" not in text or "'dev'" in text]
    names = (match.group() for text in wanted if (match := re.match(r"[\w.-]+", text)))
    return sorted({_plain(name) for name in names})


def installed(environment: Path) -> dict[str, str]:
    """The version of each package in a virtual environment."""
    folders = [str(folder) for folder in environment.glob("lib/python*/site-packages")]
    return {_plain(one.metadata["Name"]): one.version for one in distributions(path=folders)}


def compare(here: Mapping[str, str], there: Mapping[str, str]) -> Iterator[str]:
    """A line for each dependency whose version differs."""
    for name in dependencies():
        if here.get(name) != there.get(name):
            yield f"{name:28} {here.get(name, 'missing'):16} -> {there.get(name, 'missing')}"


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> int:
    lines = list(compare(installed(Path(sys.prefix)), installed(Path(sys.argv[1]))))
    print("\n".join(lines) if lines else "no dependency is newer than in the developers' environment")
    return 0


if __name__ == "__main__":
    sys.exit(main())
