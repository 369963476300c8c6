"""The program that runs the JSON Schema Test Suite, on a folder with the suite's layout."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[3] / "tools" / "schema_suite.py"


def count(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), str(folder), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def write_group(file: Path, schema: Any, *tests: tuple[Any, bool]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(file.read_text()) if file.exists() else []
    group = {
        "description": f"group {len(known)}",
        "schema": schema,
        "tests": [
            {"description": f"test {number}", "data": data, "valid": valid}
            for number, (data, valid) in enumerate(tests)
        ],
    }
    file.write_text(json.dumps([*known, group]))


def test_schemas_and_instances_are_counted_by_part(tmp_path: Path):
    write_group(tmp_path / "a.json", {"type": "integer"}, (3, True), ("x", False), (1.0, True))
    write_group(tmp_path / "a.json", {"type": "array", "uniqueItems": True}, ([1, 1], False))
    write_group(tmp_path / "optional" / "format" / "b.json", {"format": "date"}, ("2024-02-29", True))
    found = count(tmp_path, "--narrower", "--refused")
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert lines[0].startswith("draft: 1 of 2 schemas followed, 1 refused; instances: 1 let through rightly")
    assert lines[0].endswith("1 kept out rightly, 1 narrower, 0 wrong")
    assert lines[2].startswith("formats: 1 of 1 schemas followed, 0 refused; instances: 1 let through rightly")
    assert lines[3].startswith("all: 2 of 3 schemas followed")
    assert "refused for: uniqueItems 1" in lines
    assert any(line.startswith("refused: a: group 1: ") for line in lines)
    assert "narrower: a: group 0: test 2: 1.0" in lines


@pytest.mark.parametrize("instance", [{"é": 1}, {"a": [1, 2]}, "tab\there", "\U0001f432"])
def test_an_invalid_instance_that_gets_through_is_wrong(tmp_path: Path, instance: Any):
    write_group(tmp_path / "a.json", {}, (instance, False))
    found = count(tmp_path)
    assert found.returncode == 1
    assert "WRONG: a: group 0: test 0: " in found.stdout
    assert "1 wrong" in found.stdout


def test_a_folder_without_tests_is_told(tmp_path: Path):
    found = count(tmp_path)
    assert found.returncode != 0
    assert "name tests/draft2020-12" in found.stderr
