"""Lark grammars of llguidance, which may contain JSON schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from lsv_guidance.schemas.json_text import read_json_prefix

_PARTS = re.compile(
    r'"(?:\\.|[^"\\\n])*"|(?:#|//)[^\n]*|/(?:\\.|[^/\\])+/|<[^<>\s]+>'
    r"|%(?P<directive>json|regex|llguidance)\s*",
    re.DOTALL,
)
"""Parts of a grammar in which ``%json`` has no meaning (texts, comments, patterns, tokens), and ``%json`` itself."""


def rewrite_schemas(grammar: str, rewrite: Callable[[Any], dict[str, Any]]) -> str:
    """Rewrite each schema after ``%json`` in a grammar. llguidance refuses invalid JSON itself."""
    found, done, at = list[str](), 0, 0
    while part := _PARTS.search(grammar, at):
        at = part.end()
        if part["directive"] is None:
            continue
        try:
            value, at = read_json_prefix(grammar, at)
        except (ValueError, RecursionError):
            continue
        if part["directive"] == "json":
            found += [grammar[done : part.end()], json.dumps(_with_options(rewrite(value), value))]
            done = at
    return "".join((*found, grammar[done:]))


def _with_options(schema: dict[str, Any], original: Any) -> dict[str, Any]:
    """The options of the original (``x-guidance``), without those that ignore keywords."""
    given = original.get("x-guidance") if isinstance(original, dict) else None
    return schema if given is None else {**schema, "x-guidance": {**given, "lenient": False, "coerce_one_of": False}}
