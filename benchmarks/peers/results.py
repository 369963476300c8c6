"""The file of results: every run and every measurement of the machine's limits, in the order they were made."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Record = dict[str, Any]

DISTURBED = 0.15
"""Cores that others may use on average before a run counts as disturbed."""


@dataclass
class Results:
    """``runs`` have shape, engine, workload, repeat and figures, or an error; ``limits`` are of machine.py.

    ``shapes`` holds the facts of shapes.py by name, so that a report needs no model.
    """

    machine: Record = field(default_factory=dict)
    runs: list[Record] = field(default_factory=list)
    limits: list[Record] = field(default_factory=list)
    shapes: dict[str, Record] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Results:
        """What is in the file; nothing when there is none."""
        return cls(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else cls()

    def write(self, path: Path) -> None:
        fresh = path.with_name(f".{path.name}.tmp")
        fresh.write_text(json.dumps(vars(self), indent=1) + "\n", encoding="utf-8")
        fresh.replace(path)

    def of(self, shape: str, engine: str, workload: str) -> list[Record]:
        """Runs without an error; those that were disturbed only where there is no other."""
        wanted = (shape, engine, workload)
        found = [
            run
            for run in self.runs
            if (run["shape"], run["engine"], run["workload"]) == wanted and not run.get("error")
        ]
        return [run for run in found if not is_disturbed(run)] or found


def is_disturbed(run: Record) -> bool:
    """Whether other processes, or the host of a virtual machine, took part of the cores."""
    return float(run.get("other_cores", 0)) + float(run.get("stolen_cores", 0)) > DISTURBED
