"""``python -m first_run.wheels``: what lsv and its tests need beside torch, as requirements with the versions here.

For a machine without network: ``make wheels`` downloads these for it, and torch is the one that is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import Requirement

ROOTS = ("lsv", "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "hypothesis", "openai", "hatchling",
         "editables")  # fmt: skip
THERE = ("lsv", "torch", "triton", "nvidia", "cuda")
"""Beginnings of names that are not downloaded, nor what they need."""


def needed(name: str, seen: set[str]) -> Iterator[str]:
    """The package and all that it requires, once each."""
    key = name.lower().replace("_", "-")
    if key in seen:
        return
    seen.add(key)
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return  # for another system than this one
    if not key.startswith(THERE):
        yield f"{key}=={found.version}"
    elif key != "lsv":
        return
    for line in found.requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield from needed(requirement.name, seen)


if __name__ == "__main__":
    seen: set[str] = set()
    print("\n".join(line for root in ROOTS for line in needed(root, seen)))
