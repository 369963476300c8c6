"""Structural tags as xgrammar reads them, with schemas and patterns that it follows exactly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from lsv.request import structural_tag as tags
from lsv.request.structural_tag import Format
from lsv_xgrammar.schemas import NotFollowed, exact


def as_json(root: Format, special: Sequence[str]) -> str:
    """The newer notation. Raises ``NotFollowed``, also for marks with special tokens, which xgrammar never allows."""
    return json.dumps({"type": "structural_tag", "format": _write(root, special)})


def _write(node: Format, special: Sequence[str]) -> dict[str, Any]:
    _check_marks(node, special)
    found: dict[str, Any] = {**msgspec.to_builtins(node)}
    if isinstance(node, tags.JsonSchema):
        text = json.dumps(node.json_schema)
        found["json_schema"] = json.loads(exact(text))
    if isinstance(node, tags.Grammar) and "::=" not in node.grammar:
        raise NotFollowed("a grammar in a structural tag must be GBNF")
    for name in ("elements", "tags"):
        if name in found:
            found[name] = [_write(one, special) for one in tags.parts(node)]
    if "content" in found:
        found["content"] = _write(tags.parts(node)[0], special)
    return found


def _check_marks(node: Format, special: Sequence[str]) -> None:
    marks: tuple[str, ...] = ()
    if isinstance(node, tags.Tag):
        marks = (node.begin, *node.ends)
    elif isinstance(node, tags.ConstString):
        marks = (node.value,)
    for mark in marks:
        if any(text in mark for text in special):
            raise NotFollowed(f"the back end xgrammar can't write the special token in {mark[:64]!r}")
