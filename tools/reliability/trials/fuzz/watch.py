"""Runs targets in processes of their own, notices which input ends or silences them, and keeps what was found."""

from __future__ import annotations

import json
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from trials.fuzz.target import Inputs
from trials.fuzz.targets import find_target

_PATIENCE = 30.0
"""Seconds an input may take: far more than any reader needs, since the machine may be busy."""
_START_PATIENCE = 180.0


@dataclass
class Report:
    """How a target fared: how many inputs, and for each place in the source the first input that failed there."""

    target: str
    inputs: int = 0
    found: dict[str, Path] = field(default_factory=dict)


class Watch:
    """Runs one target for a while and writes what it finds to ``folder``."""

    def __init__(self, name: str, seed: int, folder: Path) -> None:
        self._name, self._seed, self._folder = name, seed, folder
        self._left = 0.0
        self.report = Report(name)

    def run(self, seconds: float) -> Report:
        """Until the time is over, imports not counted. A process that an input ends or silences is replaced by one that
        begins behind that input.
        """
        self._left = seconds
        while self._left > 0:
            self._run_process()
        return self.report

    def _run_process(self) -> None:
        first = self.report.inputs
        command = [sys.executable, "-m", "trials.fuzz.run", self._name, str(self._seed), str(first)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            try:
                why = self._listen(process.stdout)
            finally:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(2)
                except subprocess.TimeoutExpired:
                    process.kill()
        if why and self.report.inputs == first:
            raise RuntimeError(f"target {self._name} {why} before its first input; run it alone: {' '.join(command)}")
        if why:
            self._keep(self.report.inputs - 1, why, f"The process {why}.")

    def _listen(self, output: IO[bytes]) -> str:
        """Until the time is over, or why it ended before."""
        patience, rest, began = _START_PATIENCE, b"", time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while self._left > 0:
                if not selector.select(patience):
                    return f"was silent for {patience:g} s"
                data = output.read1(1 << 16)  # type: ignore[attr-defined]
                if not data:
                    return "ended"
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._hear(line)
                if patience == _PATIENCE:
                    self._left -= time.monotonic() - began
                began, patience = time.monotonic(), _PATIENCE
        return ""

    def _hear(self, line: bytes) -> None:
        try:
            told: Mapping[str, Any] = json.loads(line)
            self.report.inputs = told["number"] + 1
        except (ValueError, TypeError, KeyError):
            return  # something else that printed
        if "place" in told:
            self._keep(told["number"], told["place"], told["error"])

    def _keep(self, number: int, place: str, error: str) -> None:
        """Write an input, and beside it what happened and how to replay it, unless the same happened before."""
        if place in self.report.found:
            return
        file = self._folder / f"{self._name}-{self._seed}-{number}"
        self.report.found[place] = file
        file.write_bytes(Inputs(find_target(self._name), self._seed).make(number))
        replay = f"PYTHONPATH=tools/reliability:tools/demo python -m trials.fuzz.replay {self._name} {file}"
        file.with_name(f"{file.name}.txt").write_text(f"{place}\n\n{replay}\n\n{error}\n", encoding="utf-8")
