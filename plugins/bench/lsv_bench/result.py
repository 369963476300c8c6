"""What a benchmark leaves behind: one versioned JSON document with all that its figures depend on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from lsv_base.errors import ConfigError
from lsv_bench.figures import Figures, medians
from lsv_bench.machine import Machine

FORMAT = 1
"""Grows when a reader of the last format would misread a document."""

Kind = Literal[
    "latency", "throughput", "offline", "serve", "startup", "sweep-latency", "sweep-throughput", "sweep-serve",
]  # fmt: skip
Point = dict[str, str | int | float]
Document = TypeVar("Document", bound=msgspec.Struct)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement. ``point`` is what set it apart from others of its document; ``errors`` counts by message.

    Runs of the same point are repeats. A run without figures failed.
    """

    point: Point = {}
    figures: Figures = {}
    errors: dict[str, int] = {}


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """``machine`` is the one ``lsv bench`` ran on; ``time`` is UTC, ISO 8601; ``settings`` are those in force."""

    lsv_bench: int = FORMAT
    kind: Kind
    title: str
    command: str
    time: str
    machine: Machine
    settings: dict[str, Any] = {}
    metadata: dict[str, str] = {}
    runs: list[Run] = []

    def points(self) -> list[tuple[Point, list[Run]]]:
        """Repeats by point, in the order they were first measured."""
        found: dict[str, tuple[Point, list[Run]]] = {}
        for run in self.runs:
            found.setdefault(label(run.point), (run.point, []))[1].append(run)
        return list(found.values())

    def medians(self) -> list[tuple[Point, Figures]]:
        """For each point the median of each figure over its repeats; a point of which all failed has none."""
        return [(point, medians([run.figures for run in runs])) for point, runs in self.points()]


def label(point: Mapping[str, object]) -> str:
    """``"max_concurrency=4"``; empty for a point that nothing sets apart."""
    return ", ".join(f"{name}={value}" for name, value in point.items())


def write_result(result: msgspec.Struct, path: str) -> None:
    """A document as JSON. Raises ``ConfigError`` where the file can't be written."""
    data = msgspec.json.format(msgspec.json.encode(result), indent=2)
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(data + b"\n")
    except OSError as cause:
        raise ConfigError(f"the results can't be written to {path}: {cause}", param="output") from cause


def read_result(path: str) -> Result:
    """Raises ``ConfigError`` for a file that is missing, is not a result, or is of a later format."""
    return read_document(path, Result, "bench", FORMAT, "--output")


def read_document(
    path: str, type: type[Document], command: str, format: int, option: str, param: str | None = None
) -> Document:
    """What ``lsv <command> <option> FILE`` wrote; its key ``lsv_<command>`` is the number of its format.

    Raises ``ConfigError`` about ``param`` for a file that is missing, is not such a document, or is of another format.
    """
    key = f"lsv_{command}"
    try:
        data = Path(path).read_bytes()
        found = msgspec.json.decode(data, type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as cause:
        raise ConfigError(f"{path} can't be read as a result of lsv {command}: {cause}", param=param) from cause
    if found.get(key) != format:
        raise ConfigError(
            f"{path} is not a result that this version of lsv {command} can read: "
            f"{key} must be {format}, got {found.get(key)!r}; write one with {option} FILE",
            param=param,
        )
    try:
        return msgspec.convert(found, type)
    except msgspec.ValidationError as cause:
        raise ConfigError(f"{path} is damaged: {cause}", param=param) from cause
