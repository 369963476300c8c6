"""Answers of a given form from a running server: every way to ask, streams, candidates, what can't be followed."""

from __future__ import annotations

import asyncio
import json
import re
import time
from contextlib import suppress
from typing import Any, Literal

import jsonschema
import pytest
from openai import AsyncOpenAI, BadRequestError, OpenAI
from pydantic import BaseModel, Field

pytestmark = pytest.mark.xdist_group("server")

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["kind", "tall", "old"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}


def client_of(server) -> OpenAI:
    return server.client()


def ask(server, extra: dict[str, Any] | None = None, **options: Any) -> Any:
    options = {"max_tokens": 400, "temperature": 1.0, **options}
    messages: Any = [{"role": "user", "content": "Who is Nora?"}]
    return client_of(server).chat.completions.create(
        model="lsv-demo", messages=messages, extra_body=extra or {}, **options
    )


@pytest.mark.row("F-155", "F-166", "F-349")
def test_a_schema(server):
    answer = ask(server, response_format=FORMAT, n=4)
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}
    for choice in answer.choices:
        jsonschema.validate(json.loads(choice.message.content), PERSON)
    assert len({choice.message.content for choice in answer.choices}) > 1


def test_a_stream_holds_the_same_answer(server):
    options = {"response_format": FORMAT, "seed": 7}
    whole = ask(server, **options).choices[0].message.content
    chunks = list(ask(server, stream=True, **options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_any_object(server):
    for seed in range(5):
        choice = ask(
            server, response_format={"type": "json_object"}, seed=seed, temperature=0.3, max_tokens=100
        ).choices[0]
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)
        else:
            assert choice.message.content.lstrip().startswith("{")


@pytest.mark.row("F-156", "F-167", "F-168", "F-169", "F-170")
def test_the_other_forms(server):
    def text(**extra: Any) -> str:
        return ask(server, extra).choices[0].message.content

    assert re.fullmatch(r"[A-Z][a-z]{2,6} \d{4}", text(guided_regex=r"[A-Z][a-z]{2,6} \d{4}"))
    assert text(guided_choice=["positive", "negative"]) in ("positive", "negative")
    assert re.fullmatch(r"SELECT [ab](, [ab])*", text(guided_grammar='root ::= "SELECT " c (", " c)*\nc ::= "a" | "b"'))
    assert text(structured_outputs={"choice": ["yes", "no"]}, guided_decoding_backend="guidance") in ("yes", "no")


def test_completions(server):
    answer = client_of(server).completions.create(
        model="lsv-demo", prompt="Nora is", max_tokens=400, n=2, extra_body={"guided_json": PERSON}
    )
    for choice in answer.choices:
        jsonschema.validate(json.loads(choice.text), PERSON)


class Step(BaseModel):
    kind: Literal["plus", "minus"]
    left: int = Field(ge=0, le=99)
    right: int = Field(ge=0, le=99)


class Plan(BaseModel):
    steps: list[Step] = Field(max_length=3)
    note: str | None = Field(max_length=20)


def test_the_official_client_parses_models(server):
    found = client_of(server).chat.completions.parse(
        model="lsv-demo",
        messages=[{"role": "user", "content": "What is 3 plus 4?"}],
        response_format=Plan,
        max_tokens=400,
        temperature=1.0,
    )
    assert isinstance(found.choices[0].message.parsed, Plan)


def test_a_stop_string_and_a_length_cut(server):
    cut = ask(server, response_format=FORMAT, stop=[":"]).choices[0]
    assert (cut.finish_reason, ":" in cut.message.content) == ("stop", False)
    short = ask(server, response_format=FORMAT, max_tokens=3).choices[0]
    assert short.finish_reason == "length"


def test_it_meets_other_constraints(server):
    assert ask(server, {"guided_choice": ["a", "b"], "min_tokens": 30}).choices[0].message.content in ("a", "b")
    assert ask(server, {"guided_choice": ["a", "b"], "ignore_eos": True}).choices[0].message.content in ("a", "b")
    # Greedy: a model left with little else thinks first, and sampled thoughts may run into max_tokens.
    one_left = ask(server, {"guided_choice": ["a", "b"], "bad_words": ["a"]}, temperature=0)
    assert one_left.choices[0].message.content == "b"
    with pytest.raises(BadRequestError, match="no token may be drawn"):
        ask(server, {"guided_choice": ["a", "b"], "bad_words": ["a", "b"]}, temperature=0)


NESTED: dict[str, Any] = {"type": "null"}
for _ in range(60):
    NESTED = {"type": "array", "items": NESTED}

HOSTILE: dict[str, dict[str, Any]] = {
    "no schema": {"guided_json": '{"type": "strange"}'},
    "no json": {"guided_json": "{"},
    "unsupported keyword": {"guided_json": {"type": "array", "uniqueItems": True}},
    "endless reference": {"guided_json": {"$ref": "#"}},
    "contradiction": {"guided_json": {"type": "string", "minLength": 3, "maxLength": 1}},
    "remote reference": {"guided_json": {"$ref": "http://127.0.0.1:1/schema"}},
    "huge enum": {"guided_json": {"enum": [f"member number {number}" for number in range(100_000)]}},
    "huge choice": {"guided_choice": [f"member number {number}" for number in range(100_000)]},
    "explosion": {
        "guided_json": {"allOf": [{"anyOf": [{"properties": {f"{i}.{j}": {}}} for j in range(10)]} for i in range(10)]}
    },
    "no regex": {"guided_regex": "(a"},
    "look-around": {"guided_regex": "(?=a)b"},
    "endless rule": {"guided_grammar": "start: start"},
    "unknown back end": {"guided_regex": "a", "guided_decoding_backend": "nobody"},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_followed_is_refused_soon(server, name: str):
    began = time.monotonic()
    with pytest.raises(BadRequestError):
        ask(server, HOSTILE[name])
    assert time.monotonic() - began < 10  # far more than it takes, for machines under load
    assert server.get("/ready")[0] == 200


def test_hard_ones_end(server):
    """Whether they are followed or refused is the back end's; none may stall the engine."""
    for extra in (
        {"guided_regex": "(a+)+b"},
        {"guided_regex": "(a|b)*a(a|b){24}"},
        {"guided_regex": "((a{0,99}b{0,99}){0,99}c{0,99}){0,99}"},
        {"guided_json": {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(3000)}}},
        {"guided_json": NESTED},
    ):
        with suppress(BadRequestError):
            ask(server, extra, max_tokens=30)
    assert server.get("/ready")[0] == 200


async def test_guided_and_plain_requests_side_by_side(server):
    async with AsyncOpenAI(base_url=server.url + "/v1", api_key="EMPTY", max_retries=0) as client:

        async def chat(number: int, **extra: Any) -> str:
            answer = await client.chat.completions.create(
                model="lsv-demo",
                messages=[{"role": "user", "content": f"What is {number} plus 1?"}],
                temperature=0,
                max_tokens=200,
                extra_body=extra,
            )
            return answer.choices[0].message.content or ""

        alone = await asyncio.gather(*(chat(number) for number in range(8)))
        spaced = {"guided_json": PERSON, "guided_whitespace_pattern": " ?", "temperature": 1.0}
        guided = (chat(number, **spaced, seed=number) for number in range(8))
        both = await asyncio.gather(*(chat(number) for number in range(8)), *guided)
    assert both[:8] == alone
    for text in both[8:]:
        jsonschema.validate(json.loads(text), PERSON)
