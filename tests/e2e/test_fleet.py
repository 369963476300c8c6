"""Several API processes before one engine: ``--api-server-count``."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from suite.processes import children_of


def members(server) -> list[int]:
    return children_of(server.process.pid, "lsv_api.fleet.member")


def complete(server, key: str | None = None, **body) -> tuple[int, dict]:
    data = json.dumps({"prompt": "Once upon", "max_tokens": 4, "temperature": 0, **body}).encode()
    request = urllib.request.Request(f"{server.url}/v1/completions", data)
    if key:
        request.add_header("authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=150) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as refused:
        return refused.code, json.loads(refused.read())


def metric(server, name: str) -> float:
    text = server.get("/metrics")[1].decode()
    return sum(float(found) for found in re.findall(rf"^vllm:{name}\{{.*\}} ([0-9.]+)$", text, re.M))


def counted(server) -> float:
    return metric(server, "request_success_total")


def until(condition, seconds: float = 20.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it never came true"
        time.sleep(0.1)


@pytest.fixture
def fleet(own_server):
    return started(own_server)


def started(own_server, *arguments: str):
    """A server of two processes, once both serve."""
    server = own_server("--api-server-count", "2", "--drain-timeout", "120", *arguments)  # emulated devices are slow
    until(lambda: b"lsv is ready" in server.log.read_bytes(), 120)
    return server


@pytest.mark.row("F-775")
def test_one_scrape_answers_for_all_and_a_lost_process_is_replaced(fleet):
    assert len(members(fleet)) == 2
    with ThreadPoolExecutor(8) as threads:
        replies = list(threads.map(lambda _: complete(fleet), range(24)))
    texts = {reply["choices"][0]["text"] for _, reply in replies}
    assert {status for status, _ in replies} == {200}
    assert len(texts) == 1
    assert [counted(fleet) for _ in range(4)] == [24] * 4

    lost = members(fleet)[0]
    os.kill(lost, signal.SIGKILL)
    assert [complete(fleet)[0] for _ in range(4)] == [200] * 4, "the other one goes on"
    until(lambda: len(members(fleet)) == 2 and lost not in members(fleet))
    assert counted(fleet) == 28, "what the lost one has counted still counts"
    assert fleet.stop() == 0
    assert members(fleet) == []


@pytest.mark.slow
def test_one_that_hangs_is_replaced(fleet):
    hung = members(fleet)[0]
    os.kill(hung, signal.SIGSTOP)
    until(lambda: hung not in members(fleet) and len(members(fleet)) == 2, 30)
    assert "hangs: no sign of life" in fleet.log.read_text()
    assert [complete(fleet)[0] for _ in range(4)] == [200] * 4


def test_all_drain_at_the_first_signal(fleet):
    with ThreadPoolExecutor(6) as threads:
        running = [threads.submit(complete, fleet, max_tokens=300, ignore_eos=True) for _ in range(6)]
        until(lambda: metric(fleet, "num_requests_running") == 6)
        fleet.process.send_signal(signal.SIGTERM)
        assert [one.result()[0] for one in running] == [200] * 6
    assert fleet.process.wait(60) == 0


def test_bounds_of_accounts_hold_over_all_processes(own_server, tmp_path):
    file = tmp_path / "accounts.toml"
    file.write_text('[alice]\nkeys = ["a"]\nrequests_per_minute = 6\n')
    server = started(own_server, "--api-accounts", str(file))
    with ThreadPoolExecutor(4) as threads:
        statuses = sorted(threads.map(lambda _: complete(server, "a")[0], range(12)))
    assert statuses == [200] * 6 + [429] * 6


def test_the_engine_is_restarted_under_all_of_them(own_server):
    server = started(own_server, "--restart-engine")
    before = complete(server)
    os.kill(server.engine_pid(), signal.SIGKILL)
    until(lambda: complete(server)[0] == 200, 120)
    assert [complete(server)[1]["choices"][0]["text"] for _ in range(4)] == [before[1]["choices"][0]["text"]] * 4
    assert len(members(server)) == 2


def test_an_address_that_is_taken_is_told_at_once():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = ["--host", "127.0.0.1", "--port", str(taken.getsockname()[1])]
        command = [sys.executable, "-m", "lsv", "serve", "--api-server-count", "2", *address]
        second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 2
    assert "can't listen on" in second.stderr
