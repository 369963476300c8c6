"""A server whose model thinks first: forms after the thoughts, budgets of thoughts, structural tags."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from openai import OpenAI

from .conftest import Server

pytestmark = pytest.mark.xdist_group("thinking first")  # its server is started once

FORM: dict[str, Any] = {
    "type": "object",
    "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 99}, "sure": {"type": "boolean"}},
    "required": ["sum", "sure"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "sum", "schema": FORM}}


DRAFTS = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "adaptive": False}
TOOL: Any = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    """The demo model, read as one that always thinks before it answers."""
    yield from serve(tmp_path_factory)


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    """The same, with drafts."""
    yield from serve(tmp_path_factory, "--speculative-config", json.dumps(DRAFTS))


def serve(tmp_path_factory: pytest.TempPathFactory, *arguments: str) -> Iterator[OpenAI]:
    """In float32: where two tokens are nearly as likely, one that is verified may be another than one that is not."""
    log, common = tmp_path_factory.mktemp("thinking") / "server.log", ("--reasoning-parser", "deepseek_r1")
    running = Server(log, "lsv-demo", *common, "--dtype", "float32", *arguments)
    try:
        running.wait_until_ready()
        yield running.client()
    finally:
        running.stop()


def ask(client: OpenAI, extra: dict[str, Any], **options: Any) -> Any:
    messages: Any = [{"role": "user", "content": "What is 3 plus 4?"}]
    options = {"max_tokens": 200, "temperature": 1.0, **options}
    return client.chat.completions.create(model="lsv-demo", messages=messages, extra_body=extra, **options)


@pytest.mark.parametrize("budget", [0, 12])
def test_a_form_follows_the_thoughts(client: OpenAI, budget: int):
    answer = ask(client, {"thinking_token_budget": budget}, response_format=FORMAT, n=4, seed=1)
    for choice in answer.choices:
        jsonschema.validate(json.loads(choice.message.content), FORM)
        assert bool(choice.message.reasoning_content) is bool(budget)
        assert choice.finish_reason == "stop"


def test_a_stream_has_the_same_thoughts_and_answer(client: OpenAI):
    extra = {"thinking_token_budget": 9}
    whole = ask(client, extra, response_format=FORMAT, seed=7).choices[0].message
    deltas = [event.choices[0].delta for event in ask(client, extra, response_format=FORMAT, seed=7, stream=True)]
    assert "".join(delta.content or "" for delta in deltas) == whole.content
    thoughts = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
    assert "".join(thoughts) == whole.reasoning_content


def test_a_budget_closes_thoughts_of_answers_without_a_form(client: OpenAI):
    answer = ask(client, {"thinking_token_budget": 3, "ignore_eos": True}, max_tokens=60)
    message = answer.choices[0].message
    assert message.content
    assert answer.usage.completion_tokens == 60
    assert len(message.reasoning_content or "") < len(message.content)
    unbounded = ask(client, {"ignore_eos": True}, max_tokens=60).choices[0].message
    assert unbounded.content is None, "the model never closes its thoughts by itself"


def test_text_with_tags(client: OpenAI):
    tag = {"type": "tag", "begin": "<sum>", "content": FORMAT | {"json_schema": FORM}, "end": "</sum>"}
    tree = {
        "type": "triggered_tags",
        "triggers": ["<sum"],
        "tags": [tag],
        "at_least_one": True,
        "stop_after_first": True,
    }
    body = {"response_format": {"type": "structural_tag", "format": tree}, "thinking_token_budget": 0}
    text = ask(client, body).choices[0].message.content
    assert text.startswith("<sum>")
    jsonschema.validate(json.loads(text.removeprefix("<sum>").removesuffix("</sum>")), FORM)


def test_drafts_change_neither_thoughts_nor_what_follows_them(client: OpenAI, drafting: OpenAI):
    """Where thoughts are closed, also in the middle of tokens that were verified together, the form begins."""
    asked: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"thinking_token_budget": 12}, {"response_format": FORMAT}),
        ({"thinking_token_budget": 0}, {"response_format": FORMAT}),
        ({"thinking_token_budget": 9, "ignore_eos": True}, {"max_tokens": 60}),
        ({"thinking_token_budget": 5}, {"tools": [TOOL], "tool_choice": "required", "max_tokens": 60}),
    ]
    accepted = []
    for extra, options in asked:
        for way in ({"temperature": 0.0}, {"temperature": 0.7, "seed": 3, "n": 2}):
            plain, drafted = (ask(one, extra, **way, **options) for one in (client, drafting))
            assert [choice.model_dump() | {"message": None} for choice in drafted.choices] == [
                choice.model_dump() | {"message": None} for choice in plain.choices
            ]
            assert list(map(said, drafted.choices)) == list(map(said, plain.choices))
            details = drafted.usage.completion_tokens_details
            accepted.append(0 if details is None else details.accepted_prediction_tokens)
    assert sum(map(bool, accepted)) > len(accepted) / 2


def said(choice: Any) -> list[Any]:
    """All but the identifiers of calls, which are drawn."""
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
    return [choice.message.content, choice.message.reasoning_content, calls]
