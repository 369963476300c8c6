"""Back ends go ahead of their answers, as far as masks let them, and come back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lsv.grammars.grammar import GrammarBackend, rewindable
from lsv.request.structured import StructuredOutputsParams
from lsv_guidance.backend import GuidanceBackend
from lsv_testing.grammars.walk import BYTES, allowed, check_ahead

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 9},
        "age": {"type": "integer", "minimum": 3, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["kind", "tall"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
TAGS = {
    "type": "structural_tag",
    "structures": [{"begin": "<sum>", "schema": {"type": "integer"}, "end": "</sum>"}],
    "triggers": ["<sum"],
}
FORMS: dict[str, dict[str, Any]] = {
    "json": {"json": json.dumps(SCHEMA)},
    "object": {"json_object": True},
    "regex": {"regex": "[a-c]{2,20}x?é"},
    "choice": {"choice": ["maybe", "maybe not", "never"]},
    "grammar": {"grammar": 'root ::= "(" root ")" | "a"+'},
    "tags": {"structural_tag": json.dumps(TAGS)},
}


@pytest.fixture(scope="module", params=["guidance", "xgrammar"])
def backend(request: pytest.FixtureRequest) -> GrammarBackend:
    if request.param == "guidance":
        return GuidanceBackend(BYTES)
    pytest.importorskip("xgrammar")
    from lsv_xgrammar.backend import XGrammarBackend

    return XGrammarBackend(BYTES)


@pytest.mark.parametrize("form", FORMS)
def test_a_matcher_is_where_it_was_after_it_went_ahead(backend: GrammarBackend, form: str) -> None:
    grammar = backend.compile(StructuredOutputsParams(**FORMS[form]))
    assert max(check_ahead(grammar, seed) for seed in range(4)) > 4


def test_what_goes_wrong_ahead_is_taken_back() -> None:
    """llguidance can't take anything back once a limit is met: the matcher goes the whole way again."""
    grammar = GuidanceBackend(BYTES).compile(StructuredOutputsParams(regex="[a-c]{2,20}x"))
    matcher = rewindable(grammar.begin())
    assert matcher is not None
    assert matcher.accept(b"ab")
    before = allowed(matcher)
    for count in (2, 0):
        assert matcher.advance(b"cabx"[:count]) == count
        matcher._matcher.consume_token(ord("z"))  # type: ignore[attr-defined]
        assert allowed(matcher) == []
        assert matcher.fault is not None
        matcher.rollback(count)
        assert (allowed(matcher), matcher.fault) == (before, None)
    assert matcher.accept(b"cx")
    assert matcher.finished


@pytest.mark.parametrize(
    ("terms", "rewinds"), [("", True), ('[suffix="!"]', True), ("[max_tokens=3]", False), ('[stop="!"]', False)]
)
def test_what_llguidance_cannot_take_back_is_not_followed_ahead(terms: str, rewinds: bool) -> None:
    lark = f'start: word "." word\nword{terms}: /[ab]+/\n'
    grammar = GuidanceBackend(BYTES).compile(StructuredOutputsParams(grammar=lark))
    assert (rewindable(grammar.begin()) is not None) is rewinds
    if rewinds:
        assert max(check_ahead(grammar, seed) for seed in range(4)) > 2
