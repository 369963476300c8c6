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

from lsv.errors import ConfigError
from lsv.settings.spelling import suggest
from lsv_doctor.models.orders import Order, State, Verdict

TABLE = Path(__file__).with_name("classes.tsv")
Kind = Literal["causal", "seq2seq"]
_YES = "yes"


class Class(msgspec.Struct, frozen=True, kw_only=True):
    """A class of transformers, and what a check has found of it last."""

    architecture: str
    kind: Kind
    family: str
    """The ``model_type`` that its tiny checkpoint has."""
    state: State | Literal[""] = ""
    """Empty: nobody has checked it yet."""
    quantised: bool = False
    parallel: bool = False
    detail: str = ""

    @property
    def order(self) -> Order:
        return Order(self.architecture, self.family, self.kind == "seq2seq")

    @property
    def counts(self) -> bool:
        """Whether it takes part in the share of classes that run."""
        return self.state != "media"

    def with_verdict(self, verdict: Verdict) -> Class:
        return msgspec.structs.replace(
            self, state=verdict.state, quantised=verdict.quantised, parallel=verdict.parallel, detail=verdict.detail
        )


def read_classes(path: Path = TABLE) -> dict[str, Class]:
    """The classes by name."""
    with path.open(encoding="utf-8", newline="") as file:
        file.readline()  # the release
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return {row["architecture"]: _read(row) for row in rows}


def _read(row: Mapping[str, Any]) -> Class:
    return msgspec.convert(
        {name: text == _YES if name in ("quantised", "parallel") else text for name, text in row.items()}, Class
    )


def write_classes(classes: Iterable[Class], release: str, path: Path = TABLE) -> None:
    """Write the table. ``release`` names the transformers that checked it, such as 5.24."""
    lines = [f"# transformers {release}", "\t".join(Class.__struct_fields__)]
    lines += ["\t".join(_cell(getattr(one, name)) for name in one.__struct_fields__) for one in classes]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _cell(value: str | bool) -> str:
    return (_YES if value else "") if isinstance(value, bool) else " ".join(value.split())


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
