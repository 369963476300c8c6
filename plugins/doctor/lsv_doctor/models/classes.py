"""The classes of transformers that generate text, as the table beside this module knows them: one line each.

The first line of the table is the release of transformers that they were checked with (``lsv_doctor.models.release``).
``tools/models.py`` writes the table, from the classes that transformers has and from what ``lsv models --check`` found.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from lsv.settings.spelling import suggest
from lsv_base.errors import ConfigError
from lsv_doctor.models.orders import COLUMNS, Cell, Order, State, TextModel, Verdict

TABLE = Path(__file__).with_name("classes.tsv")
Kind = Literal["causal", "seq2seq", "wrapper"]
"""How the tiny checkpoint is made: a decoder, a model with an encoder of texts, or a text model with more around it."""
Mapped = Literal["causal", "seq2seq", "image-text", "multimodal"]
"""A mapping of transformers' ``AutoModel`` classes that names the class."""
_FIRST = ("architecture", "kind", "mappings", "family", "text_model", "state")
_FIELDS = (*_FIRST, *COLUMNS, "detail", "notes")


class Class(msgspec.Struct, frozen=True, kw_only=True):
    """A class of transformers, and what the last check found."""

    architecture: str
    kind: Kind
    mappings: tuple[Mapped, ...] = ()
    family: str
    """The ``model_type`` that its tiny checkpoint has."""
    text_model: TextModel = ""
    state: State | Literal[""] = ""
    """Empty: no check has run."""
    cells: Mapping[str, Cell] = {}
    """By column of ``COLUMNS``; a column that is missing had no run."""
    detail: str = ""
    notes: str = ""
    """Why cells are not ``yes``, or what of them is."""

    @property
    def order(self) -> Order:
        return Order(self.architecture, self.family, self.kind == "seq2seq", self.kind == "wrapper")

    def with_verdict(self, verdict: Verdict) -> Class:
        return msgspec.structs.replace(
            self, text_model=verdict.text_model, state=verdict.state, cells=_known(verdict.cells),
            detail=verdict.detail, notes="; ".join(f"{column}: {why}" for column, why in verdict.reasons.items()),
        )  # fmt: skip


def _known(cells: Mapping[str, Cell]) -> dict[str, Cell]:
    return {column: cell for column in COLUMNS if (cell := cells.get(column, ""))}


def read_classes(path: Path = TABLE) -> dict[str, Class]:
    """The classes by name."""
    with path.open(encoding="utf-8", newline="") as file:
        file.readline()  # the release
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return {row["architecture"]: _read(row) for row in rows}


def _read(row: Mapping[str, Any]) -> Class:
    given: dict[str, Any] = {name: text for name, text in row.items() if name not in COLUMNS}
    cells = {column: row[column] for column in COLUMNS if row[column]}
    return msgspec.convert({**given, "mappings": given["mappings"].split(), "cells": cells}, Class)


def write_classes(classes: Iterable[Class], release: str, path: Path = TABLE) -> None:
    """Write the table. ``release`` names the transformers that checked it, such as 5.24."""
    lines = [f"# transformers {release}", "\t".join(_FIELDS)]
    lines += ["\t".join(_cells(one)) for one in classes]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _cells(one: Class) -> Iterable[str]:
    for name in _FIELDS:
        if name in COLUMNS:
            yield one.cells.get(name, "")
        else:
            value = getattr(one, name)
            yield " ".join(value if isinstance(value, tuple) else value.split())


def choose(classes: Mapping[str, Class], names: Iterable[str]) -> list[Class]:
    """Those that are named by class or ``model_type``, all without names. Raises ``ConfigError`` for an unknown one."""
    known = {one.family: one for one in classes.values()} | dict(classes)
    chosen = {}
    for name in names:
        if name not in known:
            raise ConfigError(
                f"transformers has no class or model_type {name!r} that generates text{suggest(name, known)}"
            )
        chosen[known[name].architecture] = known[name]
    return list(chosen.values()) if chosen else list(classes.values())
