"""Every grammar back end over a table of JSON schemas: each is followed exactly, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from lsv.grammars.grammar import Grammar, GrammarBackend
from lsv.offers import load_object
from lsv.request.structured import StructuredOutputsParams
from lsv_base.errors import BadRequest
from lsv_testing.grammars.schemas import CASES, Case
from lsv_testing.grammars.walk import BYTES, draw, follows

BACKENDS = {"guidance": "lsv_guidance.backend:GuidanceBackend", "xgrammar": "lsv_xgrammar.backend:XGrammarBackend"}
FOLLOWED = {"guidance": 195, "xgrammar": 100}
"""How many schemas of the table each follows, at least."""
ALL = [(f"{group}-{number}", case) for group, cases in CASES.items() for number, case in enumerate(cases)]

Compile = Callable[[Any], Grammar]


@pytest.fixture(scope="module", params=BACKENDS)
def name(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def compile_schema(name: str) -> Compile:
    if name == "xgrammar":
        pytest.importorskip("xgrammar")
    backend: GrammarBackend = load_object(BACKENDS[name])(BYTES)
    return lambda schema: backend.compile(StructuredOutputsParams(json=json.dumps(schema)))


def attempt(compile_schema: Compile, schema: Any) -> tuple[Grammar | None, str]:
    """A schema's grammar, or why there is none."""
    try:
        return compile_schema(schema), ""
    except BadRequest as refused:
        return None, refused.message


def text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def is_valid(value: Any, schema: Any) -> bool:
    return jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema).is_valid(value)


@pytest.mark.parametrize("case", [case for _, case in ALL], ids=[id for id, _ in ALL])
def test_the_table_is_right(case: Case):
    """By an implementation of the standard; schemas that are none, or lead out of themselves, have no values here."""
    for value in case.right:
        assert is_valid(value, case.schema), value
    for value in case.wrong:
        try:
            assert not is_valid(value, case.schema), value
        except (jsonschema.SchemaError, jsonschema.exceptions.UnknownType, TypeError, KeyError):
            assert not case.right


@pytest.mark.row("F-166", "F-170")
@pytest.mark.parametrize("case", [case for _, case in ALL], ids=[id for id, _ in ALL])
def test_a_schema_is_followed_exactly_or_refused(compile_schema: Compile, case: Case):
    grammar, why = attempt(compile_schema, case.schema)
    if grammar is None:
        assert "can't be followed" in why
        assert len(why) > 60, "it does not say why"
        return
    assert [value for value in case.wrong if follows(grammar, text(value))] == []
    assert not case.right or any(follows(grammar, text(value)) for value in case.right)
    for seed in range(4):
        answer = draw(grammar, seed)
        if answer is not None:
            assert is_valid(json.loads(answer), case.schema), answer


def test_most_of_the_table_is_followed(name: str, compile_schema: Compile):
    followed = 0
    for _, case in ALL:
        followed += attempt(compile_schema, case.schema)[0] is not None
    assert FOLLOWED[name] <= followed < len(ALL)
    assert len(ALL) > 200
