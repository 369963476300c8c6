"""``lsv trace``: the engine's steps and what torch has recorded, by one clock."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from lsv_bench.commands import trace


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_clocks_are_one(tmp_path: Path, name: str) -> None:
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1},
        {"ph": "X", "name": "step", "ts": 1_000_000.0, "dur": 50.0},
    ]
    recorded = {
        "baseTimeNanoseconds": 900_000_000,
        "traceEvents": [{"ph": "X", "name": "layer", "ts": 100_010.0}, {"ph": "M", "name": "thread_name"}],
    }
    trace.write(tmp_path / name, events, [recorded])
    data = (tmp_path / name).read_bytes()
    found = json.loads(gzip.decompress(data) if name.endswith(".gz") else data)["traceEvents"]
    assert {event["name"]: event.get("ts") for event in found} == {
        "process_name": None, "step": 0.0, "layer": 10.0, "thread_name": None,
    }  # fmt: skip
