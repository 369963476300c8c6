"""What docs/reliability.md says of tests is true: they exist, and every point has one or says that it is not held."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
POINT = re.compile(r"^\*\*(\d+)\. ", flags=re.MULTILINE)


def text() -> str:
    return (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


def names(file: Path) -> set[str]:
    """Functions and classes of a module, and what it assigns: state machines become tests by an assignment."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if file.is_file() else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def missing(document: str) -> list[str]:
    return [f"{file}::{name}" for file, name in NAMED.findall(document) if name not in names(ROOT / file)]


def test_every_test_that_is_named_exists() -> None:
    assert missing(text()) == []


def test_what_is_gone_is_seen() -> None:
    here = "tests/contracts/test_reliability.py"
    assert missing(f"`{here}::test_what_is_gone_is_seen`, `{here}::test_gone`, `tests/gone.py::test_gone`") == [
        f"{here}::test_gone", "tests/gone.py::test_gone",
    ]  # fmt: skip


def test_there_are_twenty_points_each_with_a_test() -> None:
    _, *points = POINT.split(text())
    assert [int(number) for number in points[::2]] == list(range(1, 21))
    for number, point in zip(points[::2], points[1::2], strict=True):
        assert NAMED.search(point.partition("\n#")[0]), f"point {number} names no test"
