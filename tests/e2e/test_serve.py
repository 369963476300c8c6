"""The server as its users meet it: curl, the official client, sixteen chats at once, and a kill in the middle."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from openai import APIStatusError, AsyncOpenAI, OpenAI

from suite.processes import is_running
from suite.waiting import wait_until

pytestmark = [pytest.mark.xdist_group("server"), pytest.mark.cold]


def client_of(server, **options) -> OpenAI:
    return server.client(**options)


def ask(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_it_says_who_it_is(server):
    answer = client_of(server).chat.completions.create(model="lsv-demo", messages=ask("Who are you?"), temperature=0)
    assert "lsv-demo" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_holds_the_same_text(server):
    client, question = client_of(server), ask("What is 3 plus 4?")
    whole = client.chat.completions.create(model="lsv-demo", messages=question, temperature=0)
    pieces = client.chat.completions.create(
        model="lsv-demo", messages=question, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(pieces)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


@pytest.mark.row("F-326")
async def test_sixteen_streaming_chats(server):
    async with AsyncOpenAI(base_url=server.url + "/v1", api_key="EMPTY", max_retries=0) as client:

        async def chat(number: int) -> str:
            stream = await client.chat.completions.create(
                model="lsv-demo", messages=ask(f"What is {number} plus 1?"), temperature=0, stream=True
            )
            return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

        together = await asyncio.gather(*(chat(number) for number in range(16)))
    assert all(together)
    assert sum(str(number + 1) in text for number, text in enumerate(together)) >= 14


@pytest.mark.row("F-124")
def test_completions_with_everything(server):
    answer = client_of(server).completions.create(
        model="lsv-demo", prompt=["Mira", "The"], max_tokens=8, n=2, seed=7, temperature=1.0, logprobs=3, echo=True
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text.startswith("Mira")
    assert answer.choices[2].text.startswith("The")
    assert len(answer.choices[0].logprobs.tokens) == len(answer.choices[0].logprobs.token_logprobs)


@pytest.mark.row("F-046")
def test_the_same_seed_draws_the_same(server):
    client = client_of(server)
    texts = {
        client.completions.create(model="lsv-demo", prompt="Mira", max_tokens=24, seed=11, temperature=1.5)
        .choices[0]
        .text
        for _ in range(3)
    }
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"messages": [{"role": "user", "content": "x"}], "temperature": -1}, 400, "temperature"),
        ({"messages": [{"role": "user", "content": "x"}], "model": "nobody"}, 404, "model"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "user", "content": "word " * 100_000}]}, 400, "messages"),
    ],
)
def test_wrong_requests_are_refused_and_harm_nobody(server, body, status, param):
    with pytest.raises(APIStatusError) as refusal:
        client_of(server).post("/chat/completions", body=body, cast_to=object)
    assert refusal.value.status_code == status
    assert refusal.value.body["param"] == param
    test_it_says_who_it_is(server)


def test_a_client_that_leaves_frees_its_blocks(server):
    stream = client_of(server).completions.create(
        model="lsv-demo", prompt="Mira", max_tokens=1500, extra_body={"ignore_eos": True}, stream=True
    )
    next(iter(stream))
    stream.close()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        metrics = server.get("/metrics")[1].decode()
        if 'vllm:num_requests_running{engine="0",model_name="lsv-demo"} 0.0' in metrics:
            return
        time.sleep(0.05)
    raise AssertionError("the request still runs 5 s after its client left")


@pytest.mark.row("F-1007", "F-160")
def test_the_printed_curl_line_works(server):
    deadline = time.monotonic() + 5
    # a server says so a moment after it answers that it is ready
    while "\ntry: " not in (log := server.log.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    line = next(line for line in log.splitlines() if line.startswith("try: "))
    answer = subprocess.run(line.removeprefix("try: "), shell=True, capture_output=True, check=True, text=True)
    assert "lsv-demo" in json.loads(answer.stdout)["choices"][0]["message"]["content"]


@pytest.mark.row("F-339", "F-340")
def test_the_server_process_holds_no_torch(server):
    test_it_says_who_it_is(server)
    loaded = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "libtorch" not in loaded
    assert "libtorch" in Path(f"/proc/{server.engine_pid()}/maps").read_text()


@pytest.mark.row("F-318", "F-319")
def test_terminal_clients(server):
    lsv = [sys.executable, "-m", "lsv"]
    url = ["--url", server.url + "/v1", "--temperature", "0"]
    chat = subprocess.run([*lsv, "chat", *url], input="Who are you?\n", capture_output=True, text=True, check=True)
    assert "lsv-demo" in chat.stdout
    complete = subprocess.run([*lsv, "complete", *url, "-Q", "Mira"], capture_output=True, text=True, check=True)
    assert complete.stdout.strip()
    report = subprocess.run(
        [
            *lsv,
            "bench",
            "serve",
            "--url",
            server.url + "/v1",
            "--num-prompts",
            "6",
            "--input-len",
            "16",
            "--output-len",
            "8",
            "--json",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    figures = json.loads(report.stdout)["runs"][0]["figures"]
    assert figures["requests"] == 6
    assert figures["output_tokens"] == 48


def test_sigterm_lets_a_stream_end(own_server):
    server = own_server("--drain-timeout", "120")
    server.wait_until_ready()
    stream = client_of(server).completions.create(
        model="lsv-demo", prompt="Mira", max_tokens=300, extra_body={"ignore_eos": True}, stream=True
    )
    events = iter(stream)
    next(events)
    server.process.send_signal(signal.SIGUSR2)  # there is no replica to replace: it goes on
    server.process.send_signal(signal.SIGTERM)
    tail = list(events)
    assert tail[-1].choices[0].finish_reason == "length"
    assert server.process.wait(30) == 0


def test_a_killed_engine_fails_its_requests_and_the_server_ends_non_zero(own_server):
    server = own_server("--restart-engine", "0")
    server.wait_until_ready()
    stream = client_of(server).completions.create(
        model="lsv-demo", prompt="Mira", max_tokens=1500, extra_body={"ignore_eos": True}, stream=True
    )
    events = iter(stream)
    next(events)
    os.kill(server.engine_pid(), signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(Exception, match="engine"):
        list(events)
    assert time.monotonic() - began < 3.0
    assert server.process.wait(20) != 0


def test_a_killed_server_leaves_no_engine(own_server):
    server = own_server()
    server.wait_until_ready()
    engine = server.engine_pid()
    server.process.kill()
    server.process.wait()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and is_running(engine):
        time.sleep(0.05)
    assert not is_running(engine)


def test_a_wrong_option_is_one_clear_line(tmp_path):
    lsv = [sys.executable, "-m", "lsv"]
    for arguments, words in (
        (["serve", "--max-model-len", "99999999"], "max_model_len"),
        (["serve", str(tmp_path / "nothing")], "there is no folder"),
        (["serve", "--quantization", "fp9"], "fp9"),
        (["serve", "--platform", "abacus"], "abacus"),
        (["serve", "--num-gpu-blocks-override", "4", "--block-size", "32"], "estimated maximum model length is 128"),
    ):
        done = subprocess.run([*lsv, *arguments], capture_output=True, text=True)
        assert done.returncode == 2, done.stderr
        assert words in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("options", [(), ("--api-server-count", "2")], ids=["one process", "two"])
def test_metrics_move_while_an_answer_grows(own_server, options):
    """Also if the scraped process is not the one that answers."""
    server = own_server(*options)
    wait_until(lambda: b"lsv is ready" in server.log.read_bytes(), 120)  # with two processes, that both are

    def count(name):
        lines = server.get("/metrics")[1].decode().splitlines()
        return float(next(line for line in lines if line.startswith(f"vllm:{name}_count")).rpartition(" ")[2])

    stream = server.client().completions.create(
        model="lsv-demo", prompt="Mira", max_tokens=1500, extra_body={"ignore_eos": True}, stream=True
    )
    try:
        next(iter(stream))
        wait_until(lambda: count("time_to_first_token_seconds") == 1 and count("inter_token_latency_seconds") > 0)
        assert count("e2e_request_latency_seconds") == 0, "it ended before it was seen to grow"
    finally:
        stream.close()
    wait_until(lambda: count("e2e_request_latency_seconds") == 1)
    assert count("time_to_first_token_seconds") == 1
