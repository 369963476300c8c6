"""Every hook is documented (its signature, and an example), and somebody implements it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPECS = [ROOT / "core" / "lsv" / "plugins" / "hookspecs.py", *sorted((ROOT / "plugins").rglob("hookspecs.py"))]
DOCS = (ROOT / "docs" / "hooks.md").read_text(encoding="utf-8")


def hooks() -> dict[str, str]:
    """Hook → its signature as Python writes it."""
    found = {}
    for file in SPECS:
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("lsv_"):
                found[node.name] = f"{node.name}({ast.unparse(node.args)}) -> {ast.unparse(node.returns)}"  # type: ignore[arg-type]
    return found


def test_there_are_hooks() -> None:
    assert {"lsv_models", "lsv_request_finished", "lsv_api_app_created"} <= set(hooks())


@pytest.mark.parametrize("name", hooks())
def test_a_hook_is_documented(name: str) -> None:
    section = re.search(rf"^### `{name}`\n(.*?)(?=^##|\Z)", DOCS, re.MULTILINE | re.DOTALL)
    assert section, f"docs/hooks.md has no section ### `{name}`"
    assert f"`{hooks()[name]}`" in section.group(1)
    example = re.search(r"```python\n(.*?)```", section.group(1), re.DOTALL)
    assert example, f"docs/hooks.md shows no example of {name}"
    assert f"def {name}(" in example.group(1)
    ast.parse(example.group(1))


def test_no_section_without_a_hook() -> None:
    documented = set(re.findall(r"^### `(lsv_\w+)`", DOCS, re.MULTILINE))
    assert documented == set(hooks())


def implemented() -> set[str]:
    """Hooks that a module of the tree or of the plugin from outside implements."""
    found = set()
    for folder in ("core", "plugins", "webui", "tests/third_party"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef) and any("hookimpl" in ast.unparse(d) for d in node.decorator_list):
                    found.add(node.name)
    return found


def test_every_hook_has_an_implementer() -> None:
    assert set(hooks()) - implemented() == set()
