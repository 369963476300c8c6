"""The rooms of core as the imports draw them: which package knows which, and what plugins import.

    python tools/rooms.py            print both, and the figures of the graph
    python tools/rooms.py --write    put them into docs/architecture.md, between their markers

Every import counts: those under ``TYPE_CHECKING`` and those inside functions too. A room is a package of core, or a
module that lies beside the packages. ``lsv_base`` is below all of them, so the picture leaves it out.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = (ROOT / "docs" / "architecture.md", ROOT / "docs" / "plugin-api.md")
LIBRARIES = ("lsv", "lsv_base", "lsv_runtime")
"""What plugins may import."""

Graph = dict[str, set[str]]


def sources(name: str) -> dict[str, Path]:
    """Package name -> its modules, by dotted name."""
    base = next(path.parent for path in _roots() if path.name == name)
    return {_dotted(file.relative_to(base)): file for file in sorted((base / name).rglob("*.py"))}


def _roots() -> Iterator[Path]:
    yield ROOT / "core" / "lsv"
    yield ROOT / "core" / "lsv_base"
    yield ROOT / "webui" / "lsv_webui"
    yield from sorted((ROOT / "plugins").glob("*/lsv_*"))
    yield ROOT / "tools" / "demo" / "demo_training"
    yield ROOT / "tools" / "reliability" / "trials"


def packages() -> list[str]:
    """``lsv``, the library below it, the packages of all plugins in the tree, and those of tools."""
    return [root.name for root in _roots()]


def _dotted(path: Path) -> str:
    return ".".join(part for part in path.with_suffix("").parts if part != "__init__")


def imported(file: Path, known: Iterable[str]) -> set[str]:
    """Which of the ``known`` modules a file imports, wherever in it."""
    names = frozenset(known)
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {module for node in ast.walk(tree) for module in _modules(node, names)} & names


def _modules(node: ast.AST, known: Set[str]) -> Iterator[str]:
    """``from lsv.kv import blocks`` imports a module from its package, ``from lsv.kv import KVSpec`` the package."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        for alias in node.names:
            module = f"{node.module}.{alias.name}"
            yield module if module in known else str(node.module)


def module_graph(name: str) -> Graph:
    modules = sources(name)
    return {module: imported(file, modules) - {module} for module, file in modules.items()}


def room_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def room_graph(name: str) -> Graph:
    """The same between rooms; ``python -m`` entry points and the package itself stand for nothing."""
    rooms: Graph = {}
    for module, others in module_graph(name).items():
        if module not in (name, f"{name}.__main__"):
            rooms.setdefault(room_of(module), set()).update(room_of(other) for other in others if other != name)
    return {room: others - {room} for room, others in rooms.items()}


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other, each sorted; none where the graph has no circle."""
    reached = {node: _reach(node, graph) for node in graph}
    found = {tuple(sorted(o for o in reached[n] if n in reached[o])) for n in graph if n in reached[n]}
    return [list(group) for group in sorted(found)]


def _reach(start: str, graph: Mapping[str, Iterable[str]]) -> set[str]:
    found: set[str] = set()
    left = list(graph.get(start, ()))
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left.extend(graph.get(node, ()))
    return found


def floors(graph: Graph) -> dict[str, int]:
    """How many rooms stand below each, counted along the longest way; the graph has no circle."""
    levels: dict[str, int] = {}

    def level(node: str) -> int:
        if node not in levels:
            levels[node] = 1 + max((level(other) for other in graph[node]), default=-1)
        return levels[node]

    return {node: level(node) for node in graph}


def plugin_surface(library: str) -> dict[str, set[str]]:
    """Module of a library -> the plugins that import it."""
    modules = sources(library)
    users: dict[str, set[str]] = defaultdict(set)
    for name in (name for name in packages() if name.startswith("lsv_") and name not in LIBRARIES):
        for file in sources(name).values():
            for module in imported(file, modules):
                users[module].add(name.removeprefix("lsv_"))
    return dict(sorted(users.items()))


def picture() -> str:
    """A Mermaid drawing of the rooms. An arrow that a longer way says too is left out."""
    graph = room_graph("lsv")
    lines = ["```mermaid", "flowchart TB"]
    for room, others in sorted(graph.items()):
        lines += [
            f"    {_short(room)} --> {_short(other)}"
            for other in sorted(others)
            if not any(other in _reach(between, graph) for between in others - {other})
        ]
    return "\n".join([*lines, "```"])


def _short(room: str) -> str:
    return room.removeprefix("lsv.")


def surface_table(library: str) -> str:
    """What plugins import, as a table."""
    rows = [f"| `{module}` | {', '.join(sorted(users))} |" for module, users in plugin_surface(library).items()]
    return "\n".join(["| module | imported by |", "|---|---|", *rows])


def fill_in(text: str) -> str:
    """``text`` with what stands between the markers drawn anew."""
    made = {"rooms": picture, **{library: partial(surface_table, library) for library in LIBRARIES}}
    for name, make in made.items():
        if f"<!-- {name} -->" in text:
            pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
            drawn = make()
            text = re.sub(pattern, lambda match, drawn=drawn: f"{match[1]}{drawn}\n{match[2]}", text, flags=re.DOTALL)
    return text


def main() -> None:
    if sys.argv[1:] == ["--write"]:
        for document in DOCUMENTS:
            document.write_text(fill_in(document.read_text(encoding="utf-8")), encoding="utf-8")
        return
    graph = room_graph("lsv")
    arrows = sum(len(others) for others in graph.values())
    print(picture(), *map(surface_table, LIBRARIES), sep="\n\n", end="\n\n")
    if found := circles(graph):
        print(f"{len(graph)} rooms, {arrows} arrows, circles: {found}")
    else:
        print(f"{len(graph)} rooms on {1 + max(floors(graph).values())} floors, {arrows} arrows, no circle")


if __name__ == "__main__":
    main()
