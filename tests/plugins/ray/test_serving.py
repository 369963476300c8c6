"""A server whose ranks or replicas are on two machines of a Ray cluster; needs ``pip install -e '.[ray]'``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from lsv import LLM, SamplingParams
from lsv_base.processes.ports import free_port
from lsv_testing.tiny import tiny

pytest.importorskip("ray")

from ray.cluster_utils import Cluster

QUESTIONS = ("What is the sum of 1 and 11?", "Who are you?", "Tell me of ships.")
RANKS = ("-tp", "2", "-pp", "2", "--distributed-executor-backend", "ray")
REPLICAS = ("-dp", "2", "--data-parallel-backend", "ray", "--ray-cpus", "2")


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """Two machines of two cores each, one of which a test may take away."""
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    yield made
    made.shutdown()


class Server:
    """``lsv serve`` on a cluster, and what it says."""

    def __init__(self, cluster: Cluster, log: Path, *arguments: str) -> None:
        self.log, port = log, free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="any", max_retries=0, timeout=100)
        where = "--ray-address", cluster.address, "--host", "127.0.0.1", "--port", str(port)
        command = [sys.executable, "-m", "lsv", "serve", "--dtype", "float32", *where, *arguments]
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def state(self) -> dict[str, Any]:
        """Of the engine, or of none while nobody listens."""
        try:
            with urllib.request.urlopen(f"{self.url}/ready", timeout=10) as answer:
                said = answer.read()
        except urllib.error.HTTPError as answer:
            said = answer.read()
        except OSError:
            return {"state": "closed"}
        (model,) = json.loads(said)["models"]
        return dict(model)

    def wait_for(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        ends = time.monotonic() + 120
        while not condition(self.state()):
            late = time.monotonic() > ends or self.process.poll() is not None
            assert not late, self.log.read_text()[-4000:]
            time.sleep(0.05)

    def wait_until_ready(self) -> None:
        self.wait_for(lambda model: model["state"] == "ready")

    def tokens(self) -> dict[str, float]:
        """What each replica has generated."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            found = re.findall(r'^vllm:generation_tokens_total{engine="(\d)".*} (\S+)$', answer.read().decode(), re.M)
        return {engine: float(count) for engine, count in found}

    def answers(self) -> list[str | None]:
        asked = [
            self.client.chat.completions.create(
                model="lsv-demo", messages=[{"role": "user", "content": one}], max_tokens=24, temperature=0
            )
            for one in QUESTIONS
        ]
        return [one.choices[0].message.content for one in asked]

    def begin_long(self) -> Iterator[Any]:
        """An answer that has begun and would go on for long."""
        stream = iter(
            self.client.completions.create(
                model="lsv-demo", prompt="Ships", max_tokens=500, temperature=0, stream=True,
                extra_body={"ignore_eos": True},
            )
        )  # fmt: skip
        next(stream)
        return stream


@pytest.fixture
def serve(own_cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts a server; whatever is left of it is killed."""
    made: list[Server] = []

    def start(*arguments: str) -> Server:
        made.append(Server(own_cluster, tmp_path / "server.log", *arguments))
        return made[-1]

    yield start
    for left in made:
        left.client.close()
        left.process.kill()
        left.process.wait()


@pytest.fixture(scope="module")
def expected() -> list[str]:
    """The answers of one rank."""
    conversations: list[Any] = [[{"role": "user", "content": one}] for one in QUESTIONS]
    with LLM("lsv-demo", dtype="float32") as llm:
        asked = llm.chat(conversations, SamplingParams(temperature=0, max_tokens=24), use_tqdm=False)
        return [one.outputs[0].text for one in asked]


LOST = r"the worker of rank \d on Ray node .* is gone"


@pytest.mark.row("F-276", "F-279", "F-280")
def test_a_server_of_two_machines_answers_as_one_rank_and_outlives_a_machine(
    own_cluster: Cluster, serve: Callable[..., Server], expected: list[str]
) -> None:
    other = own_cluster.add_node(num_cpus=2)
    server = serve(*RANKS, "--restart-engine")
    server.wait_until_ready()
    assert len(set(re.findall(r"rank \d is on Ray node \S+ \((\w+)\)", server.log.read_text()))) == 2
    assert server.answers() == expected
    stream = server.begin_long()
    own_cluster.remove_node(other, allow_graceful=False)
    with pytest.raises(openai.APIError, match=LOST) as caught:
        list(stream)
    assert caught.value.code == "engine_died"
    assert server.state()["state"] == "loading", "it waits for a machine with room"
    own_cluster.add_node(num_cpus=2)
    server.wait_until_ready()
    assert server.answers() == expected
    server.process.terminate()
    assert server.process.wait(60) == 0


def test_a_server_that_is_not_to_restart_ends_with_the_machine_named(
    own_cluster: Cluster, serve: Callable[..., Server]
) -> None:
    other = own_cluster.add_node(num_cpus=2)
    server = serve(*RANKS)
    server.wait_until_ready()
    stream = server.begin_long()
    own_cluster.remove_node(other, allow_graceful=False)
    with pytest.raises(openai.APIError, match=LOST):
        list(stream)
    assert server.process.wait(60) == 1
    assert "error: the worker of rank" in server.log.read_text()


@pytest.mark.row("F-281", "F-569", "F-573")
def test_replicas_are_placed_by_ray_and_a_lost_machine_costs_its_own_requests(
    own_cluster: Cluster, serve: Callable[..., Server], expected: list[str]
) -> None:
    other = own_cluster.add_node(num_cpus=2)
    server = serve(*REPLICAS, "--data-parallel-rpc-port", str(free_port()))
    server.wait_until_ready()
    assert len(set(re.findall(r"replica \d is on Ray node \S+ \((\w+)\)", server.log.read_text()))) == 2
    assert [server.answers() for _ in range(2)] == [expected] * 2
    assert min(server.tokens().values()) > 0, "both have answered"
    streams = [server.begin_long() for _ in range(2)]
    own_cluster.remove_node(other, allow_graceful=False)
    server.wait_for(lambda model: "loading" in [one["state"] for one in model["replicas"]])
    assert server.answers() == expected, "the other one answers"
    ends = [read(stream) for stream in streams]
    assert ends.count("length") == 1
    assert [re.sub(r"node at \S+", "node", end) for end in ends if end != "length"] == [
        "the node with replica 1 is lost"
    ]
    own_cluster.add_node(num_cpus=2)
    server.wait_for(lambda model: {one["state"] for one in model["replicas"]} == {"ready"})
    before = server.tokens()["1"]
    assert [server.answers() for _ in range(2)] == [expected] * 2
    assert server.tokens()["1"] > before
    server.process.terminate()
    assert server.process.wait(60) == 0
    assert "is given up" not in server.log.read_text()


@pytest.mark.row("F-282", "F-574")
def test_placed_replicas_that_share_experts_end_and_come_back_together(
    own_cluster: Cluster, serve: Callable[..., Server], tmp_path: Path
) -> None:
    path = str(tiny("qwen3_moe", tmp_path / "model", tokenizer=True, num_experts=8, mlp_only_layers=[]))
    with LLM(path, dtype="float32", max_model_len=128) as llm:
        (wanted,) = llm.generate("Ships", SamplingParams(temperature=0, max_tokens=24), use_tqdm=False)
    other = own_cluster.add_node(num_cpus=2)
    server = serve(
        *REPLICAS, "--data-parallel-rpc-port", str(free_port()), "--enable-expert-parallel", "--max-model-len", "128",
        "--model", path,
    )  # fmt: skip
    server.wait_until_ready()

    def answers() -> list[str]:
        asked = [
            server.client.completions.create(model=path, prompt="Ships", max_tokens=24, temperature=0) for _ in range(3)
        ]
        return [one.choices[0].text for one in asked]

    assert answers() == [wanted.outputs[0].text] * 3
    assert min(server.tokens().values()) > 0, "both have answered"
    own_cluster.remove_node(other, allow_graceful=False)
    server.wait_for(lambda model: {one["state"] for one in model["replicas"]} == {"loading"})
    own_cluster.add_node(num_cpus=2)
    server.wait_until_ready()
    assert answers() == [wanted.outputs[0].text] * 3
    server.process.terminate()
    assert server.process.wait(60) == 0


def test_replicas_without_room_end_the_server_by_name(serve: Callable[..., Server]) -> None:
    """There is one machine."""
    server = serve(*REPLICAS, "--node-timeout", "5", "--data-parallel-rpc-port", str(free_port()))
    assert server.process.wait(60) == 2
    assert "error: the Ray cluster has no room for 2 workers of 2 CPU each: it has 2 CPU" in server.log.read_text()


def read(stream: Iterator[Any]) -> str:
    """What it has ended by."""
    try:
        return str([part.choices[0].finish_reason for part in stream][-1])
    except openai.APIError as error:
        return error.message
