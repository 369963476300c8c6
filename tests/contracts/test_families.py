"""The table of families in docs/tools.md is what tools/templates.py generates from tools/templates.tsv."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from lsv import plugins
from lsv.plugins.catalog import Catalog

ROOT = Path(__file__).resolve().parents[2]
HERMES = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}'
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("templates", ROOT / "tools" / "templates.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


templates = load_tool()


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return plugins.load(None).catalog


def test_the_document_has_the_table(catalog: Catalog) -> None:
    """After a change: python tools/templates.py build/published/templates --write"""
    document = templates.DOCUMENT.read_text(encoding="utf-8")
    assert templates.put_into(document, templates.describe(templates.read_table(), catalog)) == document


def test_every_template_that_writes_calls_is_read() -> None:
    assert [family.template for family in templates.read_table() if family.unread] == []


def test_a_template_is_tried_as_a_server_would(tmp_path: Path, catalog: Catalog) -> None:
    (tmp_path / "mine.jinja").write_text(HERMES.replace("tool_call>", "act>"))
    ((name, source),) = templates.read_templates(tmp_path)
    family = templates.try_family(catalog, name, source)
    assert (family.template, family.calls, family.unread) == ("mine", "derived", "")
    assert "two calls" in family.read
    assert family.derived == family.read


def test_a_template_that_has_changed_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "Qwen3-Coder.jinja").write_text(HERMES)
    assert templates.main([str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "Qwen3-Coder: Family" in told
    assert "1 templates, 1 write calls, of 1 all forms are read; 1 differ" in told
