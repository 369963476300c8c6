"""What ``lsv new plugin`` writes works: its own tests pass."""

import ast
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from string import Template

import pytest


def test_what_the_templates_import_is_there() -> None:
    found = set(imported())
    assert {module for module, _ in found} > {"lsv.offers", "lsv.platform", "lsv_runtime.nn.step"}
    assert [(module, name) for module, name in found if not hasattr(import_module(module), name)] == []


def imported() -> Iterator[tuple[str, str]]:
    """(module, name) for each name of lsv that a template imports."""
    for template in Path(str(files("lsv_scaffold") / "templates")).rglob("*.py.tmpl"):
        source = Template(template.read_text()).safe_substitute(package="own", name="own", class_name="Own")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("lsv"):
                yield from ((str(node.module), alias.name) for alias in node.names)


@pytest.mark.timeout(300)
def test_a_new_quantizer_passes_its_tests(tmp_path: Path, run: Callable) -> None:
    _write_and_test("quantizer", tmp_path, run)


@pytest.mark.row("F-693")
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["model", "platform"])
def test_a_new_plugin_passes_its_tests(kind: str, tmp_path: Path, run: Callable) -> None:
    _write_and_test(kind, tmp_path, run)


def _write_and_test(kind: str, tmp_path: Path, run: Callable) -> None:
    made = run("-m", "lsv", "new", "plugin", "my-thing", "--kind", kind, "--path", str(tmp_path))
    assert made.returncode == 0, made.stderr
    folder = tmp_path / "lsv-my-thing"
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder), path=(folder,), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
