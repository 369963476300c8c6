"""Chat completions as HTTP clients see them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from lsv_api.request_templates import RequestTemplates
from lsv_testing.fakes.client import EOS, FakeClient
from lsv_testing.fakes.text import letters


def events(text: str) -> list[Any]:
    """Parse a stream strictly: every event is one ``data:`` line and a blank line, the last is [DONE]."""
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    assert blocks.pop() == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


@pytest.mark.row("F-101", "F-112", "F-121", "F-157", "F-158")
async def test_answer(site):
    reply = await site.chat(max_tokens=5)
    body = reply.json()
    assert reply.status_code == 200
    assert body["id"].startswith("chatcmpl-")
    assert len(body["id"]) == len("chatcmpl-") + 32
    assert body["object"] == "chat.completion"
    assert body["model"] == "fake"
    choice = body["choices"][0]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"] == "Hello"
    assert choice["finish_reason"] == "length"
    assert choice["stop_reason"] is None
    prompt = len("<user>Hi\n<assistant>")
    assert body["usage"] == {
        "prompt_tokens": prompt,
        "total_tokens": prompt + 5,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 16},
    }
    assert choice["message"]["reasoning_content"] is choice["logprobs"] is None
    assert choice["message"]["tool_calls"] == []
    assert body["prompt_logprobs"] is body["kv_transfer_params"] is None
    assert list(body)[:6] == ["id", "object", "created", "model", "choices", "usage"]


@pytest.mark.row("F-1016", "F-161")
async def test_stream(site):
    reply = await site.chat(stream=True)
    assert reply.headers["content-type"].startswith("text/event-stream")
    found = events(reply.text)
    assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in found) == "Hello, world."
    assert found[-1]["choices"][0]["delta"] == {}
    assert found[-1]["choices"][0]["finish_reason"] == "stop"
    assert [event["choices"][0]["finish_reason"] for event in found[:-1]] == [None] * (len(found) - 1)
    assert len({event["id"] for event in found}) == 1
    assert all("usage" not in event for event in found)


@pytest.mark.row("F-1012", "F-1016", "F-126", "F-162")
@pytest.mark.parametrize("continuous", [False, True])
async def test_stream_usage(site, continuous):
    options = {"include_usage": True, "continuous_usage_stats": continuous}
    found = events((await site.chat(stream=True, stream_options=options)).text)
    assert found[-1]["choices"] == []
    assert found[-1]["usage"]["completion_tokens"] == len("Hello, world.") + 1
    counts = [event["usage"] and event["usage"]["completion_tokens"] for event in found[:-1]]
    assert counts == sorted(counts) and counts[0] == 1 if continuous else set(counts) == {None}


@pytest.mark.row("F-126")
async def test_candidates(site):
    site.engine.answers = {0: "first", 1: "second one"}
    body = (await site.chat(n=2)).json()
    assert [choice["message"]["content"] for choice in body["choices"]] == ["first", "second one"]
    found = events((await site.chat(n=2, stream=True)).text)
    texts = {0: "", 1: ""}
    for event in found:
        choice = event["choices"][0]
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == {0: "first", 1: "second one"}
    assert sum(event["choices"][0]["delta"].get("role") == "assistant" for event in found) == 2


@pytest.mark.row("F-133")
async def test_the_best_of_several_is_shown(site):
    site.engine.answers = {0: "sure", 1: "maybe", 2: "hardly"}
    body = (await site.chat(best_of=3)).json()
    assert [choice["message"]["content"] for choice in body["choices"]] == ["sure"]
    assert site.engine.requests[0].candidates == 3
    assert body["usage"]["completion_tokens"] == len("sure" + "maybe" + "hardly") + 3


@pytest.mark.row("F-126")
async def test_logprobs(site):
    body = (await site.chat(max_tokens=2, logprobs=True, top_logprobs=3)).json()
    content = body["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["H", "e"]
    assert content[0]["bytes"] == [72]
    assert [entry["token"] for entry in content[0]["top_logprobs"]] == ["H", "I", "J"]
    assert content[0]["logprob"] == content[0]["top_logprobs"][0]["logprob"] == -0.25
    plain = (await site.chat(max_tokens=2, logprobs=True)).json()
    assert plain["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
    found = events((await site.chat(max_tokens=2, logprobs=True, top_logprobs=1, stream=True)).text)
    shown = [event["choices"][0]["logprobs"] for event in found if event["choices"][0]["delta"].get("content")]
    assert [entry["content"][0]["token"] for entry in shown] == ["H", "e"]


@pytest.mark.row("F-163", "F-214")
async def test_tokens_as_ids(site, start):
    body = (await site.chat(max_tokens=1, logprobs=True, return_tokens_as_token_ids=True)).json()
    assert body["choices"][0]["logprobs"]["content"][0]["token"] == "token_id:72"
    always = await start(return_tokens_as_token_ids=True)
    body = (await always.complete(max_tokens=1, logprobs=1)).json()
    assert body["choices"][0]["logprobs"]["tokens"] == ["token_id:72"]


@pytest.mark.row("F-126", "F-158")
async def test_stop_reason(site):
    choice = (await site.chat(stop=["wor", ","])).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == (
        "Hello",
        "stop",
        ",",
    )


async def test_token_ids(site):
    body = (await site.chat(max_tokens=2, return_token_ids=True)).json()
    assert body["prompt_token_ids"][:6] == [*b"<user>"]
    assert body["choices"][0]["token_ids"] == [*b"He"]
    found = events((await site.chat(max_tokens=2, return_token_ids=True, stream=True)).text)
    assert found[0]["prompt_token_ids"] == body["prompt_token_ids"]
    assert [token for event in found for token in event["choices"][0].get("token_ids", ())] == [*b"He"]


@pytest.mark.row("F-147", "F-157")
async def test_prompt_logprobs(site):
    body = (await site.chat(prompt_logprobs=1, max_tokens=1)).json()
    assert body["prompt_logprobs"][0] is None
    assert body["prompt_logprobs"][1]["117"] == {"logprob": -0.25, "rank": 1, "decoded_token": "u"}
    assert len(body["prompt_logprobs"]) == body["usage"]["prompt_tokens"]


async def test_default_length_is_the_rest_of_the_context(site):
    await site.chat()
    request = site.engine.requests[0]
    assert request.sampling.max_tokens == 512 - len(request.prompt.ids)
    await site.chat(max_tokens=3, max_completion_tokens=4)
    assert site.engine.requests[1].sampling.max_tokens == 4


@pytest.mark.row("F-129", "F-152", "F-154")
async def test_messages_reach_the_template(site):
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief"}]},
        {"role": "user", "content": "Hi", "name": "ada"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "2"},
    ]
    documents = [{"title": "t", "text": "read me"}]
    await site.chat(messages=messages, documents=documents, chat_template_kwargs={"mood": "calm"})
    prompt = bytes(site.engine.requests[0].prompt.ids).decode()
    assert prompt == "<mood:calm>\n<doc>read me\n<system>Be\nbrief\n<user>Hi\n<assistant>\n<tool>2\n<assistant>"


@pytest.mark.row("F-146", "F-151")
async def test_special_tokens_and_truncation(site):
    await site.chat(add_special_tokens=True)
    assert site.engine.requests[0].prompt.ids[0] == 256
    await site.chat(truncate_prompt_tokens=4)
    assert bytes(site.engine.requests[1].prompt.ids) == b"ant>"
    await site.chat(truncate_prompt_tokens=4, add_special_tokens=True)
    assert site.engine.requests[2].prompt.ids == (256, *b"nt>")


@pytest.mark.row("F-149", "F-150")
async def test_continue_and_echo(site):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "I say: "}]
    asked = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    body = (await site.chat(**asked, echo=True, max_tokens=5)).json()
    assert bytes(site.engine.requests[0].prompt.ids) == b"<user>Hi\n<assistant>I say: "
    assert body["choices"][0]["message"] == {
        "role": "assistant",
        "content": "I say: Hello",
        "refusal": None,
        "reasoning_content": None,
        "tool_calls": [],
    }
    found = events((await site.chat(**asked, echo=True, max_tokens=5, stream=True)).text)
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in found) == "I say: Hello"


@pytest.mark.row("F-126", "F-135", "F-136", "F-137", "F-140", "F-141", "F-142", "F-143", "F-144", "F-145", "F-148")
async def test_parameters_reach_the_engine(site):
    await site.chat(
        temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, seed=3, presence_penalty=1, frequency_penalty=-1,
        repetition_penalty=1.1, stop="x", stop_token_ids=[5], include_stop_str_in_output=True,
        ignore_eos=True, min_tokens=2, skip_special_tokens=False, spaces_between_special_tokens=False,
        bad_words=["bad"], logit_bias={"7": 2.5}, allowed_token_ids=[1, 2], priority=3, cache_salt="tenant", user="u",
    )  # fmt: skip
    params = site.engine.requests[0].sampling
    assert (params.temperature, params.top_p, params.top_k, params.min_p, params.seed) == (
        0.5,
        0.9,
        7,
        0.1,
        3,
    )
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (1, -1, 1.1)
    assert (params.stop, params.stop_token_ids, params.bad_words) == (("x",), (5,), ("bad",))
    assert (params.include_stop_str_in_output, params.ignore_eos, params.min_tokens) == (True, True, 2)
    assert (params.skip_special_tokens, params.logit_bias, params.allowed_token_ids) == (
        False,
        {7: 2.5},
        (1, 2),
    )
    assert params.spaces_between_special_tokens is False
    assert site.engine.requests[0].priority == 3
    assert len(site.engine.requests[0].salt) == 32


async def test_neutral_values_of_other_servers_ask_for_nothing(site):
    reply = await site.chat(logprobs=False, top_logprobs=0, seed=-1)
    assert reply.status_code == 200, reply.text
    assert reply.json()["choices"][0]["logprobs"] is None
    assert site.engine.requests[0].sampling.seed is None
    assert site.engine.requests[0].sampling.logprobs is None


@pytest.mark.row("F-118")
async def test_chats_need_a_template_and_completions_do_not(start):
    engine = FakeClient()
    engine.tokenizer, engine.fit = letters(97), None
    site = await start(engine)
    refused = await site.chat()
    assert refused.status_code == 400
    assert "no chat template" in refused.json()["error"]["message"]
    assert (await site.complete(max_tokens=1)).status_code == 200


@pytest.mark.row("F-123")
async def test_the_headers_of_a_trace_travel_with_the_request(site):
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=1"}
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/embeddings", {"input": "Hi"}),
    ):
        await site.http.post(path, json=body, headers=trace)
        assert site.engine.requests[-1].trace == trace


@pytest.mark.row("F-153")
async def test_request_templates_need_permission(site, start):
    refused = await site.chat(chat_template="T")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "chat_template")
    open_site = await start(request_templates=True)
    await open_site.chat(chat_template="T{{ messages[0].content }}")
    assert bytes(open_site.engine.requests[0].prompt.ids) == b"THi"


async def test_a_request_s_template_can_not_take_the_server_s_time_or_memory(start):
    site = await start(request_templates=True, template_timeout=1.0, template_memory=96 << 20)
    endless = site.chat(chat_template="{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}")
    large = site.chat(chat_template="{% set a = 'a' * 200000000 %}x")
    (slow, huge), alive = await asyncio.gather(endless, large), await site.chat()
    for reply, message in ((slow, "--api-template-timeout"), (huge, "more than 96 MiB of memory")):
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "chat_template")
        assert message in reply.json()["error"]["message"]
    assert alive.status_code == 200
    assert (await site.chat(chat_template="T")).status_code == 200


async def test_arguments_that_are_more_than_flags_are_rendered_aside(start, monkeypatch):
    aside = []
    real = RequestTemplates.render

    async def render(self, template, messages, **rest):
        aside.append(rest["kwargs"])
        return await real(self, template, messages, **rest)

    monkeypatch.setattr(RequestTemplates, "render", render)
    site = await start()
    for kwargs in ({"enable_thinking": False, "mood": "calm", "budget": 7}, {"list": [1]}, {"text": "x" * 1000}):
        assert (await site.chat(chat_template_kwargs=kwargs)).status_code == 200
    assert aside == [{"list": [1]}, {"text": "x" * 1000}]


@pytest.mark.row("F-164", "F-208", "F-209")
async def test_server_template_and_role(start):
    site = await start(chat_template="mine", response_role="bot")
    assert (await site.chat()).json()["choices"][0]["message"]["role"] == "bot"
    assert bytes(site.engine.requests[0].prompt.ids).startswith(b"mine\n")


async def test_neutral_values_of_unavailable_fields(site):
    reply = await site.chat(
        tools=[], tool_choice="none", response_format={"type": "text"}, guided_json=None,
        use_beam_search=False, length_penalty=1.0, modalities=["text"], metadata={"a": "b"},
        something_else=1, model="fake",
    )  # fmt: skip
    assert reply.status_code == 200


async def test_eos_counts_as_a_token(site):
    site.engine.answer = "ab"
    assert (await site.chat()).json()["usage"]["completion_tokens"] == 3
    assert EOS not in site.engine.requests[0].prompt.ids


@pytest.mark.parametrize("arguments", ['{"city": "Be', "not JSON", "", None, ..., {"city": "Bern"}])
async def test_calls_of_earlier_answers_are_taken_back(site, arguments):
    function = {"name": "get_weather"} | ({} if arguments is ... else {"arguments": arguments})
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c1", "content": "the arguments were invalid"},
    ]
    assert (await site.chat(messages=messages)).status_code == 200
    assert (await site.http.post("/tokenize", json={"messages": messages})).status_code == 200


async def test_refusals_and_plain_texts_are_parts(site):
    messages = [
        {"role": "user", "content": ["Hi", {"type": "text", "text": "there"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "user", "content": "Why?"},
    ]
    assert (await site.chat(messages=messages)).status_code == 200
    assert bytes(site.engine.requests[0].prompt.ids) == b"<user>Hi\nthere\n<assistant>No.\n<user>Why?\n<assistant>"
    padded = [{"role": "user", "content": ["x" * 70_000, {"type": "refusal"}]}]
    refused = await site.chat(messages=padded)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages[0].content[1].refusal")
