"""What lsv has of the features that users of its predecessors know, one line each, by the tests that hold them.

    python tools/compatibility.py            print how many there are of each state
    python tools/compatibility.py --write    write docs/compatibility.md

The features are rows of tools/compatibility.tsv. A test that holds one carries its row's id
(``@pytest.mark.row("F-195")``), and a row that tests hold works. The table says only what no test can: why a feature
does not apply here, what is missing of one, which are planned, and what of one that works does not apply.
"""

from __future__ import annotations

import ast
import csv
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tools" / "compatibility.tsv"
DOCUMENT = ROOT / "docs" / "compatibility.md"
SAID = ("", "partly", "planned", "not applicable")
"""What the table may say of a row; nothing where tests do. What does not apply may have tests all the same: an option
without effect is taken."""
_INTRODUCTION = """\
# Compatibility

What lsv has of the features that users of vLLM, llm-scaler and the Gaudi fork know. `tools/compatibility.py` writes
this page from the tests: a feature works where tests hold it.
"""


class Row(NamedTuple):
    """A feature: its id, the group it belongs to, what it is called, and what the table says of it."""

    id: str
    group: str
    feature: str
    said: str
    why: str


Held = Mapping[str, Sequence[str]]
"""Row's id → the tests that hold it, as ``file::name``."""


def read_table(path: Path = TABLE) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return [Row(*columns) for columns in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]


def find_tests(root: Path = ROOT / "tests") -> dict[str, list[str]]:
    """The tests that name rows, found in the source: nothing is imported."""
    held: dict[str, list[str]] = {}
    for file in sorted(root.rglob("test_*.py")):
        for test, row in _marks(ast.parse(file.read_text(encoding="utf-8"))):
            held.setdefault(row, []).append(f"{file.relative_to(root.parent)}::{test}")
    return held


def _marks(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Tests and the rows they name, by marks of their own, of some of their parameters, or of the whole file."""
    tests = [node for node in tree.body if isinstance(node, _TESTS) and node.name.lower().startswith("test")]
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            yield from ((test.name, row) for row in _rows(node.value) for test in tests)
    for node in ast.walk(tree):
        if isinstance(node, _TESTS):
            yield from ((node.name, row) for decorator in node.decorator_list for row in _rows(decorator))


_TESTS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _rows(marks: ast.expr) -> Iterator[str]:
    """The rows in an expression, each once."""
    calls = (node for node in ast.walk(marks) if isinstance(node, ast.Call))
    named = (call.args for call in calls if ast.unparse(call.func) == "pytest.mark.row")
    yield from dict.fromkeys(ast.literal_eval(argument) for arguments in named for argument in arguments)


def state(row: Row, held: Held) -> str:
    """What the page says of a row."""
    if row.said in ("not applicable", "partly"):
        return f"{row.said}: {row.why}"
    if row.said:
        return f"{row.said}: {row.why}" if row.why else row.said
    if row.id not in held:
        return "not tested under its name"
    return f"works: {row.why}" if row.why else "works"


def find_faults(rows: Sequence[Row], held: Held) -> list[str]:
    """What does not fit together, a sentence each."""
    faults = [f"{name} holds {id}, which is no row" for id in set(held) - {row.id for row in rows} for name in held[id]]
    for row in rows:
        if row.said not in SAID:
            faults.append(f"{row.id} is said to be {row.said!r}; there are {', '.join(filter(None, SAID))}")
        if row.said in ("partly", "not applicable") and not row.why:
            faults.append(f"{row.id} is said to be {row.said}, and not why")
        if row.said == "planned" and row.id in held:
            faults.append(f"{row.id} is said to be {row.said}, and {held[row.id][0]} holds it")
    faults += [f"{id} is there twice" for id, count in Counter(row.id for row in rows).items() if count > 1]
    return sorted(faults)


def page(rows: Iterable[Row], held: Held) -> str:
    """The document: a table for each group."""
    parts = [_INTRODUCTION]
    for group, members in groupby(rows, key=lambda row: row.group):
        lines = [f"| {row.id} | {_cell(row.feature)} | {_cell(state(row, held))} |" for row in members]
        parts.append("\n".join((f"## {group}\n", "| row | feature | state |", "|---|---|---|", *lines, "")))
    return "\n".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    rows, held = read_table(), find_tests()
    faults = find_faults(rows, held)
    for fault in faults:
        print(fault, file=sys.stderr)
    if "--write" in sys.argv[1:]:
        DOCUMENT.write_text(page(rows, held), encoding="utf-8")
    else:
        for kind, count in Counter(state(row, held).partition(":")[0] for row in rows).most_common():
            print(f"{count:5} {kind}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
