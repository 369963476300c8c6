"""Every bad input gets the right status and an OpenAI-shaped error that names the field."""

from __future__ import annotations

import json
import logging

import pytest

from lsv.engine.client import EngineStatus
from lsv_api.limits import Limits
from lsv_api.prompt_log import PromptLog
from lsv_base.errors import EngineDied, Overloaded, RequestFailed
from lsv_testing.fakes.client import BOS

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def chat(**fields):
    return {"messages": [{"role": "user", "content": "Hi"}], **fields}


def message(**fields):
    return {"messages": [fields]}


def check(reply, status, param=None, code=None):
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert "Traceback" not in error["message"]
    assert error["param"] == param
    if code:
        assert error["code"] == code


@pytest.mark.row("F-110", "F-163")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [[1], "a"]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [260]}, "prompt"),
        ({"prompt": [10**30]}, "prompt"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": None}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": ["x"] * 1025}, "prompt"),
        ({"prompt": "x" * 600}, "prompt"),
        ({"prompt": [1] * 512}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "3"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": 512}, "prompt"),
        ({"max_tokens": 10**40}, "prompt"),
        ({"min_tokens": 17}, "min_tokens"),
        ({"n": 0}, "n"),
        ({"n": 10**9}, "n"),
        ({"n": 2, "temperature": 0}, "n"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"seed": 10**30}, "seed"),
        ({"logprobs": -1}, "logprobs"),  # the whole vocabulary, which --max-logprobs does not allow
        ({"logprobs": -2}, "logprobs"),
        ({"top_k": 10**400}, "top_k"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"echo": True, "logprobs": 1, "n": 2, "stream": True}, "n"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop": 5}, "stop"),
        ({"bad_words": [""]}, "bad_words"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [999]}, "allowed_token_ids"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"²": 1}}, "logit_bias"),
        ({"logit_bias": {"999": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"stream": "yes"}, "stream"),
        ({"suffix": "end"}, "suffix"),
        ({"media_io_kwargs": {"image": {}}}, "media_io_kwargs"),
        ({"return_prompt_text": True}, "return_prompt_text"),
        ({"stream_interval": 5}, "stream_interval"),
        ({"guided_json": "{}", "guided_regex": "a+"}, "guided_json"),
        ({"use_beam_search": True, "stream": True}, "use_beam_search"),
        ({"response_format": {"type": "structural_tag"}}, "response_format"),
        ({"temprature": 1}, "temprature"),
        ({"regex": "a+"}, "regex"),
        ({"thinking_token_budget": 5}, "thinking_token_budget"),
        ({"lora_path": "x"}, "lora_path"),
        ({"min_new_tokens": 5}, "min_new_tokens"),
        ({"sampling_seed": 5}, "sampling_seed"),
        ({"truncation_side": "middle"}, "truncation_side"),
        ({"max_token": 1}, "max_token"),
        ({"model": 5}, "model"),
        ({"priority": 10**20}, "priority"),
    ],
)
async def test_bad_completions(site, fields, param):
    check(await site.complete(**fields), 400, param)


async def test_empty_prompt(site):
    assert (await site.complete(prompt="")).status_code == 200, "the tokenizer's BOS alone is a prompt"
    check(await site.complete(prompt="", add_special_tokens=False), 400, "prompt")


@pytest.mark.row("F-1012", "F-163", "F-974")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": ["Hi"]}, "messages[0]"),
        ({"messages": [{}]}, "messages[0].role"),
        (message(role="user"), "messages[0].content"),
        (message(role="user", content=None), "messages[0].content"),
        (message(role="user", content=5), "messages[0].content"),
        (message(role="no role\n", content="x"), "messages[0].role"),
        (message(role="untemplated", content="x"), "messages"),
        (message(role="user", content=[{"type": "text"}]), "messages[0].content[0].text"),
        (
            message(role="user", content=[{"type": "image_url", "image_url": {"url": "x"}}]),
            "messages[0].content[0]",
        ),
        (message(role="user", content=[{"text": "x"}]), "messages[0].content[0].type"),
        (
            message(role="assistant", tool_calls=[{"function": {"name": "f", "arguments": 3}}]),
            "messages[0].tool_calls[0].function.arguments",
        ),
        (message(role="assistant", content="x", function_call={"name": "f"}), "messages[0].function_call"),
        (message(role="assistant", content="x", audio={"id": "a"}), "messages[0].audio"),
        (message(role="assistant", content="x", prefix=True), "messages[0].prefix"),
        (chat(stream=True, stream_options={"include_usge": True}), "stream_options.include_usge"),
        (chat(tools=[{"type": "function", "function": {"name": "f"}, "strict": True}]), "tools[0].strict"),
        (chat(tools=[{"type": "function", "function": {"name": "f", "paramters": {}}}]), "tools[0].function.paramters"),
        (
            chat(tools=[{"type": "function", "function": {"name": "f", "input_schema": {}}}]),
            "tools[0].function.input_schema",
        ),
        ({"messages": [{"role": "user", "content": "x"}] * 5000}, "messages"),
        (chat(tools=[{"type": "function"}]), "tools[0].function"),
        (chat(tool_choice="required"), "tool_choice"),
        (chat(response_format={"type": "json_schema"}), "response_format.json_schema"),
        (chat(modalities=["audio"]), "modalities"),
        (chat(audio={"voice": "x"}), "audio"),
        (chat(top_logprobs=2), "top_logprobs"),
        (chat(top_logprobs=-1), "top_logprobs"),
        (chat(logprobs=True, top_logprobs=-1), "top_logprobs"),
        (chat(logprobs=True, top_logprobs=-2), "top_logprobs"),
        (chat(logprobs=True, top_logprobs=21), "top_logprobs"),
        (chat(logprobs=1), "logprobs"),
        (chat(max_completion_tokens=5000), "messages"),
        (chat(chat_template="x"), "chat_template"),
        (chat(continue_final_message=True, add_generation_prompt=True), "continue_final_message"),
        (chat(chat_template_kwargs=[1]), "chat_template_kwargs"),
        (chat(documents="x"), "documents"),
    ],
)
async def test_bad_chats(site, fields, param):
    check(await site.post(CHAT, **fields), 400, param)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/v1/embeddings", {}, "input"),
        ("/v1/embeddings", {"input": []}, "input"),
        ("/v1/embeddings", {"input": "x" * 600}, "input"),
        ("/v1/embeddings", {"input": "x", "dimensions": 5}, "dimensions"),
        ("/v1/embeddings", {"input": "x", "encoding_format": "hex"}, "encoding_format"),
    ],
)
async def test_bad_others(site, path, fields, param):
    check(await site.post(path, **fields), 400, param)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"nonsense", b"[]", b"null", b"5", b'"text"', b"\xff\xfe", b'{"prompt": "\xff"}',
        b"\xef\xbb\xbf{}", b'{"prompt": "\\ud800"}', b'{"prompt": "a\\ud800b"}',
        b'{"prompt": "\\udc00\\ud800 "}', b"[" * 100_000, b'{"a":' * 50_000,
        b'{"prompt":' + b"[" * 800 + b"]" * 800 + b"}", b'{"prompt": "Hi", "temperature": NaN}',
        b'{"prompt": "Hi", "temperature": Infinity}', b'{"prompt": "Hi", "temperature": 1e999}',
        b'{"prompt": "Hi", "n": 1' + b"0" * 5000 + b"}", b"prompt=Hi", b'{"prompt": "Hi"} trailing',
        b"{'prompt': 1}",
    ],
)  # fmt: skip
async def test_bad_json(site, body):
    reply = await site.http.post(COMPLETIONS, content=body)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["type"] == "invalid_request_error"


async def test_tolerated_json(site):
    for headers in ({}, {"content-type": "application/x-www-form-urlencoded"}):
        assert (await site.http.post(COMPLETIONS, content=b'{"prompt": "Hi"}', headers=headers)).status_code == 200
    twice = await site.http.post(COMPLETIONS, content=b'{"prompt": "Hi", "max_tokens": 1, "max_tokens": 2}')
    assert twice.json()["usage"]["completion_tokens"] == 2
    assert (await site.complete(prompt="a\0b")).status_code == 200


async def test_context_length_has_its_own_code(site):
    check(await site.complete(prompt=[1] * 512), 400, "prompt", "context_length_exceeded")
    check(
        await site.chat(messages=[{"role": "user", "content": "x" * 999}]),
        400,
        "messages",
        "context_length_exceeded",
    )
    assert (await site.complete(prompt=[1] * 511, max_tokens=1)).status_code == 200


async def test_body_limit(start):
    site = await start(limits=Limits(body_bytes=1000, text_bytes=1000))
    check(await site.complete(prompt="x" * 2000), 413, code="request_too_large")

    async def pieces():
        for _ in range(50):
            yield b"x" * 100

    check(await site.http.post(COMPLETIONS, content=pieces()), 413, code="request_too_large")
    assert (await site.complete()).status_code == 200


async def test_body_that_never_ends(start):
    site = await start(body_timeout=0.2)

    async def pieces():
        import asyncio

        yield b'{"prompt": '
        await asyncio.sleep(1)

    check(await site.http.post(COMPLETIONS, content=pieces()), 408, code="request_timeout")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("GET", "/v1", 404),
        ("POST", "//v1/completions", 404),
        ("GET", "/v1/models/nope", 404),
        ("GET", COMPLETIONS, 405),
        ("PUT", CHAT, 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health", 405),
        ("OPTIONS", CHAT, 405),
    ],
)
async def test_routing(site, method, path, status):
    reply = await site.http.request(method, site.server.address + path)
    assert reply.status_code == status, reply.text
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.row("F-111")
async def test_unknown_model(site):
    check(await site.complete(model="other"), 404, "model", "model_not_found")


@pytest.mark.parametrize(
    ("failure", "status", "code", "retry"),
    [
        (Overloaded("the queue is full"), 429, "overloaded", "1"),
        (EngineDied("gone"), 503, "engine_died", "5"),
        (RequestFailed("logits are not finite"), 500, "request_failed", None),
        (RuntimeError("secret detail"), 500, "internal_error", None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_engine_errors(site, caplog, failure, status, code, retry, stream):
    site.engine.failure = failure
    reply = await site.chat(stream=stream)
    check(reply, status, code=code)
    assert reply.headers.get("retry-after") == retry
    assert "secret" not in reply.text
    if code == "internal_error":
        assert reply.headers["x-request-id"] in caplog.text


async def test_error_inside_a_stream(site):
    site.engine.failure, site.engine.fail_after = RequestFailed("logits are not finite"), 3
    lines = (await site.chat(stream=True)).text.strip().split("\n\n")
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[-2].removeprefix("data: "))["error"]["code"] == "request_failed"
    assert sum('"content":"' in line for line in lines) == 4


async def test_one_failing_prompt_fails_the_request(site):
    site.engine.failure, site.engine.fail_after = RequestFailed("broken"), 2
    check(await site.complete(prompt=["a", "b", "c"]), 500, code="request_failed")


@pytest.mark.row("F-1012", "F-105", "F-119", "F-847")
@pytest.mark.parametrize("state", ["loading", "draining", "dead"])
async def test_not_ready(start, state):
    site = await start(keep_alive_on_engine_death=True)
    site.engine.status = EngineStatus(state=state, stage="weights", done=3, total=9, error="out of memory")
    reply = await site.chat()
    assert reply.status_code == 503
    assert reply.headers["retry-after"] == "5"
    health = await site.http.get("/health")
    assert health.status_code == (await site.http.get("/ready")).status_code == 503
    assert health.json()["status"] == state
    assert health.json()["models"][0]["done"] == 3
    assert (await site.http.get("/live")).status_code == 200


@pytest.mark.row("F-122")
async def test_logs_hold_no_prompts_and_no_control_characters(site, caplog):
    caplog.set_level(logging.DEBUG)
    await site.chat(messages=[{"role": "user", "content": "my secret"}], **{"odd\nfield": 1})
    await site.http.get("/x%0aforged", headers={"x-request-id": "a b"})
    ours = [record for record in caplog.records if record.name == "lsv.api"]
    line = next(record.getMessage() for record in ours if "200" in record.getMessage())
    assert line.startswith("POST /v1/chat/completions 200 req=")
    assert "tokens=14" in line
    assert "ttft=" in line
    assert not any("secret" in record.getMessage() or "\n" in record.getMessage() for record in ours)


async def test_probes_are_logged_at_level_debug_unless_they_fail(site, caplog):
    caplog.set_level(logging.DEBUG)
    for path in ("/health", "/ready", "/live", "/metrics", "/version"):
        await site.http.get(path)
    site.engine.status = EngineStatus(state="loading", stage="weights", done=3, total=9)
    await site.http.get("/ready")
    await site.http.get("/v1/models")
    await site.http.post("/health")
    levels = {
        " ".join(line.getMessage().split()[:3]): line.levelname for line in caplog.records if line.name == "lsv.api"
    }
    assert {line for line, level in levels.items() if level == "INFO"} == {"GET /v1/models 200", "POST other 405"}
    assert levels["GET /ready 200"] == levels["GET /ready 503"] == levels["GET /metrics 200"] == "DEBUG"


@pytest.mark.row("F-219")
async def test_requests_need_not_be_logged(start, caplog):
    caplog.set_level(logging.INFO)
    site = await start(log_requests=False)
    await site.chat()
    ours = [record.getMessage() for record in caplog.records if record.name == "lsv.api"]
    assert not any(line.startswith("POST ") for line in ours)


@pytest.mark.row("F-220")
@pytest.mark.parametrize("most", [None, 7, 0])
async def test_prompts_are_logged_where_that_is_asked_for(start, caplog, most):
    caplog.set_level(logging.INFO)
    site = await start(prompt_log=PromptLog(most))
    text = "abc\nPOST /forged\x1b[2J\u202e"
    reply = await site.complete(prompt=[text, "second"], temperature=0.5, stop=["x\ny"])
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("prompt ")]
    assert not any(character in "".join(lines) for character in "\n\x1b\u202e")
    assert f" prompt={text[:most]!r} prompt_token_ids={[BOS, *text.encode()][:most]} " in lines[0]
    assert f" prompt_tokens={1 + len(text.encode())} " in lines[0]
    assert all(line.endswith("params=SamplingParams(temperature=0.5, stop=('x\\ny',))") for line in lines)
    ids = [f"id={reply.json()['id']}-{number} " for number in (0, 1)]
    assert all(id in line for id, line in zip(ids, lines, strict=True))


@pytest.mark.row("F-220")
async def test_prompts_of_ids_and_their_long_parameters_are_logged(start, caplog):
    caplog.set_level(logging.INFO)
    site = await start(prompt_log=PromptLog(2))
    await site.complete(prompt=[BOS, 72, 105], bad_words=["x" * 9000])
    line = next(record.getMessage() for record in caplog.records if record.getMessage().startswith("prompt "))
    assert f" prompt_tokens=3 prompt=None prompt_token_ids=[{BOS}, 72] adapter='' " in line
    assert len(line) < 5000
    assert "x" * 3000 in line


async def test_a_refused_prompt_is_not_logged(start, caplog):
    caplog.set_level(logging.INFO)
    site = await start(prompt_log=PromptLog())
    await site.complete(prompt="secret" * 600)
    assert "secret" not in caplog.text


async def test_request_id(site):
    kept = await site.http.get("/live", headers={"x-request-id": "abc-1.2_3"})
    assert kept.headers["x-request-id"] == "abc-1.2_3"
    for bad in ("a b", "x" * 129, "é".encode("latin-1"), "a;b"):
        replaced = await site.http.get("/live", headers={"x-request-id": bad})
        assert len(replaced.headers["x-request-id"]) == 32


async def test_notes_in_contents_are_passed_over(site, caplog):
    call = {"id": "c", "type": "function", "index": 0, "function": {"name": "f", "arguments": "{}", "note": 1}}
    part = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}, "annotations": []}
    messages = [
        {"role": "user", "content": [part], "cache_control": {"type": "ephemeral"}, "id": "m1"},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "audio": None, "prefix": False},
        {"role": "tool", "content": "4", "tool_call_id": "c", "is_error": False},
    ]
    tool = {"type": "function", "function": {"name": "f", "cache_control": {}}, "cache_control": {}, "strict": None}
    reply = await site.chat(messages=messages, tools=[tool], tool_choice="none", stream_options=None)
    assert reply.status_code == 200, reply.text
    assert "ignored unknown request fields" not in caplog.text


async def test_unknown_options_are_ignored_and_logged(site, caplog):
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "example": 1}, "version": 2}
    reply = await site.chat(stream=True, stream_options={"include_obfuscation": True}, response_format=form)
    assert reply.status_code == 200, reply.text
    form = "response_format"
    for name in ("stream_options.include_obfuscation", f"{form}.version", f"{form}.json_schema.example"):
        assert repr(name) in caplog.text


@pytest.mark.parametrize(
    ("text", "half"),
    [
        (rb"half \ud83d", rb"\ud83d"),
        (rb"half \ud83d more", rb"\ud83d"),
        (rb"\ude00 rest", rb"\ude00"),
        (rb"\ud83d\ud83d\ude00", rb"\ud83d"),
        (rb"\\ud83d \uD83D", rb"\uD83D"),
    ],
)
async def test_half_of_a_character_is_named(site, text: bytes, half: bytes):
    body = b'{"messages": [{"role": "user", "content": "' + text + b'"}]}'
    for path in (CHAT, "/tokenize"):
        reply = await site.http.post(path, content=body, headers={"content-type": "application/json"})
        check(reply, 400)
        assert f"{half.decode()}, half of a surrogate pair" in reply.json()["error"]["message"]


@pytest.mark.parametrize("text", [rb"\ud83d\ude00", rb"\\ud83d", rb"\u00e9"])
async def test_whole_characters_are_taken(site, text: bytes):
    body = b'{"messages": [{"role": "user", "content": "' + text + b'"}]}'
    reply = await site.http.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 200
