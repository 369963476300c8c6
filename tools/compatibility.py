"""What lsv has of the features that users of its predecessors know, one line each, by the tests that hold them.

    python tools/compatibility.py            print how many rows there are of each state
    python tools/compatibility.py --tests    print the tests of each row and what each of them proves
    python tools/compatibility.py --write    write docs/compatibility.md

The features are rows of tools/compatibility.tsv. A test that holds one carries its row's id
(``@pytest.mark.row("F-195")``). The word for a row follows from what its tests started when they ran, which
``tests/evidence.json`` keeps (``tools/suite/suite/evidence.py``). The table says only what no test can: why a feature
does not apply here, what is missing of one, which are planned, and what of one that works does not apply.
"""

from __future__ import annotations

import ast
import csv
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tools" / "compatibility.tsv"
EVIDENCE = ROOT / "tests" / "evidence.json"
DOCUMENT = ROOT / "docs" / "compatibility.md"
SAID = ("", "partly", "planned", "not applicable")
"""What the table may say of a row; nothing where tests do. What does not apply may have tests all the same: an option
without effect is taken."""
_INTRODUCTION = """\
# Compatibility

What lsv has of the features that users of vLLM, llm-scaler and the Gaudi fork know. `tools/compatibility.py` writes
this page from the tests of each row, by what these started when they last ran:

| state | what stands behind it |
|---|---|
| works | a test started an engine, a server or a command on a device that was there, or called the feature's own code |
| emulated | tests ran a platform's code without its device; [platforms.md](platforms.md) says what has run on cards |
| not run | its tests were not run when the words were last derived: they are slow, or need a package |
| parsed | tests read the option or the launch line, up to the configuration of an engine; nothing was started |
| partly | some of it is missing, as the row says |
| not applicable | lsv does not have it, for the reason that the row gives |
"""

WORKS, EMULATED, PARSED, NOT_RUN = "works", "emulated", "parsed", "not run"
_WORDS = (WORKS, EMULATED, PARSED, NOT_RUN)
"""The best proof first."""
_DEVICES = {"lsv_cuda": "cuda", "lsv_hpu": "hpu", "lsv_rocm": "rocm", "lsv_triton": "cuda", "lsv_xpu": "xpu"}
"""Packages whose code is for a device that no test machine has, and the name of its platform."""
_CORE = ("lsv", "lsv_base")
_CONFIGURES = {
    *(f"lsv.{name}" for name in ("cli", "config", "hooks", "offers", "plugins", "resolve", "settings")),
    "lsv_base.errors",
    "lsv_base.version",
}
"""Packages whose code ends with the configuration of an engine."""


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
        text = file.read_text(encoding="utf-8")
        for test, row in _marks(ast.parse(text)) if _MARK in text else ():
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
_MARK = "pytest.mark.row"


def _rows(marks: ast.expr) -> Iterator[str]:
    """The rows in an expression, each once."""
    calls = (node for node in ast.walk(marks) if isinstance(node, ast.Call))
    named = (call.args for call in calls if ast.unparse(call.func) == _MARK)
    yield from dict.fromkeys(ast.literal_eval(argument) for arguments in named for argument in arguments)


Started = Mapping[str, Mapping[str, Sequence[str]]]
"""What tests started, by ``file::name`` and by speed (fast or slow): see ``suite.evidence``."""


def read_evidence(path: Path = EVIDENCE) -> Started:
    return json.loads(path.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def judge(test: str, evidence: Started) -> str:
    """What a test proves of its rows."""
    if test not in evidence:
        return NOT_RUN
    started = {thing for things in evidence[test].values() for thing in things}
    words = {_judge_start(thing) for thing in started} or {_judge_code(test.partition("::")[0])}
    return min(words, key=_WORDS.index)


def _judge_start(thing: str) -> str:
    """What it proves that a test started ``engine cpu``, ``command xpu emulated`` …"""
    kind, *platform = thing.split()
    if kind == "settings":
        return PARSED
    if "emulated" in platform:
        return EMULATED
    absent = kind == "command" and set(platform) & set(_DEVICES.values())  # such a command ends by saying so
    return PARSED if absent else WORKS


def _judge_code(file: str) -> str:
    """What a test proves that starts nothing, by the packages that its file imports."""
    packages = find_imports(ROOT / file)
    if packages & _DEVICES.keys():
        return EMULATED
    own = {name for name in packages if name.partition(".")[0].partition("_")[0] == "lsv"}
    return WORKS if own - {"lsv_testing", *_CONFIGURES} else PARSED


@cache
def find_imports(file: Path) -> frozenset[str]:
    """Packages that a test file and the test files it imports by name import, such as ``lsv.kv`` and ``lsv_cpu``."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {_package(name.name) for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(_package(f"{node.module}.{node.names[0].name}" if node.module in _CORE else str(node.module)))
        elif isinstance(node, ast.ImportFrom) and node.module:
            beside = file.parents[node.level - 1].joinpath(*node.module.split(".")).with_suffix(".py")
            found |= find_imports(beside) if beside.exists() else frozenset()
    return frozenset(found)


def _package(module: str) -> str:
    """``lsv.kv`` of ``lsv.kv.manager``, ``lsv_cpu`` of ``lsv_cpu.plugin``."""
    first, *rest = module.split(".")
    return ".".join((first, *rest[:1])) if first in _CORE else first


def state(row: Row, held: Held, evidence: Started) -> str:
    """What the page says of a row."""
    if row.said:
        return f"{row.said}: {row.why}" if row.why else row.said
    word = min((judge(test, evidence) for test in held.get(row.id, ())), key=_WORDS.index, default=NOT_RUN)
    return f"{word}: {row.why}" if row.why and word != NOT_RUN else word


def find_faults(rows: Sequence[Row], held: Held, evidence: Started) -> list[str]:
    """What does not fit together, a sentence each."""
    faults = [f"{name} holds {id}, which is no row" for id in set(held) - {row.id for row in rows} for name in held[id]]
    for row in rows:
        if row.said not in SAID:
            faults.append(f"{row.id} is said to be {row.said!r}; there are {', '.join(filter(None, SAID))}")
        if row.said in ("partly", "not applicable") and not row.why:
            faults.append(f"{row.id} is said to be {row.said}, and not why")
        if row.said == "planned" and row.id in held:
            faults.append(f"{row.id} is said to be {row.said}, and {held[row.id][0]} holds it")
        if not row.said and row.id not in held:
            faults.append(f"{row.id} has no test: mark one")
    faults += [f"{id} is there twice" for id, count in Counter(row.id for row in rows).items() if count > 1]
    return sorted(faults)


def page(rows: Iterable[Row], held: Held, evidence: Started) -> str:
    """The document: a table for each group."""
    parts = [_INTRODUCTION]
    for group, members in groupby(rows, key=lambda row: row.group):
        lines = [f"| {row.id} | {_cell(row.feature)} | {_cell(state(row, held, evidence))} |" for row in members]
        parts.append("\n".join((f"## {group}\n", "| row | feature | state |", "|---|---|---|", *lines, "")))
    return "\n".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def print_tests(rows: Iterable[Row], held: Held, evidence: Started) -> None:
    """The state of each row, below it its tests with what each proves."""
    for row in rows:
        print(f"{row.id} {row.feature}: {state(row, held, evidence)}")
        for test in held.get(row.id, ()):
            print(f"    {judge(test, evidence)}: {test}")


def main() -> int:
    rows, held, evidence = read_table(), find_tests(), read_evidence()
    faults = find_faults(rows, held, evidence)
    for fault in faults:
        print(fault, file=sys.stderr)
    if "--write" in sys.argv[1:]:
        DOCUMENT.write_text(page(rows, held, evidence), encoding="utf-8")
    elif "--tests" in sys.argv[1:]:
        print_tests(rows, held, evidence)
    else:
        for word, count in Counter(state(row, held, evidence).partition(":")[0] for row in rows).most_common():
            print(f"{count:5} {word}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
