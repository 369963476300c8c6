"""Ollama's routes that answer: what the engine is asked, and every line that clients read."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from lsv_base.errors import RequestFailed
from lsv_testing.fakes.client import BOS, FakeClient
from suite.waiting import until

USER = [{"role": "user", "content": "Hi"}]
ASKED = {"model": "fake", "messages": USER}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>'
COUNTS = ("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration")


def lines(reply) -> list[dict[str, Any]]:
    assert reply.headers["content-type"] == "application/x-ndjson"
    assert reply.text.endswith("\n")
    return [json.loads(line) for line in reply.text.splitlines()]


async def whole(site, path: str = "/api/chat", **body: Any) -> dict[str, Any]:
    reply = await site.post(path, **{"model": "fake", "stream": False, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


async def refused(site, path: str = "/api/chat", **body: Any) -> str:
    """The message of an error in Ollama's form."""
    reply = await site.post(path, **{"model": "fake", "messages": USER, "prompt": "Hi", **body})
    assert reply.status_code == 400, reply.text
    assert set(reply.json()) == {"error"}
    return reply.json()["error"]


@pytest.fixture
async def thinker(start):
    return await start(FakeClient(answer="<think>Well.</think>Yes."), reasoning_parser="qwen3")


async def test_chats_are_streamed_unless_stream_is_false(site):
    told = lines(await site.post("/api/chat", **ASKED))
    assert "".join(one["message"]["content"] for one in told) == "Hello, world."
    assert all(one["message"]["role"] == "assistant" and one["model"] == "fake" for one in told)
    assert [one["done"] for one in told] == [False] * 13 + [True]
    assert not any(name in one for one in told[:-1] for name in (*COUNTS, "done_reason"))
    assert told[-1]["done_reason"] == "stop"
    answer = await whole(site, messages=USER)
    assert (answer["message"], answer["done"]) == ({"role": "assistant", "content": "Hello, world."}, True)


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
async def test_the_last_object_has_counts_and_durations(site, path):
    site.engine.pace = 0.002
    answer = await whole(site, path, messages=USER, prompt="Hi")
    assert (answer["prompt_eval_count"], answer["eval_count"]) == (len("<user>Hi\n<assistant>"), 14)
    parts = [answer[f"{part}_duration"] for part in ("load", "prompt_eval", "eval")]
    assert all(isinstance(part, int) and part > 0 for part in parts)
    assert 0 <= answer["total_duration"] - sum(parts) < 50_000_000
    assert 13 * 2_000_000 <= answer["eval_duration"] < 20_000_000_000, "nanoseconds"


async def test_generate_renders_the_template_and_raw_does_not(site):
    told = lines(await site.post("/api/generate", model="fake", prompt="Hi", system="Be brief"))
    assert "".join(one["response"] for one in told) == "Hello, world."
    rendered = b"<system>Be brief\n<user>Hi\n<assistant>"
    assert site.engine.requests[0].prompt.ids == tuple(rendered)
    assert told[-1]["context"] == [*rendered, *b"Hello, world.", 257]
    raw = await whole(site, "/api/generate", prompt="Hi", raw=True)
    assert site.engine.requests[1].prompt.ids == (BOS, *b"Hi")
    assert (raw["response"], "context" in raw) == ("Hello, world.", False)


async def test_generate_goes_on_from_a_context(site):
    context = [BOS, *b"before", 257]
    answer = await whole(site, "/api/generate", prompt="Hi", context=context)
    prompt = (*context, *b"<user>Hi\n<assistant>")
    assert site.engine.requests[0].prompt.ids == prompt
    assert answer["context"][: len(prompt)] == list(prompt)
    assert "context: 999 is not a token id" in await refused(site, "/api/generate", context=[999])


async def test_a_request_is_the_same_as_in_chat_completions(start):
    site = await start(FakeClient(answer=CALL), tool_call_parser="hermes")
    sampling = {"temperature": 0.5, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "seed": 7, "stop": ["x"],
                "presence_penalty": 0.5, "frequency_penalty": 0.25}  # fmt: skip
    options = {**sampling, "num_predict": 40, "repeat_penalty": 1.2, "repeat_last_n": -1}
    await site.chat(messages=USER, tools=[TOOL], max_tokens=40, repetition_penalty=1.2, **sampling)
    await whole(site, messages=USER, tools=[TOOL], options=options)
    await site.post("/api/chat", **ASKED, tools=[TOOL], options=options)
    theirs, plain, streamed = site.engine.requests
    assert theirs.sampling == plain.sampling == streamed.sampling
    assert theirs.prompts == plain.prompts == streamed.prompts
    usage = [(record.prompt_tokens, record.tokens, record.finish) for record in site.engine.finished]
    assert len(set(usage)) == 1


async def test_options_of_loading_and_neutral_ones_change_nothing(site):
    neutral = {"num_ctx": 99999, "num_keep": 4, "num_gpu": 1, "num_thread": 2, "use_mmap": True, "numa": False,
               "mirostat": 0, "mirostat_tau": 5.0, "typical_p": 1.0, "tfs_z": 1, "repeat_last_n": 64,
               "penalize_newline": False, "num_predict": -1, "repeat_penalty": 1.0, "seed": -1}  # fmt: skip
    await whole(site, messages=USER)
    await whole(site, messages=USER, options=neutral, keep_alive="5m", truncate=True, shift=False)
    before, after = (request.sampling for request in site.engine.requests)
    assert before == after.replace(seed=None)


async def test_no_window_is_no_penalty(site):
    await whole(site, messages=USER, options={"repeat_last_n": 0, "repeat_penalty": 1.5, "presence_penalty": 1})
    sampling = site.engine.requests[0].sampling
    assert (sampling.repetition_penalty, sampling.presence_penalty) == (1, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mirostat": 1}, "options.mirostat is not available"),
        ({"typical_p": 0.5}, "options.typical_p is not available"),
        ({"repeat_last_n": 64, "repeat_penalty": 1.1}, "options.repeat_last_n: penalties count"),
        ({"penalize_newline": False, "presence_penalty": 1}, "options.penalize_newline: penalties count"),
        ({"num_predict": 0}, "options.num_predict must be at least 1, or -1"),
        ({"temperature": -1}, "options.temperature must be between"),
        ({"repeat_penalty": -1}, "options.repeat_penalty must be between"),
        ({"top_k": "many"}, "options.top_k: expected int"),
        ({"temprature": 1}, "did you mean 'options.temperature'"),
    ],
)
async def test_options_that_cannot_be_honoured_are_refused_by_name(site, options, message):
    for path in ("/api/chat", "/api/generate"):
        assert message in await refused(site, path, options=options)
    assert message in await refused(site, "/api/generate", options=options, raw=True)
    assert not site.engine.requests


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"suffix": "b"}, "suffix is not available"),
        ({"template": "{{ .Prompt }}"}, "template is not available"),
        ({"width": 64}, "width is not available"),
        ({"_debug_render_only": True}, "_debug_render_only is not available"),
        ({"raw": True, "system": "x"}, "system can't be combined with raw"),
        ({"raw": True, "context": [1]}, "context can't be combined with raw"),
        ({"context": [1], "images": ["QUJD"]}, "images can't follow a context"),
        ({"format": "xml"}, 'format must be "json" or a JSON schema'),
        ({"think": "hard"}, "think must be true, false"),
        ({"think": True}, '"fake" does not support thinking'),
        ({"keep_alive": "soon"}, "keep_alive must be a number of seconds or a duration"),
        ({"top_logprobs": 2}, "top_logprobs needs logprobs"),
        ({"raw": True, "top_logprobs": 2}, "top_logprobs needs logprobs"),
        ({"model": ""}, "model is required"),
    ],
)
async def test_fields_that_cannot_be_honoured_are_refused_by_name(site, body, message):
    assert message in await refused(site, "/api/generate", **body)
    assert not site.engine.requests


async def test_lengths_end_with_the_context(site):
    answer = await whole(site, messages=USER, options={"num_predict": 5})
    assert (answer["message"]["content"], answer["done_reason"]) == ("Hello", "length")
    assert (await whole(site, messages=USER, options={"num_predict": 99999}))["done_reason"] == "stop"
    long = await refused(site, messages=[{"role": "user", "content": "x" * 2000}])
    assert "maximum context length is 512 tokens" in long
    assert "truncate_prompt_tokens" not in long


async def test_formats_reach_the_engine(site):
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    for given in (None, "", "json", schema):
        await whole(site, messages=USER, format=given)
        await whole(site, "/api/generate", prompt="Hi", format=given)
    forms = [request.sampling.structured_outputs for request in site.engine.requests[::2]]
    assert forms == [request.sampling.structured_outputs for request in site.engine.requests[1::2]]
    assert [form and form.form for form in forms] == [None, None, "json_object", "json"]
    assert json.loads(forms[3].text) == schema


async def test_thoughts_are_a_field_of_their_own(thinker):
    told = lines(await thinker.post("/api/chat", **ASKED, think=True))
    assert "".join(one["message"].get("thinking", "") for one in told) == "Well."
    assert "".join(one["message"]["content"] for one in told) == "Yes."
    assert (await whole(thinker, messages=USER))["message"]["thinking"] == "Well."
    answer = await whole(thinker, "/api/generate", prompt="Hi", think="high")
    assert (answer["thinking"], answer["response"]) == ("Well.", "Yes.")


@pytest.mark.parametrize(
    ("think", "shown"),
    [
        (None, ""),
        (False, "<enable_thinking:False>\n<thinking:False>\n"),
        (True, "<enable_thinking:True>\n<thinking:True>\n"),
        ("low", "<reasoning_effort:low>\n<enable_thinking:True>\n<thinking:True>\n"),
    ],
)
async def test_think_is_a_switch_of_the_template(thinker, think, shown):
    answer = await whole(thinker, messages=USER, think=think)
    assert bytes(thinker.engine.requests[0].prompt.ids).decode() == f"{shown}<user>Hi\n<assistant>"
    assert ("thinking" in answer["message"]) is (think is not False)


async def test_calls_are_written_whole_with_arguments_as_objects(start):
    site = await start(FakeClient(answer=f"Let me see. {CALL}\n{CALL}"), tool_call_parser="hermes")
    told = lines(await site.post("/api/chat", **ASKED, tools=[TOOL]))
    calls = [call for one in told for call in one["message"].get("tool_calls", ())]
    assert [call["function"] for call in calls] == [
        {"index": index, "name": "get_weather", "arguments": {"city": "Bern"}} for index in range(2)
    ]
    assert [len(one["message"]["tool_calls"]) for one in told if "tool_calls" in one["message"]] == [1, 1]
    assert (told[-1]["done_reason"], "tool_calls" in told[-1]["message"]) == ("stop", False)
    answer = await whole(site, messages=USER, tools=[TOOL])
    assert answer["message"]["content"] == "Let me see."
    assert [call["function"] for call in answer["message"]["tool_calls"]] == [call["function"] for call in calls]


async def test_a_call_that_was_cut_off_is_left_out(start):
    site = await start(FakeClient(answer=CALL), tool_call_parser="hermes")
    answer = await whole(site, messages=USER, tools=[TOOL], options={"num_predict": len(CALL) - 20})
    assert (answer["done_reason"], "tool_calls" in answer["message"]) == ("length", False)


async def test_tools_of_a_model_without_calls_are_refused_in_ollamas_words(site):
    assert '"fake" does not support tools' in await refused(site, tools=[TOOL])


async def test_log_probabilities_are_those_of_the_tokens_of_each_object(site):
    told = lines(await site.post("/api/chat", **ASKED, logprobs=True, top_logprobs=2))
    scored = [one for line in told for one in line.get("logprobs", ())]
    theirs = (await site.chat(logprobs=True, top_logprobs=2)).json()["choices"][0]["logprobs"]["content"]
    assert scored == theirs
    raw = await whole(site, "/api/generate", prompt="Hi", raw=True, logprobs=True)
    assert [one["token"] for one in raw["logprobs"][:3]] == ["H", "e", "l"]
    assert raw["logprobs"][0]["top_logprobs"] == []


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/api/chat", {}, "load"),
        ("/api/chat", {"messages": [], "keep_alive": -1}, "load"),
        ("/api/generate", {"keep_alive": "5m"}, "load"),
        ("/api/generate", {"prompt": "", "keep_alive": 300}, "load"),
    ],
)
async def test_a_request_without_a_question_loads_the_model(site, path, body, reason):
    answer = (await site.post(path, model="fake", **body)).json()
    assert (answer["done"], answer["done_reason"], "total_duration" in answer) == (True, reason, False)
    assert not site.engine.requests


@pytest.mark.parametrize("keep_alive", [0, "0", "0s", "0m0s"])
async def test_unloading_is_refused_and_told_so(site, keep_alive):
    for path in ("/api/chat", "/api/generate"):
        reply = await site.post(path, model="fake", keep_alive=keep_alive)
        assert (reply.status_code, "keep_alive 0 unloads a model" in reply.json()["error"]) == (400, True)
    assert (await whole(site, messages=USER, keep_alive=keep_alive))["done_reason"] == "stop"


async def test_an_error_within_a_stream_is_its_last_line(site):
    site.engine.failure, site.engine.fail_after = RequestFailed("it broke"), 3
    told = lines(await site.post("/api/chat", **ASKED))
    assert [one["message"]["content"] for one in told[:-1]] == list("Hel")
    assert told[-1] == {"error": "it broke"}
    site.engine.fail_after = 0
    reply = await site.post("/api/chat", **ASKED)
    assert (reply.status_code, reply.json()) == (500, {"error": "it broke"})


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
async def test_a_client_that_leaves_aborts_its_request(site, path, stream):
    site.engine.answer, site.engine.pace = "x" * 10_000, 0.01
    body = {"model": "fake", "messages": USER, "prompt": "Hi", "stream": stream}
    task = asyncio.create_task(site.post(path, **body))
    await until(lambda: site.engine.generated)
    task.cancel()
    await until(lambda: site.engine.aborted)
    await until(lambda: site.app.ctx.api.traffic.running == 0)


async def test_a_body_needs_no_content_type(site):
    body = json.dumps({**ASKED, "stream": False}).encode()
    for kind in ({}, {"content-type": "application/x-www-form-urlencoded"}):
        reply = await site.http.post("/api/chat", content=body, headers=kind)
        assert reply.json()["message"]["content"] == "Hello, world."
