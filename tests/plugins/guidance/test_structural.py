"""Structural tags: free text in which marks begin parts of a form, in both notations."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from lsv.grammars.grammar import Vocabulary
from lsv.request.structured import StructuredOutputsParams
from lsv_base.errors import BadRequest
from lsv_guidance.backend import GuidanceBackend

EOS, CALL, DONE = 256, 257, 258

INT = {"type": "json_schema", "json_schema": {"type": "integer"}}
BOOL = {"type": "json_schema", "json_schema": {"type": "boolean"}}
A = {"type": "tag", "begin": "<f=a>", "content": INT, "end": "</f>"}
B = {"type": "tag", "begin": "<f=b>", "content": BOOL, "end": ["</f>", ";"]}
TEXT = {"type": "any_text"}


def tagged(**more: Any) -> dict[str, Any]:
    return {"type": "triggered_tags", "triggers": ["<f="], "tags": [A, B], **more}


def of(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, **fields}


@pytest.fixture(scope="module")
def backend() -> GuidanceBackend:
    tokens = [bytes([byte]) for byte in range(256)] + [b"</s>", b"[CALL]", b"[DONE]"]
    special = frozenset({EOS, CALL, DONE})
    return GuidanceBackend(Vocabulary(tokens, special, (EOS,), lambda text: list(text.encode())))


def follow(backend: GuidanceBackend, tag: dict[str, Any], answer: str | list[int]) -> bool:
    """Whether an answer is whole and right, token by token."""
    matcher = backend.compile(StructuredOutputsParams(structural_tag=tag)).begin()  # type: ignore[arg-type]
    words = np.zeros(9, np.uint32)
    for token in [*(answer.encode() if isinstance(answer, str) else answer), EOS]:
        matcher.fill(words.data)
        if not words[token // 32] >> np.uint32(token % 32) & 1:
            return False
        assert token == EOS or matcher.accept([token])
    return True


OLDER = {
    "structures": [
        {"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"},
        {"begin": "<f=b>", "schema": {"type": "boolean"}, "end": "</f>"},
    ],
    "triggers": ["<f="],
}
RIGHT = ["", "just text", "<f=a>12</f>", "x <f=a>1</f> y <f=b>true</f>\nz", "a < b, <f, </f>"]
WRONG = ["<f=", "<f=a>", "<f=a>x</f>", "<f=c>1</f>", "x <f=a>1", "<f=b>1</f>", "<f=a>1</f><f=q>"]

TREES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (tagged(), RIGHT, WRONG),
    (tagged(stop_after_first=True), ["", "x", "x<f=a>1</f>"], ["<f=a>1</f>x", "<f=a>1</f><f=a>1</f>"]),
    (tagged(at_least_one=True), ["<f=a>1</f>", "<f=a>1</f>x", "<f=b>true;x<f=a>1</f>"], ["", "x", "x<f=a>1</f>"]),
    (tagged(at_least_one=True, stop_after_first=True), ["<f=a>1</f>"], ["", "x<f=a>1</f>", "<f=a>1</f>x"]),
    (of("const_string", value='say "x"/\n'), ['say "x"/\n'], ["", "say"]),
    (INT, ["12"], ["x", ""]),
    (of("json_schema", json_schema=True), ["12", '{"a": []}'], ["x"]),
    (of("regex", pattern="a/b|c\\/d"), ["a/b", "c/d"], ["a", "c", "a/bc/d"]),
    (of("regex", pattern="(a|b)\n"), ["a\n"], ["a"]),
    (of("grammar", grammar='root ::= "a" b\nb ::= "x" | "y"'), ["ax", "ay"], ["a", "axy"]),
    (of("grammar", grammar='start: "a" b\nb: "x" | "y"'), ["ax"], ["a"]),
    (TEXT, ["", "anything\n at all <f="], []),
    (of("sequence", elements=[of("const_string", value="x"), INT]), ["x1"], ["x", "1"]),
    (of("or", elements=[A, of("const_string", value="no")]), ["<f=a>1</f>", "no"], ["", "yes"]),
    (of("optional", content=of("const_string", value="x")), ["", "x"], ["xx"]),
    (of("star", content=of("const_string", value="x")), ["", "xxx"], ["y"]),
    (of("plus", content=of("const_string", value="x")), ["x", "xx"], [""]),
    (of("repeat", min=1, max=2, content=of("const_string", value="x")), ["x", "xx"], ["", "xxx"]),
    (of("repeat", min=2, max=-1, content=of("const_string", value="x")), ["xx", "xxxx"], ["x"]),
    (of("tag", begin="<r>", content=TEXT, end="</r>"), ["<r></r>", "<r>a <r> b</r>"], ["<r>", "<r>a</r>b"]),
    (of("tag", begin="<r>", content=TEXT, end=["</r>", "!"]), ["<r>a</r>", "<r>a!"], ["<r>a", "<r>a!b"]),
    (of("tag", begin="<r>", content=tagged(), end="</r>"), ["<r></r>", "<r>x<f=a>1</f>y</r>"], ["<r>", "<r><f=a>x"]),
    (
        of("sequence", elements=[of("tag", begin="<think>", content=TEXT, end="</think>"), tagged()]),
        ["<think>hm</think>", "<think></think>x<f=a>1</f>"],
        ["x", "<think>", "<think>a</think><f=x"],
    ),
    (of("tags_with_separator", tags=[A, B], separator=", "), ["", "<f=a>1</f>", "<f=a>1</f>, <f=b>true;"], ["x", ", "]),
    (of("tags_with_separator", tags=[A], separator="", at_least_one=True), ["<f=a>1</f><f=a>2</f>"], [""]),
    (of("tags_with_separator", tags=[A], separator=",", stop_after_first=True), ["", "<f=a>1</f>"], ["<f=a>1</f>,"]),
]  # fmt: skip


@pytest.mark.row("F-155")
@pytest.mark.parametrize("answer", RIGHT)
def test_the_older_notation_allows_text_and_tags(backend: GuidanceBackend, answer: str):
    assert follow(backend, OLDER, answer)


@pytest.mark.parametrize("answer", WRONG)
def test_what_a_trigger_begins_must_have_its_form(backend: GuidanceBackend, answer: str):
    assert not follow(backend, OLDER, answer)


@pytest.mark.row("F-155")
@pytest.mark.parametrize(("tree", "right", "wrong"), TREES, ids=lambda value: str(value)[:60])
def test_every_format_of_the_newer_notation(
    backend: GuidanceBackend, tree: dict[str, Any], right: list[str], wrong: list[str]
):
    for answer in right:
        assert follow(backend, {"type": "structural_tag", "format": tree}, answer), answer
    for answer in wrong:
        assert not follow(backend, {"format": tree}, answer), answer


def test_special_tokens_may_stand_for_their_texts(backend: GuidanceBackend):
    tag = {"structures": [{"begin": "[CALL]", "schema": {"type": "integer"}, "end": "[DONE]"}], "triggers": ["[CALL]"]}
    for begin in ([CALL], [*b"[CALL]"]):
        for end in ([DONE], [*b"[DONE]"]):
            assert follow(backend, tag, [*b"x ", *begin, *b"12", *end, *b" y"])
        assert not follow(backend, tag, [*begin, *b"x"])
    around = {"format": of("tag", begin="[CALL]", content=TEXT, end="[DONE]")}
    assert follow(backend, around, [CALL, *b"anything", DONE])
    assert not follow(backend, around, [CALL, *b"anything"])


def test_fields_that_ask_for_nothing_are_passed_over(backend: GuidanceBackend):
    schema = {**INT, "style": "json", "any_order": False, "max_whitespace_cnt": None, "excludes": []}
    tag = of("tag", begin="<", content=schema, end=">")
    assert follow(backend, {"format": of("triggered_tags", triggers=["<"], tags=[tag], excludes=[])}, "a<1>b")


UNKNOWN: list[tuple[Any, str]] = [
    ({}, "format"),
    ({"format": {"type": "surprise"}}, "surprise"),
    ({"format": {"type": "token", "token": 5}}, "'token'"),
    ({"format": {"type": "any_tokens"}}, "any_tokens"),
    ({"format": {"type": "dispatch", "rules": []}}, "dispatch"),
    ({"format": of("any_text", excludes=["x"])}, "excludes"),
    ({"format": of("any_text", max_chars=3)}, "max_chars"),
    ({"format": {**INT, "style": "qwen_xml"}}, "qwen_xml"),
    ({"format": {**INT, "any_order": True}}, "any_order"),
    ({"format": of("sequence", elements=[])}, "empty"),
    ({"format": of("sequence", elements=[TEXT, INT])}, "end of the answer"),
    ({"format": of("or", elements=[TEXT, INT])}, "end of the answer"),
    ({"format": of("star", content=TEXT)}, "end of the answer"),
    ({"format": of("tag", begin="<", content=TEXT, end="")}, "not empty"),
    ({"format": of("repeat", min=2, max=1, content=INT)}, "repeat"),
    ({"format": of("repeat", min=0, max=10**9, content=INT)}, "repeat"),
    ({"format": tagged(triggers=["<g"])}, "no trigger"),
    ({"format": tagged(triggers=["<", "<f"])}, "'<' and '<f'"),
    ({"format": tagged(triggers=[])}, "triggers"),
    ({"structures": [], "triggers": ["<"]}, "triggers"),
    ({"format": tagged(triggers=["<f=", *map(str, range(200))])}, "at most 128 triggers"),
    ({"structures": [{"begin": "<", "end": ">"}], "triggers": ["<"]}, "schema"),
    ({"format": of("json_schema", json_schema={"type": "array", "uniqueItems": True})}, "uniqueItems"),
    ({"format": of("json_schema", json_schema={"x-guidance": {"lenient": True}, "not": {}})}, "no value"),
    ({"format": of("regex", pattern="(?=a)")}, "look"),
    ({"format": of("json_schema", json_schema=False)}, "can't be followed"),
]


@pytest.mark.parametrize(("tag", "why"), UNKNOWN, ids=lambda value: str(value)[:70])
def test_what_is_not_followed_is_refused_by_name(backend: GuidanceBackend, tag: Any, why: str):
    with pytest.raises(BadRequest) as refused:
        backend.compile(StructuredOutputsParams(structural_tag=tag))
    assert why in refused.value.message


def test_a_tag_nested_without_end_is_refused():
    tree: dict[str, Any] = INT
    for _ in range(100_000):
        tree = of("star", content=tree)
    with pytest.raises(BadRequest):
        StructuredOutputsParams(structural_tag={"format": tree})  # type: ignore[arg-type]
    wide = of("sequence", elements=[of("const_string", value="x")] * 5000)
    with pytest.raises(BadRequest, match="formats"):
        StructuredOutputsParams(structural_tag={"format": wide})  # type: ignore[arg-type]


LARK = r"""
start: "%json {" NUMBER | /%json \/ [{]/ | %json {"type": "object", "properties": {"a": {"const": "}"}},
  "uniqueItems": false, "propertyNames": {"maxLength": 1}} "!"  // %json {"type": "strange"}
NUMBER: /[0-9]/
"""


@pytest.mark.parametrize(
    ("text", "right"),
    [("%json {3", True), ("%json / {", True), ('{"a":"}"}!', True), ('{"b":1}!', True), ('{"bc":1}!', False),
     ('{"a":"x"}!', False), (r'{"\u0061":"x"}!', False)],
)  # fmt: skip
def test_schemas_within_a_grammar_are_followed_as_others_are(backend: GuidanceBackend, text: str, right: bool):
    matcher = backend.compile(StructuredOutputsParams(grammar=LARK)).begin()
    assert matcher.accept([*text.encode(), EOS]) is right


@pytest.mark.parametrize("options", [{}, {"lenient": True}, {"coerce_one_of": True}])
def test_a_schema_within_a_grammar_is_refused_by_name(backend: GuidanceBackend, options: dict[str, bool]):
    schema = {"type": "object", "properties": {"a": {"uniqueItems": True}}, "x-guidance": options}
    with pytest.raises(BadRequest, match=r"this grammar can't be followed: uniqueItems at #/properties/a: "):
        backend.compile(StructuredOutputsParams(grammar=f"start: %json {json.dumps(schema)}"))


def test_what_follows_json_may_be_no_json(backend: GuidanceBackend):
    with pytest.raises(BadRequest, match="json"):
        backend.compile(StructuredOutputsParams(grammar="start: %json {"))
