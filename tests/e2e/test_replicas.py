"""Two engines behind one server: ``--data-parallel-size``."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from lsv_base.processes.ports import free_port
from suite.processes import children_of

from .conftest import EMULATED

pytestmark = pytest.mark.two_ranks


def engines(server) -> list[int]:
    """The processes of the server's engines: each is started by a thread of its own."""
    return children_of(server.process.pid, "lsv.engine.main")


def metric(server, name: str) -> dict[str, float]:
    """A series by engine."""
    text = server.get("/metrics")[1].decode()
    return {
        engine: float(value) for engine, value in re.findall(rf'^vllm:{name}{{engine="(\d)".*}} (\S+)$', text, re.M)
    }


def until(condition, seconds: float = 200.0 if EMULATED else 60.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it never came true"
        time.sleep(0.05)


def model(server) -> dict:
    (found,) = json.loads(server.get("/health")[1])["models"]
    return found


def states(server) -> list[str]:
    return [one["state"] for one in model(server)["replicas"]]


def open_client(server) -> openai.OpenAI:
    return server.client(timeout=150)


def ask(client: openai.OpenAI, tokens: int) -> str:
    """A chat; "whole", or the name of the error that ended it."""
    try:
        stream = client.chat.completions.create(
            model="lsv-demo", messages=[{"role": "user", "content": "Tell me of ships."}], max_tokens=tokens,
            temperature=0, stream=True, extra_body={"ignore_eos": True},
        )  # fmt: skip
        return "whole" if [chunk.choices[0].finish_reason for chunk in stream][-1] == "length" else "cut"
    except openai.APIError as error:
        return str(error.code)


@pytest.mark.row("F-281", "F-1018")
def test_one_that_is_killed_costs_its_requests_alone_and_comes_back(own_server):
    server = own_server("-dp", "2")
    server.wait_until_ready()
    client = open_client(server)
    assert ask(client, 4) == "whole"
    assert len(engines(server)) == 2
    with ThreadPoolExecutor(6) as threads:
        asked = [threads.submit(ask, client, 1200) for _ in range(6)]
        until(lambda: metric(server, "num_requests_running") == {"0": 3.0, "1": 3.0})
        os.kill(engines(server)[1], signal.SIGKILL)
        until(lambda: sorted(states(server)) == ["loading", "ready"])
        assert server.get("/ready")[0] == 200
        assert [ask(client, 4) for _ in range(4)] == ["whole"] * 4
        assert Counter(one.result() for one in asked) == {"whole": 3, "engine_died": 3}
    until(lambda: states(server) == ["ready", "ready"])
    before = metric(server, "generation_tokens_total")
    assert [ask(client, 4) for _ in range(4)] == ["whole"] * 4
    assert all(now > before[engine] for engine, now in metric(server, "generation_tokens_total").items())
    assert server.stop() == 0
    assert engines(server) == []


def test_several_api_processes_share_them(own_server):
    server = own_server("--dp", "2", "--api-server-count", "2")
    until(lambda: b"lsv is ready" in server.log.read_bytes(), 120)
    with ThreadPoolExecutor(8) as threads:
        client = open_client(server)
        assert set(threads.map(lambda _: ask(client, 40), range(16))) == {"whole"}
    until(lambda: sum(metric(server, "generation_tokens_total").values()) == 640)
    assert min(metric(server, "generation_tokens_total").values()) >= 160, "both have answered"
    assert server.stop() == 0


BY_SIZE = (
    ("--data-parallel-size-local", "1", "--data-parallel-address"),
    (),
    ("--headless", "--data-parallel-start-rank", "1"),
)
BY_NUMBER = ("--nnodes", "2", "--master-addr"), ("--node-rank", "0"), ("--node-rank", "1")


@pytest.mark.slow
@pytest.mark.row("F-569")
@pytest.mark.parametrize(("words", "first", "second"), [BY_SIZE, BY_NUMBER])
def test_a_machine_that_is_lost_costs_its_requests_alone_and_is_taken_back(own_server, words, first, second):
    where = "127.0.0.2"
    shared = (
        "-dp", "2", *words, where, "--data-parallel-rpc-port", str(free_port(where)), "--cluster-key",
        "a secret of two machines",
    )  # fmt: skip
    theirs = (*shared, *second)
    server, other = own_server(*shared, *first), own_server(*theirs)
    server.wait_until_ready()
    client = open_client(server)
    assert [ask(client, 4) for _ in range(4)] == ["whole"] * 4
    with ThreadPoolExecutor(6) as threads:
        asked = [threads.submit(ask, client, 1200) for _ in range(6)]
        until(lambda: metric(server, "num_requests_running") == {"0": 3.0, "1": 3.0})
        other.stop(signal.SIGKILL)
        until(lambda: states(server) == ["ready", "loading"])
        assert "the node at 127.0.0.1 with replica 1 is lost" in server.get("/ready")[1].decode()
        assert [ask(client, 4) for _ in range(2)] == ["whole"] * 2
        assert Counter(one.result() for one in asked) == {"whole": 3, "engine_died": 3}
    other = own_server(*theirs)
    until(lambda: states(server) == ["ready", "ready"])
    before = metric(server, "generation_tokens_total")
    assert [ask(client, 4) for _ in range(4)] == ["whole"] * 4
    assert all(now > before[engine] for engine, now in metric(server, "generation_tokens_total").items())
    assert server.stop() == 0
    assert other.process.wait(30) == 0
