"""How visits went: counted by kind and end, and what must not have happened kept in a file."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import httpx2

from trials.soak.visits import Failed, Wrong

_MOST_KEPT = 200


class Tally:
    """Counts of one phase. Bad ends are written to ``file``, a JSON object a line, with the seed that draws them."""

    def __init__(self, phase: str, file: Path) -> None:
        self.ends: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self._phase, self._file = phase, file
        self._kept = 0

    def count(self, kind: str, seed: str, error: BaseException | None) -> None:
        end = _end_of(error)
        self.ends[end] += 1
        self.kinds[kind] += 1
        if end != "good" and self._kept < _MOST_KEPT:
            self._kept += 1
            told = {"phase": self._phase, "at": time.strftime("%X"), "kind": kind, "end": end, "seed": seed}
            with self._file.open("a", encoding="utf-8") as lines:
                print(json.dumps({**told, "error": repr(error)[:2000]}), file=lines)

    def total(self) -> int:
        return self.ends.total()


def _end_of(error: BaseException | None) -> str:
    """good, wrong, failed (an error of the server's), broken (a connection without an answer) or hung."""
    if error is None:
        return "good"
    if isinstance(error, TimeoutError | httpx2.TimeoutException):
        return "hung"
    return "wrong" if isinstance(error, Wrong) else "failed" if isinstance(error, Failed) else "broken"
