"""Routes that show what the model is shown, take token ids, and tell how the server is configured."""

from __future__ import annotations

import asyncio
import json

import pytest

from lsv_testing.fakes.client import BOS, EOS, FakeClient, fake_config
from suite.waiting import until

USER = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "get_weather"}}
IDS = [BOS, *b"Hi"]


def events(text: str) -> list[dict]:
    blocks = [block.removeprefix("data: ") for block in text.split("\n\n") if block]
    assert blocks.pop() == "[DONE]"
    return [json.loads(block) for block in blocks]


@pytest.mark.parametrize("more", [{}, {"tools": [TOOL]}, {"chat_template_kwargs": {"enable_thinking": False}}])
async def test_a_conversation_is_shown_as_the_model_is_shown_it(start, more):
    site = await start(tool_call_parser="hermes", api_keys=("k",))
    site.http.headers["authorization"] = "Bearer k"
    rendered = (await site.post("/v1/chat/completions/render", messages=USER, **more)).json()
    applied = (await site.post("/apply-template", messages=USER, **more)).json()
    assert not site.engine.requests
    await site.chat(messages=USER, **more)
    shown = site.engine.requests[0].prompt
    assert rendered["token_ids"] == applied["token_ids"] == list(shown.ids)
    assert rendered["prompt"] == applied["prompt"] == bytes(shown.ids).decode()
    assert rendered["model"] == "fake"


async def test_a_conversation_that_cannot_be_answered_is_refused(site):
    reply = await site.post("/v1/chat/completions/render", messages=[{"role": "user", "content": "x" * 600}])
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")
    reply = await site.post("/apply-template", messages=USER, tools=[TOOL])
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tools")


async def test_token_ids_in_and_out(site):
    params = {"n": 2, "temperature": 0.5, "stop": ["zz"], "logprobs": 1, "max_tokens": 5}
    site.engine.answers = {1: "Other"}
    reply = (await site.post("/inference/v1/generate", token_ids=IDS, sampling_params=params, request_id="mine")).json()
    assert [choice["token_ids"] for choice in reply["choices"]] == [[*b"Hello"], [*b"Other"]]
    assert [choice["finish_reason"] for choice in reply["choices"]] == ["length"] * 2
    assert len(reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 1
    assert (reply["request_id"], reply["usage"]["completion_tokens"]) == ("mine", 10)
    await site.complete(prompt=IDS, **params)
    ours, theirs = site.engine.requests
    assert (ours.sampling, ours.prompts) == (theirs.sampling, theirs.prompts)


async def test_token_ids_are_streamed(site):
    body = {"token_ids": IDS, "stream": True, "stream_options": {"include_usage": True}}
    told = events((await site.post("/inference/v1/generate", **body)).text)
    ids = [token for one in told[:-1] for token in one["choices"][0]["token_ids"]]
    assert ids == [*b"Hello, world.", EOS]
    assert [one["choices"][0]["finish_reason"] for one in told[:-1]] == [None] * 13 + ["stop"]
    assert (told[-1]["choices"], told[-1]["usage"]["completion_tokens"]) == ([], 14)


async def test_prompts_are_scored(site):
    params = {"prompt_logprobs": 1, "max_tokens": 1}
    ours = (await site.post("/inference/v1/generate", token_ids=IDS, sampling_params=params)).json()
    theirs = (await site.complete(prompt=IDS, **params)).json()
    assert ours["prompt_logprobs"] == theirs["choices"][0]["prompt_logprobs"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [999]}, "token_ids"),
        ({"token_ids": [1] * 600}, "token_ids"),
        ({"token_ids": IDS, "features": {"mm_hashes": {}}}, "features"),
        ({"token_ids": IDS, "sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        ({"token_ids": IDS, "sampling_params": {"temprature": 1}}, "sampling_params.temprature"),
        ({"token_ids": IDS, "sampling_params": {"n": 1000}}, "sampling_params.n"),
        ({"token_ids": IDS, "stream": True, "sampling_params": {"prompt_logprobs": 1}},
         "sampling_params.prompt_logprobs"),
        ({"token_ids": IDS, "kv_transfer_params": {"do_remote_decode": True}}, "kv_transfer_params"),
    ],
)  # fmt: skip
async def test_what_cannot_be_honoured_is_refused_by_name(site, body, param):
    reply = await site.post("/inference/v1/generate", **body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert not site.engine.requests


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_aborts_its_request(site, stream):
    site.engine.answer, site.engine.pace = "x" * 10_000, 0.01
    body = {"token_ids": IDS, "stream": stream, "sampling_params": {"max_tokens": 400}}
    task = asyncio.create_task(site.post("/inference/v1/generate", **body))
    await until(lambda: site.engine.generated)
    task.cancel()
    await until(lambda: site.engine.aborted)


async def test_the_server_tells_how_it_is_configured_without_paths(start):
    path = "/srv/models/fake.gguf"
    site = await start(FakeClient(fake_config(unlisted_names=(path,), quantization="int4")), api_keys=("k",))
    site.http.headers["authorization"] = "Bearer k"
    told = [await site.http.get(route) for route in ("/server_info", "/tokenizer_info", "/load", "/ping")]
    assert all(reply.status_code == 200 for reply in told)
    text = "".join(reply.text for reply in told)
    assert not any(secret in text for secret in ("/srv", "/models/fake", '"k"'))
    (engine,) = told[0].json()["models"]
    assert (engine["model"], engine["quantization"], engine["max_model_len"]) == ("fake", "int4", 512)
    assert engine["num_blocks"] == 64


async def test_a_tokenizer_is_described(site):
    told = (await site.http.get("/tokenizer_info")).json()
    assert told["chat_template"] == site.engine.tokenizer.template
    assert (told["vocab_size"], told["bos_token_id"], told["eos_token_ids"]) == (260, BOS, [EOS])
    assert (await site.http.get("/tokenizer_info?model=other")).status_code == 404


async def test_the_load_counts_requests_that_are_answered(site):
    assert (await site.http.get("/load")).json() == {"server_load": 0}
    site.engine.gate.clear()
    tasks = [asyncio.create_task(site.chat()) for _ in range(3)]
    await until(lambda: len(site.engine.requests) == 3)
    assert (await site.http.get("/load")).json() == {"server_load": 3}
    site.engine.gate.set()
    await asyncio.gather(*tasks)
    assert (await site.http.get("/load")).json() == {"server_load": 0}
