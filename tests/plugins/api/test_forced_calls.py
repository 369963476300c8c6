"""Forced calls, and forms together with tools: which of the two applies, and how errors name them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lsv.plugins import load
from lsv.request.structured import StructuredOutputsParams
from lsv_api import schema_check
from lsv_api.openai.form_origin import FormOrigin
from lsv_api.openai.tools import forced_schema
from lsv_api.schema_check import SchemaCheck
from lsv_base.errors import BadRequest
from lsv_guidance.backend import GuidanceBackend
from lsv_testing.fakes.client import FakeClient, fake_config
from lsv_testing.grammars.walk import BYTES, follows
from suite.sites import Site, StartSite

DAY = {"properties": {"day": {"enum": ["Monday", "Friday"]}}, "required": ["day"], "additionalProperties": False}
CARD = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "card", "schema": CARD}}
NAMED = {"type": "function", "function": {"name": "choose"}}
CHOICES: list[Any] = ["required", NAMED]


def tool(name: str = "choose", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", **DAY}, **function}}


def made(reply: Any) -> list[tuple[str, str]]:
    calls = reply.json()["choices"][0]["message"]["tool_calls"]
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def form(site: Site) -> StructuredOutputsParams:
    asked: StructuredOutputsParams = site.engine.requests[-1].sampling.structured_outputs
    return asked


@pytest.mark.row("F-997", "F-1012")
@pytest.mark.parametrize("choice", CHOICES, ids=["required", "named"])
@pytest.mark.parametrize("field", ["response_format", "guided_json", "structured_outputs"])
async def test_a_forced_call_decides_the_form(start: StartSite, choice: Any, field: str):
    asked = {"response_format": FORMAT, "guided_json": CARD, "structured_outputs": {"json": CARD}}[field]
    arguments = '{"day": "Friday"}'
    answer = arguments if choice is NAMED else f'[{{"name": "choose", "parameters": {arguments}}}]'
    site = await start(FakeClient(answer=answer))
    reply = await site.chat(tools=[tool()], tool_choice=choice, **{field: asked})
    assert reply.status_code == 200, reply.text
    assert made(reply) == [("choose", arguments)]
    assert "Monday" in str(form(site).json)
    assert "title" not in str(form(site).json)


async def test_beside_auto_an_answer_is_calls_or_the_form(start: StartSite):
    call = '<tool_call>\n{"name": "choose", "arguments": {"day": "Friday"}}\n</tool_call>'
    site = await start(FakeClient(answer=call), tool_call_parser="hermes")
    for asked, strict in ((FORMAT, True), (FORMAT, False), ({"type": "json_object"}, True)):
        assert made(await site.chat(tools=[tool(strict=strict)], response_format=asked)) == [
            ("choose", '{"day": "Friday"}')
        ]
        grammar = GuidanceBackend(BYTES).compile(form(site))
        wrong = call.replace("Friday", "Sunday")
        assert follows(grammar, call)
        assert follows(grammar, f"{call}\n{call}")
        assert follows(grammar, '{"title": "x"}')
        assert follows(grammar, wrong) is not strict
        for text in ("Hello", f"Well. {call}", f'{call} {{"title": "x"}}', '{"title": "x"} and more'):
            assert not follows(grammar, text), text
        assert follows(grammar, '{"title": 1}') is (asked is not FORMAT)


@pytest.mark.parametrize("asked", [{"guided_regex": "a+"}, {"guided_choice": ["a"]}, {"guided_json": "no json"}])
async def test_beside_auto_another_form_than_json_holds_for_the_whole_answer(start: StartSite, asked: dict[str, Any]):
    site = await start(FakeClient(answer="a"), tool_call_parser="hermes")
    assert (await site.chat(tools=[tool(strict=True)], **asked)).status_code == 200
    assert form(site).grammar is None


async def test_without_a_grammar_of_calls_the_form_holds_for_the_whole_answer(start: StartSite):
    site = await start(FakeClient(answer="{}"), tool_call_parser="qwen3_coder")
    assert (await site.chat(tools=[tool()], response_format=FORMAT)).status_code == 200
    assert json.loads(str(form(site).json)) == CARD


@pytest.mark.parametrize(
    "schema",
    [
        DAY,
        {},
        {"additionalProperties": False},
        {"$ref": "#/$defs/day", "$defs": {"day": DAY}},
        {"anyOf": [DAY, {"type": "number"}]},
        {"type": ["object", "null"], **DAY},
    ],
)
@pytest.mark.parametrize("name", [None, "choose"])
def test_arguments_are_an_object_whatever_the_schema_leaves_open(schema: dict[str, Any], name: str | None):
    asked = StructuredOutputsParams(json=json.dumps(forced_schema({"choose": schema}, name)))
    grammar = GuidanceBackend(BYTES).compile(asked)

    def allows(arguments: str) -> bool:
        return follows(grammar, arguments if name else f'[{{"name": "choose", "parameters": {arguments}}}]')

    assert allows('{"day": "Friday"}') or allows("{}")
    for arguments in ("9.98", '"text"', "[]", "null", "true"):
        assert not allows(arguments), arguments


async def test_parameters_that_no_object_satisfies_are_refused_where_they_are_followed(start: StartSite):
    site = await start(FakeClient(), tool_call_parser="hermes")
    for options in ({"tool_choice": "required"}, {}):
        wrong = tool("f", parameters={"type": "array"}, strict=not options)
        reply = await site.chat(tools=[tool(), wrong], **options)
        error = reply.json()["error"]
        assert (reply.status_code, error["param"]) == (400, "tools[1].function.parameters")
        assert "must be object" in error["message"]
    assert (await site.chat(tools=[tool("f", parameters={"type": "array"})])).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("answer", ["<think>What", "<think>What</think>", "<think>What</think>\n\n"])
async def test_a_call_begins_with_its_first_argument(start: StartSite, stream: bool, answer: str):
    site = await start(FakeClient(answer=answer), reasoning_parser="qwen3")
    reply = await site.chat(
        tools=[tool()], tool_choice=NAMED, max_tokens=len(answer), stream=stream,
        chat_template_kwargs={"enable_thinking": True, "thinking": True},
    )  # fmt: skip
    if stream:
        assert '"tool_calls"' not in reply.text
        assert '"finish_reason":"length"' in reply.text
        return
    assert made(reply) == []
    choice = reply.json()["choices"][0]
    assert (choice["message"]["reasoning_content"], choice["finish_reason"]) == ("What", "length")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_forced_call_that_is_cut_off_is_never_content(start: StartSite, stream: bool):
    answer = '[{"name": "choose", "parameters": {"day": "Friday"}}]'
    site = await start(FakeClient(answer=answer))
    for length in range(1, len(answer)):
        reply = await site.chat(tools=[tool()], tool_choice="required", max_tokens=length, stream=stream)
        if stream:
            assert '"content":"[' not in reply.text
            continue
        assert not reply.json()["choices"][0]["message"]["content"], length
        for name, arguments in made(reply):
            assert name == "choose"
            assert arguments
            assert '{"day": "Friday"}'.startswith(arguments)


UNFOLLOWED = 'structured_outputs: this json can\'t be followed: Unimplemented keys: ["not"]'
OWN = (
    "structured_outputs: this grammar can't be followed: at 6(8): failed to compile JSON schema: Unimplemented keys: "
    '["not"]\n   6 | calls: %json'
)
UNKNOWN = {"type": "object", "properties": {"a": {"items": {"type": "string"}, "uniqueItems": True}}}
"""Parameters that no back end supports."""
JSON_FORMAT = {"response_format": FORMAT}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("raised", "body", "param", "words"),
    [
        (UNFOLLOWED, JSON_FORMAT, "response_format", ["response_format: the JSON schema can't", "not", "leave it out"]),
        (UNFOLLOWED, {"guided_json": CARD}, "guided_json", ["guided_json: "]),
        (UNFOLLOWED, {"structured_outputs": {"json": CARD}}, "structured_outputs", ["structured_outputs: "]),
        (
            UNFOLLOWED,
            {"tools": [tool()], "tool_choice": "required", **JSON_FORMAT},
            "tools[0].function.parameters",
            ["the parameters of choose", "set tool_choice to auto"],
        ),
        (
            UNFOLLOWED,
            {"tools": [tool("f"), tool()], "tool_choice": "required"},
            "tools",
            ["the parameters of f, choose together"],
        ),
        (
            UNFOLLOWED,
            {"tools": [tool("f"), tool(parameters=UNKNOWN), tool("g")], "tool_choice": "required"},
            "tools[1].function.parameters",
            ["the parameters of choose", "uniqueItems"],
        ),
        (
            OWN,
            {"tools": [tool("f", parameters=UNKNOWN), tool(parameters=UNKNOWN, strict=True)]},
            "tools[1].function.parameters",
            ["the parameters of choose", "leave strict out"],
        ),
        (
            UNFOLLOWED,
            {"tools": [tool("f"), tool()], "tool_choice": NAMED},
            "tools[1].function.parameters",
            ["the parameters of choose"],
        ),
        (OWN, {"tools": [tool(strict=True)]}, "tools[0].function.parameters", ["leave strict out"]),
        (OWN, {"tools": [tool()], **JSON_FORMAT}, "response_format", ["send it without tools"]),
    ],
)
async def test_a_refused_form_is_named_as_the_client_sent_it(
    start: StartSite, stream: bool, raised: str, body: dict[str, Any], param: str, words: list[str]
):
    site = await start(FakeClient(fake_config(grammars="guidance")), tool_call_parser="hermes")
    site.engine.failure = BadRequest(raised, param="structured_outputs")
    reply = await site.chat(stream=stream, **body)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, param)
    for word in words:
        assert word in error["message"]
    assert "%json" not in error["message"]
    if param != "structured_outputs":
        assert "structured_outputs" not in error["message"]


async def test_without_a_back_end_all_functions_are_named(start: StartSite):
    site = await start()
    site.engine.failure = BadRequest(UNFOLLOWED, param="structured_outputs")
    reply = await site.chat(tools=[tool("f", parameters=UNKNOWN), tool()], tool_choice="required")
    assert reply.json()["error"]["param"] == "tools"
    assert "the parameters of f, choose together" in reply.json()["error"]["message"]


async def test_completions_name_the_field_too(start: StartSite):
    site = await start()
    site.engine.failure = BadRequest(UNFOLLOWED, param="structured_outputs")
    for body in (JSON_FORMAT, {"guided_json": CARD}):
        assert (await site.complete(**body)).json()["error"]["param"] == next(iter(body))


async def test_a_form_beside_a_beam_search_is_named(start: StartSite):
    reply = await (await start()).chat(response_format=FORMAT, use_beam_search=True)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, "response_format")
    assert error["message"].startswith("response_format can't be combined with use_beam_search")


def test_other_errors_keep_their_field():
    with pytest.raises(BadRequest) as caught, FormOrigin("response_format").naming():
        raise BadRequest("n must be at most 4", param="n")
    assert caught.value.param == "n"


async def test_an_empty_form_is_refused_by_its_field(start: StartSite):
    site = await start()
    for empty in ({"grammar": ""}, {"regex": ""}, {"json": ""}, {"choice": []}, {"structural_tag": ""}):
        for ask in (site.chat, site.complete):
            reply = await ask(structured_outputs=empty)
            error = reply.json()["error"]
            assert (reply.status_code, error["param"]) == (400, "structured_outputs"), empty
            assert next(iter(empty)) in error["message"]
    for left_out in ({"grammar": None}, {"json_object": False}, {"whitespace_pattern": "", "backend": None}, {}):
        assert (await site.chat(structured_outputs=left_out)).status_code == 200


def test_a_check_that_takes_too_long_ends(monkeypatch: pytest.MonkeyPatch):
    check = SchemaCheck(load(["guidance"]).catalog, "guidance")
    assert check.find_refused([CARD, UNKNOWN]) == (1, str(check.find_refused([UNKNOWN])[1]))  # type: ignore[index]
    assert check.find_refused([CARD, DAY]) is None
    monkeypatch.setattr(schema_check, "SECONDS", -1.0)
    assert check.find_refused([UNKNOWN]) is None
