"""A server whose ranks are on two machines of a Ray cluster; needs ``pip install 'lsv[ray]'``."""

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
from lsv.processes.ports import free_port

pytest.importorskip("ray")

from ray.cluster_utils import Cluster

QUESTIONS = ("What is the sum of 1 and 11?", "Who are you?", "Tell me of ships.")
SERVED = ("--dtype", "float32", "-tp", "2", "-pp", "2", "--distributed-executor-backend", "ray")


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
        command = [sys.executable, "-m", "lsv", "serve", *SERVED, "--ray-address", cluster.address, *arguments]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(port)], stdout=output, stderr=subprocess.STDOUT
            )

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
                model="lsv-demo", prompt="Ships", max_tokens=1800, temperature=0, stream=True,
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
        left.process.kill()
        left.process.wait()


LOST = r"the worker of rank \d on Ray node .* is gone"


@pytest.mark.row("F-276", "F-279", "F-280")
def test_a_server_of_two_machines_answers_as_one_rank_and_outlives_a_machine(
    own_cluster: Cluster, serve: Callable[..., Server]
) -> None:
    conversations: list[Any] = [[{"role": "user", "content": one}] for one in QUESTIONS]
    with LLM("lsv-demo", dtype="float32") as llm:
        asked = llm.chat(conversations, SamplingParams(temperature=0, max_tokens=24), use_tqdm=False)
        expected = [one.outputs[0].text for one in asked]
    other = own_cluster.add_node(num_cpus=2)
    server = serve("--restart-engine")
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
    server = serve()
    server.wait_until_ready()
    stream = server.begin_long()
    own_cluster.remove_node(other, allow_graceful=False)
    with pytest.raises(openai.APIError, match=LOST):
        list(stream)
    assert server.process.wait(60) == 1
    assert "error: the worker of rank" in server.log.read_text()
