"""Prometheus itself, where it is installed: it scrapes a server, and no query of the dashboard comes to nothing."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from lsv_base.processes.ports import free_port

from .conftest import Server

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PROMETHEUS = shutil.which("prometheus")
DASHBOARD = DEPLOY / "grafana" / "dashboard.json"
PANELS: list[dict[str, Any]] = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
WINDOW = "15s"
"""For ``$__rate_interval``: what Grafana makes of a second between scrapes is shorter than a machine may pause."""

Query = Callable[[str], list[float]]


@pytest.fixture(scope="module")
def query(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Query]:
    """Ask a Prometheus, set up as in ``deploy/`` but for the target and the pace, for the values of an expression."""
    if PROMETHEUS is None:
        pytest.skip("prometheus is not installed")
    folder = tmp_path_factory.mktemp("prometheus")
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text(encoding="utf-8"))
    config["global"]["scrape_interval"] = "1s"
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{server.port}"]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = [PROMETHEUS, f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data",
               f"--web.listen-address=127.0.0.1:{port}"]  # fmt: skip

    def ask(expression: str) -> list[float]:
        url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        with urllib.request.urlopen(url, timeout=10) as reply:
            return [float(found["value"][1]) for found in json.load(reply)["data"]["result"]]

    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield ask
        finally:
            process.terminate()
            process.wait(20)


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except OSError:  # it does not listen yet
            pass
        time.sleep(0.2)
    raise AssertionError(f"this did not come about within {seconds} s")


@contextmanager
def load(server: Server) -> Iterator[None]:
    """One request after another is answered meanwhile, each with some tokens."""
    wanted = {"prompt": "Who are you?", "max_tokens": 8, "ignore_eos": True}
    request = urllib.request.Request(
        f"{server.url}/v1/completions", json.dumps(wanted).encode(), {"content-type": "application/json"}
    )
    ends = threading.Event()

    def send() -> None:
        while not ends.wait(0.1):
            urllib.request.urlopen(request, timeout=60).close()

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        ends.set()
        sender.join()


@pytest.mark.slow
@pytest.mark.row(
    "F-779", "F-783", "F-784", "F-785", "F-786", "F-787", "F-788", "F-789", "F-790", "F-791", "F-792", "F-793", "F-794"
)
def test_no_query_comes_to_nothing(server: Server, query: Query) -> None:
    with load(server):
        wait_for(lambda: query(f"increase(vllm:e2e_request_latency_seconds_count[{WINDOW}])") > [0.0])
        for panel in PANELS:
            for target in panel["targets"]:
                filled = target["expr"].replace("$model_name", "lsv-demo").replace("$__rate_interval", WINDOW)
                found = query(filled)
                assert found, f"{panel['title']}: {filled}"
                assert not any(math.isnan(value) for value in found), filled
    assert query('count by (model_name) ({model_name="lsv-demo"})') > [0.0]


@pytest.mark.parametrize("name", ["prometheus.yaml", "compose.yaml"])
def test_configurations_are_sound(name: str) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: it comes with prometheus")
    command = ["promtool", "check", "config", "--syntax-only", DEPLOY / "prometheus" / name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
