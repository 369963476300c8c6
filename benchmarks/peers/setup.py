"""An engine ready to be started: its program, the model's files, and the command lines made of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engines import Engine
from shapes import Shape
from workloads import Room


@dataclass(frozen=True)
class Setup:
    """``program`` is the interpreter of the engine's environment or, for an engine that is no Python, its server."""

    engine: Engine
    program: str
    model: Path
    shape: Shape
    threads: int
    room: Room

    def command(self, parts: Sequence[str], **more: str) -> list[str]:
        """A command line with the names in braces filled in, behind the environment the engine wants."""
        return ["env", *self._environment(), *self.fill(parts, **more)]

    def fill(self, parts: Sequence[str], **more: str) -> list[str]:
        # a program that is no interpreter is driven from this one
        python = self.program if Path(self.program).name.startswith("python") else sys.executable
        names = {"program": self.program, "python": python, "model": str(self.model), **self._numbers()}
        return [part.format(**names, **more) for part in parts]

    def _environment(self) -> list[str]:
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: self.threads]))
        variables = {
            "OMP_NUM_THREADS": str(self.threads),
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            **self.engine.environment,
        }
        return [f"{name}={value.format(cores=cores, **self._numbers())}" for name, value in variables.items()]

    def _numbers(self) -> dict[str, str]:
        room = self.room
        cells = max(24576, room.sequences * 256, room.context + 64)
        numbers = {"threads": self.threads, "cells": cells, "sequences": room.sequences, "kv_gib": room.kv_gib}
        return {name: str(number) for name, number in numbers.items()}
