"""The shape of the house: no circles, no crowded folder, and a document that shows what is there."""

import importlib.util
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_MODULES = 20
AUTHORS = {"__init__", "__main__", "capabilities", "config", "hooks", "platform"}


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rooms", ROOT / "tools" / "rooms.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


rooms = load_tool()


@pytest.mark.parametrize("name", rooms.packages())
def test_no_module_imports_itself_through_others(name: str) -> None:
    assert rooms.circles(rooms.module_graph(name)) == []


@pytest.mark.parametrize("name", rooms.packages())
def test_no_room_imports_itself_through_others(name: str) -> None:
    assert rooms.circles(rooms.room_graph(name)) == []


def test_circles_are_seen() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}
    assert rooms.circles(graph) == [["a", "b", "c"]]
    assert rooms.circles({"a": {"b"}, "b": set()}) == []


def test_a_package_counts_beside_its_modules(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text(
        "from lsv_runtime.nn import Linear, sampling\nimport lsv.kv.blocks\ndef f():\n  from lsv.text import stops"
    )
    known = {
        "lsv",
        "lsv_runtime.nn",
        "lsv_runtime.nn.sampling",
        "lsv.kv",
        "lsv.kv.blocks",
        "lsv.text",
        "lsv.text.stops",
    }
    assert rooms.imported(file, known) == {
        "lsv_runtime.nn",
        "lsv_runtime.nn.sampling",
        "lsv.kv.blocks",
        "lsv.text.stops",
    }


def test_no_folder_is_crowded() -> None:
    files = [file for folder in ("core", "plugins", "webui", "tools") for file in (ROOT / folder).rglob("*.py")]
    counts = Counter(file.parent for file in files if file.name != "__init__.py")
    assert {str(folder.relative_to(ROOT)): n for folder, n in counts.items() if n > MAX_MODULES} == {}


def test_the_root_of_core_is_for_authors_of_plugins() -> None:
    assert {file.stem for file in (ROOT / "core" / "lsv").glob("*.py")} == AUTHORS


@pytest.mark.parametrize("document", rooms.DOCUMENTS, ids=lambda document: document.name)
def test_documents_show_the_rooms_and_what_plugins_import(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    assert "<!-- rooms -->" in text or all(f"<!-- {library} -->" in text for library in rooms.LIBRARIES)
    assert rooms.fill_in(text) == text, "python tools/rooms.py --write brings it up to date"
