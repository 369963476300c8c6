"""``make test-newest`` shows which dependencies are newer in another environment."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("newest", ROOT / "tools" / "newest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


newest = load()


def test_dependencies_for_use_and_development_are_known_and_no_optional_ones() -> None:
    found = newest.dependencies()
    assert {"transformers", "torch", "pytest", "ruff"} <= set(found)
    assert not {"ray", "xgrammar", "lsv"} & set(found)


def test_an_environment_is_read_without_running_it() -> None:
    assert newest.installed(Path(sys.prefix)).keys() >= {"transformers", "pytest", "typing-extensions"}


def test_only_what_differs_is_shown() -> None:
    here = dict.fromkeys(newest.dependencies(), "1.0")
    assert list(newest.compare(here, here)) == []
    (line,) = newest.compare(here, {**here, "transformers": "2.0"})
    assert line.split() == ["transformers", "1.0", "->", "2.0"]
