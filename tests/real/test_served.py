"""A real chat model over HTTP, with the official client."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from openai import AsyncOpenAI, OpenAI

from published.models import Published
from published.prompts import CHATS
from suite.server import Server

TAG = {"enum": ["é", "日本", "🎉", 'a"b\\c']}
PERSON = {
    "type": "object",
    "properties": {"n": {"type": "string", "maxLength": 12}, "tags": {"type": "array", "maxItems": 2, "items": TAG}},
    "required": ["n", "tags"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "flat": {
        "type": "object",
        "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 120}, "ok": {"type": "boolean"}},
        "required": ["age", "ok"],
        "additionalProperties": False,
    },
    "nested": {"type": "array", "minItems": 1, "maxItems": 3, "items": PERSON},
    "enum": {"enum": ["Zürich", "東京", "🎉🎂", "plain"]},
    "pattern": {
        "type": "object",
        "properties": {"p": {"type": "string", "pattern": "^[a-z]{3}-[0-9]{4}$"}},
        "required": ["p"],
        "additionalProperties": False,
    },
}
EMOJI = "([🎉-🎷]|👨‍👩‍👧|🏳️‍🌈|[一-十]|[ء-ي]|e\u0301){12}"
QUESTION = [{"role": "user", "content": "Describe a person in Zürich as JSON."}]


@pytest.fixture(scope="module")
def server(published: Published, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("server") / "log", str(published.smollm2()))
    running.wait_until_ready()
    yield running
    running.stop()


@pytest.fixture
def client(server: Server) -> OpenAI:
    return server.client()


@pytest.fixture(scope="module")
def model(server: Server) -> str:
    return server.client().models.list().data[0].id


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_answers_fit_their_schema(client: OpenAI, model: str, name: str, seed: int | None) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMAS[name], "strict": True}}
    temperature = 0 if seed is None else 1
    made = client.chat.completions.create(
        model=model, messages=QUESTION, response_format=form, max_tokens=300, seed=seed, temperature=temperature
    )
    assert made.choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(made.choices[0].message.content or ""), SCHEMAS[name])


@pytest.mark.parametrize("seed", range(4))
def test_no_character_is_cut_in_a_stream(client: OpenAI, model: str, seed: int) -> None:
    asked: Any = {
        "model": model, "messages": QUESTION, "max_tokens": 160, "temperature": 1.5, "seed": seed, "logprobs": True,
        "extra_body": {"structured_outputs": {"regex": EMOJI}},
    }  # fmt: skip
    made = client.chat.completions.create(**asked).choices[0]
    text = made.message.content or ""
    assert re.fullmatch(EMOJI, text)
    assert made.logprobs is not None
    joined = b"".join(bytes(token.bytes or ()) for token in made.logprobs.content or ())
    assert joined.decode() == text
    pieces = [chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**asked, stream=True)]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_prompt_may_end_inside_a_character(client: OpenAI, model: str, published: Published) -> None:
    tokenizer = published.tokenizer(published.smollm2())
    ids = tokenizer.encode("🎉🎂🥳👨‍👩‍👧‍👦日本語 مرحبا")
    for end in range(1, len(ids)):
        made = client.completions.create(
            model=model, prompt=ids[:end], max_tokens=3, temperature=0, extra_body={"echo": True}
        )
        assert made.choices[0].text.startswith(tokenizer.decode(ids[:end]).rstrip("\ufffd"))


def test_stop_strings_are_found_across_tokens(client: OpenAI, model: str) -> None:
    asked: Any = {"model": model, "prompt": "The capital of France is", "max_tokens": 60, "temperature": 0}
    whole = client.completions.create(**asked).choices[0].text
    for stop in (whole[7:16], whole[3:6], "\n", whole[20:21], whole[-8:]):
        until = whole[: whole.index(stop)]
        made = client.completions.create(**asked, stop=[stop, "never there"]).choices[0]
        assert (made.text, made.finish_reason) == (until, "stop")
        pieces = [chunk.choices[0].text for chunk in client.completions.create(**asked, stop=[stop], stream=True)]
        assert "".join(pieces) == until


async def test_company_changes_no_answer(server: Server, model: str) -> None:
    """Chats alone, and the same among fifteen others: to the last bit."""
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="EMPTY") as client:

        async def ask(question: str) -> tuple[str, list[float]]:
            made = await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": question}],
                max_tokens=32,
                temperature=0,
                logprobs=True,
            )
            choice = made.choices[0]
            assert choice.logprobs is not None
            return choice.message.content or "", [token.logprob for token in choice.logprobs.content or ()]

        alone = [await ask(question) for question in CHATS]
        crowd = [f"{question} ({number})" for number in range(2) for question in CHATS]
        together = await asyncio.gather(*(ask(question) for question in [*CHATS, *crowd]))
    assert together[: len(CHATS)] == alone


def test_a_prefix_is_found_again(client: OpenAI, model: str) -> None:
    prompt = "The quick brown fox jumps over the lazy dog. " * 40
    first, second = (
        client.completions.create(model=model, prompt=prompt, max_tokens=12, temperature=0) for _ in range(2)
    )
    assert first.choices[0].text == second.choices[0].text
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) > second.usage.prompt_tokens * 0.9
