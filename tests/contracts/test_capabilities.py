"""What a platform declares is read by core: a capability that nobody asks for would promise something for nothing."""

import ast
from collections.abc import Iterable
from pathlib import Path

from lsv.capabilities import Capabilities

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (ROOT / "core", ROOT / "plugins" / "runtime")
FILES = sorted(file for folder in FOLDERS for file in folder.rglob("*.py") if file.name != "capabilities.py")


def fields_read(sources: Iterable[str]) -> set[str]:
    """The attributes read of something called ``capabilities``, or of what a call of that name returns."""
    nodes = (node for source in sources for node in ast.walk(ast.parse(source)))
    return {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and _is_capabilities(node.value)
    }


def _is_capabilities(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "capabilities"
    return isinstance(node, ast.Name) and node.id == "capabilities"


def test_every_capability_is_read_in_core() -> None:
    read = fields_read(file.read_text(encoding="utf-8") for file in FILES)
    assert set(Capabilities.__struct_fields__) - read == set()


def test_a_capability_that_nobody_reads_is_seen() -> None:
    source = """
def start(capabilities, config, platform):
    capabilities.fork_safe = config.sleep
    return Capabilities(layout=config.layout), capabilities.dtypes, platform.capabilities(0).in_flight
"""
    assert fields_read([source]) == {"dtypes", "in_flight"}
