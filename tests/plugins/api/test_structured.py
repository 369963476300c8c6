"""What form an answer must have, as HTTP requests say it: it reaches the engine, or is refused by the field's name."""

from __future__ import annotations

from typing import Any

import pytest

from lsv.request.structured import StructuredOutputsParams

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}}
TEXT = '{"type":"object","properties":{"b":{"type":"integer"},"a":{}}}'
OLDER = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f"]}
NAMED = {"name": "answer", "schema": SCHEMA, "strict": True}

BODIES: list[tuple[dict[str, Any], StructuredOutputsParams]] = [
    ({"response_format": {"type": "json_object"}}, StructuredOutputsParams(json_object=True)),
    ({"response_format": {"type": "json_schema", "json_schema": NAMED}}, StructuredOutputsParams(json=TEXT)),
    ({"guided_json": SCHEMA}, StructuredOutputsParams(json=TEXT)),
    ({"guided_json": TEXT}, StructuredOutputsParams(json=TEXT)),
    ({"guided_regex": "a+"}, StructuredOutputsParams(regex="a+")),
    ({"guided_choice": ["yes", "no"]}, StructuredOutputsParams(choice=("yes", "no"))),
    ({"guided_grammar": 'start: "x"'}, StructuredOutputsParams(grammar='start: "x"')),
    (
        {"guided_json": TEXT, "guided_whitespace_pattern": " ?", "guided_decoding_backend": "guidance"},
        StructuredOutputsParams(json=TEXT, whitespace_pattern=" ?", backend="guidance"),
    ),
    ({"structured_outputs": {"json": SCHEMA}}, StructuredOutputsParams(json=TEXT)),
    ({"structured_outputs": {"choice": ["a"], "regex": None}}, StructuredOutputsParams(choice=("a",))),
    (
        {"response_format": {"type": "structural_tag", "format": {"type": "any_text"}}},
        StructuredOutputsParams(structural_tag='{"format":{"type":"any_text"}}'),
    ),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, StructuredOutputsParams(json=TEXT)),
    ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, StructuredOutputsParams(json=TEXT)),
    ({"response_format": {"type": "json_object", "json_schema": NAMED}}, StructuredOutputsParams(json=TEXT)),
    ({"response_format": {"type": "json_object", "schema": {}}}, StructuredOutputsParams(json_object=True)),
    (
        {"response_format": {"type": "structural_tag", **OLDER}},
        StructuredOutputsParams(structural_tag=OLDER),
    ),
    ({"structured_outputs": {"structural_tag": OLDER}}, StructuredOutputsParams(structural_tag=OLDER)),
    ({"structured_outputs": {"json_object": True}}, StructuredOutputsParams(json_object=True)),
]


@pytest.mark.row("F-155", "F-156", "F-170", "F-171")
@pytest.mark.parametrize("route", ["chat", "complete"])
@pytest.mark.parametrize(("body", "asked"), BODIES, ids=lambda value: str(value)[:50])
async def test_it_reaches_the_engine(site, route: str, body: dict[str, Any], asked: StructuredOutputsParams):
    reply = await getattr(site, route)(**body)
    assert reply.status_code == 200, reply.text
    assert site.engine.requests[-1].sampling.structured_outputs == asked


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"response_format": {"type": "text"}},
        {
            "response_format": None,
            "guided_json": None,
            "guided_choice": None,
            "guided_regex": None,
            "structured_outputs": {},
        },
        {"guided_json": None, "guided_decoding_backend": "auto"},
    ],
)
async def test_neutral_values_ask_for_nothing(site, body: dict[str, Any]):
    assert (await site.chat(**body)).status_code == 200
    assert site.engine.requests[-1].sampling.structured_outputs is None


@pytest.mark.parametrize(
    ("body", "param", "why"),
    [
        ({"response_format": {"type": "structural_tag"}}, "response_format", "format"),
        ({"response_format": {"type": "structural_tag", "format": {"type": "token"}}}, "response_format", "'token'"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
        ({"response_format": {}}, "response_format.type", "required"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "required"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}}, None, "schema"),
        (
            {"response_format": {"type": "json_schema", "schema": SCHEMA, "json_schema": NAMED}},
            "response_format.schema",
            "set only one",
        ),
        ({"response_format": {"type": "text", "schema": SCHEMA}}, "response_format.schema", "json_object or json_sch"),
        (
            {"response_format": {"type": "json_object", "triggers": ["<f"]}},
            "response_format.triggers",
            "needs type structural_tag",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"shema": SCHEMA}}},
            "response_format.json_schema.shema",
            "did you mean 'response_format.json_schema.schema'",
        ),
        ({"response_format": {"type": "json_object", "shema": SCHEMA}}, "response_format.shema", "did you mean"),
        ({"guided_json": "{}", "guided_regex": "a"}, "guided_json", "one of them"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_json", "one of them"),
        ({"guided_choice": ["a", ""]}, "guided_choice", "no empty strings"),
        ({"guided_choice": "a"}, "guided_choice", "array"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "JSON schema"),
        ({"guided_regex": "a", "guided_whitespace_pattern": " "}, "guided_regex", "whitespace_pattern"),
        ({"guided_regex": "a" * 300_000}, "guided_regex", "over the limit of"),
        ({"structured_outputs": {"json": "{}", "regex": "a"}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"choice": "a"}}, "structured_outputs", "list"),
        ({"structured_outputs": {"jsn": "{}"}}, "structured_outputs", "jsn"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs", "format"),
        ({"structured_outputs": {"structural_tag": "{"}}, "structured_outputs", "truncated"),
        ({"structured_outputs": {"json": "{}", "disable_any_whitespace": True}}, None, "disable_any_whitespace"),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_what_is_unclear_is_refused(site, body: dict[str, Any], param: str | None, why: str):
    reply = await site.chat(**body)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert why in error["message"]
    if param is not None:
        assert error["param"] == param
    assert not site.engine.requests
