"""POST /generate, the route of vLLM's simple server."""

from __future__ import annotations

import asyncio
import json

import pytest

from lsv_base.errors import EngineDied
from suite.waiting import until

PROMPT = "Hi there"


def objects(body: bytes) -> list[dict]:
    """The objects of a stream, as vLLM's client splits it."""
    assert body.endswith(b"\0")
    return [json.loads(part) for part in body.split(b"\0") if part]


@pytest.mark.row("F-108")
async def test_the_answer_repeats_the_prompt(site):
    site.engine.answers = {1: "Other"}
    params = {"n": 2, "temperature": 0.5, "stop": ["zz"], "max_tokens": 5}
    reply = await site.post("/generate", prompt=PROMPT, stream=False, **params)
    assert (reply.status_code, reply.json()) == (200, {"text": [PROMPT + "Hello", PROMPT + "Other"]})
    await site.complete(prompt=PROMPT, **params)
    ours, theirs = site.engine.requests
    assert (ours.sampling, ours.prompts) == (theirs.sampling, theirs.prompts)


@pytest.mark.row("F-108")
async def test_objects_of_a_stream_have_the_texts_so_far(site):
    site.engine.answer = "Hello"
    reply = await site.post("/generate", prompt=PROMPT, stream=True, max_tokens=5)
    texts = [one["text"] for one in objects(reply.content)]
    assert texts == [[PROMPT + "Hello"[:length]] for length in range(1, 6)]


async def test_a_stream_shows_answers_that_have_not_begun(site):
    site.engine.answers = {0: "abc", 1: "xyz"}
    reply = await site.post("/generate", prompt=PROMPT, stream=True, n=2, max_tokens=3)
    texts = [one["text"] for one in objects(reply.content)]
    assert all(len(pair) == 2 and all(text.startswith(PROMPT) for text in pair) for pair in texts)
    assert texts[-1] == [PROMPT + "abc", PROMPT + "xyz"]
    assert len(texts) <= 6


async def test_tokens_are_limited_to_16_unless_a_request_says_otherwise(site):
    site.engine.answer = "x" * 99
    assert (await site.post("/generate", prompt=PROMPT)).json() == {"text": [PROMPT + "x" * 16]}


async def test_forced_usage_does_not_reach_this_format(start):
    site = await start(force_include_usage=True)
    reply = await site.post("/generate", prompt=PROMPT, stream=True)
    assert all(set(one) == {"text"} for one in objects(reply.content))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": [1, 2]}, "prompt"),
        ({"prompt": "x" * 600}, "prompt"),
        ({"prompt": PROMPT, "temperature": -1}, "temperature"),
        ({"prompt": PROMPT, "temprature": 1}, "temprature"),
        ({"prompt": PROMPT, "n": 1000}, "n"),
        ({"prompt": PROMPT, "stream": True, "use_beam_search": True}, "use_beam_search"),
        ({"prompt": PROMPT, "logprobs": 0}, "logprobs"),
        ({"prompt": PROMPT, "return_token_ids": True}, "return_token_ids"),
        ({"prompt": PROMPT, "kv_transfer_params": {"do_remote_decode": True}}, "kv_transfer_params"),
        ({"prompt": PROMPT, "logits_processors": ["x"]}, "logits_processors"),
    ],
)
async def test_unusable_requests_are_refused_by_name(site, body, param):
    reply = await site.post("/generate", **body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert not site.engine.requests


async def test_an_error_in_a_stream_is_an_object(site):
    site.engine.failure, site.engine.fail_after = EngineDied("gone"), 2
    reply = await site.post("/generate", prompt=PROMPT, stream=True)
    *texts, last = objects(reply.content)
    assert [one["text"] for one in texts] == [[PROMPT + "H"], [PROMPT + "He"]]
    assert last["error"]["message"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_aborts_its_request(site, stream):
    site.engine.answer, site.engine.pace = "x" * 10_000, 0.01
    task = asyncio.create_task(site.post("/generate", prompt=PROMPT, stream=stream, max_tokens=400))
    await until(lambda: site.engine.generated)
    task.cancel()
    await until(lambda: site.engine.aborted)
