"""Everything that outlives a request is keyed by its tenant.

The syntax tree shows every container that may grow: of modules, classes, objects, and caches of functions.
``containers.tsv`` says for each what it keeps of requests, and for how long. An unlisted container fails the test.

    start     it is filled from code, settings and checkpoints
    request   it belongs to a call, a step or a request, or holds running requests until they end
    numbers   it holds counts, times, addresses or names of tenants, but no prompts or answers
    pure      it saves a pure function microseconds, less than a client can measure
    tenant    it holds contents under the salt of their tenant; the last column names tests in which one tenant fills it
              and another reads it

A line for a class covers all attributes of its objects, if they live no longer than a start, a call, a step or a
request. For objects that live as long as a server, each attribute has a line.
"""

from __future__ import annotations

import ast
import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REGISTER = Path(__file__).parent / "containers.tsv"
ROOMS = ("core", "plugins", "webui")
NOT_SERVING = (
    "plugins/runtime/lsv_runtime/emulation/", "plugins/testing/", "plugins/bench/", "plugins/doctor/",
    "plugins/scaffold/",
)  # fmt: skip
"""Folders with code that servers do not run."""

MAKERS = {
    "dict", "list", "set", "bytearray", "OrderedDict", "defaultdict", "deque", "Counter", "ChainMap", "Queue",
    "SimpleQueue", "LifoQueue", "PriorityQueue", "WeakKeyDictionary", "WeakValueDictionary", "WeakSet",
}  # fmt: skip
CACHES = {"cache", "lru_cache", "alru_cache"}
CHANGES = {
    "add", "append", "appendleft", "clear", "discard", "extend", "insert", "move_to_end", "pop", "popitem", "popleft",
    "put", "remove", "setdefault", "update",
}  # fmt: skip
OF_OBJECTS = ("start", "request")
LIFETIMES = (*OF_OBJECTS, "numbers", "pure", "tenant")


def name_of(node: ast.expr) -> str:
    """The last name of a callee or decorator: ``deque`` in ``collections.deque[int](maxlen=3)``."""
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def is_empty(value: ast.expr) -> bool:
    """Whether an expression creates a container that may be filled."""
    if isinstance(value, ast.Dict):
        return not value.keys
    if isinstance(value, ast.List | ast.Set):
        return not value.elts
    if not isinstance(value, ast.Call):
        return False
    made = [keyword.value for keyword in value.keywords if keyword.arg == "default_factory"]
    return name_of(value) in MAKERS or any(name_of(one) in MAKERS for one in made)


def is_container(value: ast.expr) -> bool:
    return is_empty(value) or isinstance(
        value, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp
    )


def find_changed(tree: ast.Module) -> set[str]:
    """Expressions that are changed in place in a module, as written there."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            found.add(ast.unparse(node.func.value))
        elif isinstance(node, ast.Assign | ast.Delete | ast.AugAssign):
            targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
            parts = [part for target in targets for part in ast.walk(target)]
            found |= {ast.unparse(part.value) for part in parts if isinstance(part, ast.Subscript)}
            found |= {ast.unparse(target) for target in targets if isinstance(node, ast.AugAssign)}
    return found


def assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The targets of an assignment, each with its value."""
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        yield node.target, node.value
    for target in node.targets if isinstance(node, ast.Assign) else ():
        values = node.value.elts if isinstance(node.value, ast.Tuple) else ()
        if isinstance(target, ast.Tuple) and len(target.elts) == len(values):
            yield from zip(target.elts, values, strict=True)
        else:
            yield target, node.value


class Scan:
    """The containers of a module: ``NAME``, ``function()``, ``Class.NAME`` of the class, ``Class.name`` of objects."""

    def __init__(self, tree: ast.Module) -> None:
        self._changed = find_changed(tree)
        self.shared: list[str] = []
        """Containers that exist once."""
        self.own: list[str] = []
        """Containers of each object of a class."""
        self._read(tree.body, "")

    def _read(self, body: Sequence[ast.stmt], within: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                self._read(node.body, f"{within}{node.name}.")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._read_function(node, within)
            elif isinstance(node, ast.If | ast.Try | ast.With):
                self._read(node.body, within)
            else:
                self._read_names(node, within)

    def _read_names(self, node: ast.stmt, within: str) -> None:
        for target, value in assigned(node):
            if not isinstance(target, ast.Name) or not self._grows(target, value, f"self.{target.id}"):
                continue
            field = within and isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation)
            (self.own if field else self.shared).append(within + target.id)

    def _read_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, within: str) -> None:
        if any(name_of(one) in CACHES for one in node.decorator_list):
            self.shared.append(f"{within}{node.name}()")
        for target, value in (pair for part in ast.walk(node) for pair in assigned(part)) if within else ():
            of_object = isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
            if of_object and self._grows(target, value):
                self.own.append(within + target.attr)

    def _grows(self, target: ast.expr, value: ast.expr, *spelt: str) -> bool:
        names = {ast.unparse(target), *spelt}
        return is_empty(value) or (is_container(value) and bool(names & self._changed))


def scan(text: str) -> Scan:
    return Scan(ast.parse(text))


def read_register() -> dict[str, tuple[str, str]]:
    with REGISTER.open(encoding="utf-8", newline="") as file:
        return {row[0]: (row[1], row[2]) for row in csv.reader(file, delimiter="\t")}


def find_unlisted(place: str, found: Scan, register: dict[str, tuple[str, str]]) -> list[str]:
    """The containers of a module that are not listed."""
    classes = {name for name, (lifetime, _) in register.items() if lifetime in OF_OBJECTS}
    shared = [f"{place}::{name}" for name in found.shared]
    own = [f"{place}::{name}" for name in found.own if f"{place}::{name.rpartition('.')[0]}" not in classes]
    return [name for name in dict.fromkeys([*shared, *own]) if name not in register]


@pytest.fixture(scope="module")
def modules() -> dict[str, Scan]:
    files = [file for room in ROOMS for file in sorted((ROOT / room).rglob("*.py"))]
    places = {str(file.relative_to(ROOT)): file for file in files}
    return {
        place: scan(file.read_text(encoding="utf-8"))
        for place, file in places.items()
        if not place.startswith(NOT_SERVING)
    }


def test_every_container_is_listed(modules: dict[str, Scan]) -> None:
    register = read_register()
    unlisted = [name for place, found in modules.items() for name in find_unlisted(place, found, register)]
    assert not unlisted, f"say in {REGISTER.name} what of requests these keep, and for how long"


def test_the_register_lists_nothing_else(modules: dict[str, Scan]) -> None:
    names = {f"{place}::{name}" for place, found in modules.items() for name in (*found.shared, *found.own)}
    classes = {f"{place}::{name.rpartition('.')[0]}" for place, found in modules.items() for name in found.own}
    assert sorted(read_register().keys() - names - classes) == []


def test_lines_are_complete_and_in_order() -> None:
    register = read_register()
    assert [*register] == sorted(register)
    for name, (lifetime, why) in register.items():
        assert lifetime in LIFETIMES, name
        assert why or lifetime in OF_OBJECTS, name
        assert name.rpartition(".")[0] not in register, f"{name}: its class is listed, too"


def test_contents_are_kept_apart_by_tests_that_exist() -> None:
    for name, (lifetime, tests) in read_register().items():
        for test in tests.split(" ") if lifetime == "tenant" else ():
            place, _, function = test.partition("::")
            assert f"def {function}(" in (ROOT / place).read_text(encoding="utf-8"), f"{name}: there is no {test}"


PLANTED = """
from collections import OrderedDict, deque
from functools import lru_cache

_ANSWERS = {}
_MODES = {"a": 1}
_PROMPTS: dict[str, str] = {"": ""}


def keep(prompt):
    _PROMPTS[prompt] = prompt


@lru_cache(maxsize=4)
def render(prompt):
    return prompt


class Cache:
    recent = deque(maxlen=3)
    kinds = ("a", "b")

    def __init__(self):
        self._one, self._two = OrderedDict(), 3
        self._sizes = [0] * 3
        if True:
            self._three: list[str] = []
"""


def test_planted_offenders_are_found() -> None:
    found = scan(PLANTED)
    assert found.shared == ["_ANSWERS", "_PROMPTS", "render()", "Cache.recent"]
    assert found.own == ["Cache._one", "Cache._three"]
    assert find_unlisted("core/lsv/x.py", found, {"core/lsv/x.py::Cache": ("request", "")}) == [
        "core/lsv/x.py::_ANSWERS", "core/lsv/x.py::_PROMPTS", "core/lsv/x.py::render()", "core/lsv/x.py::Cache.recent",
    ]  # fmt: skip
    assert len(find_unlisted("core/lsv/x.py", found, {"core/lsv/x.py::Cache": ("numbers", "counts")})) == 6
