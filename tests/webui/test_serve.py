"""``lsv serve --webui`` and ``lsv webui`` as processes."""

from __future__ import annotations

import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from suite.waiting import wait_until

from .conftest import Command, free_port

pytestmark = [pytest.mark.xdist_group("webui"), pytest.mark.slow]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[type[Command]]:
    started: list[Command] = []

    class Started(Command):
        def __init__(self, *arguments: str) -> None:
            super().__init__(tmp_path / f"{len(started)}.log", *arguments)
            started.append(self)

    yield Started
    for command in started:
        if command.process.poll() is None:
            command.process.kill()
            command.process.wait()


def asked(port: int, question: str, **options: object) -> str:
    """What the page on a port answers."""
    from gradio_client import Client

    answer: str = Client(f"http://127.0.0.1:{port}", verbose=False).predict(question, api_name="/chat", **options)
    return answer


def children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_the_page_comes_and_goes_with_the_server(start) -> None:
    port, page = free_port(), free_port()
    server = start("serve", "--port", str(port), "--webui", "--webui-port", str(page), "--api-key", "secret")
    server.wait_for("lsv is ready on")
    server.wait_for("lsv's web page is on")
    answer = asked(page, "Who are you?", temperature=0)
    assert "lsv-demo" in answer
    left = children(server.process.pid)
    assert not any(b"secret" in Path(f"/proc/{child}/cmdline").read_bytes() for child in left)
    assert server.stop() == 0
    wait_until(lambda: not any(Path(f"/proc/{child}").exists() for child in left))


def test_the_api_outlives_its_page(start) -> None:
    port, page = free_port(), free_port()
    server = start("serve", "--port", str(port), "--webui", "--webui-port", str(page))
    server.wait_for("lsv is ready on")
    server.wait_for("lsv's web page is on")
    (pid,) = (
        child
        for child in children(server.process.pid)
        if b"lsv_webui.page" in Path(f"/proc/{child}/cmdline").read_bytes()
    )
    os.kill(pid, signal.SIGKILL)
    server.wait_for("the API keeps running without it")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as response:
        assert response.status == 200


def test_a_page_that_can_not_start_ends_the_server(start) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = start("serve", "--port", str(free_port()), "--webui", "--webui-port", str(taken.getsockname()[1]))
        assert server.process.wait(60) == 2
    told = server.log.read_text()
    assert "choose another --webui-host or --webui-port" in told
    assert "Traceback" not in told


@pytest.mark.row("F-892")
def test_a_page_of_its_own(start, api) -> None:
    page = free_port()
    command = start("webui", "--api", api.url, "--webui-port", str(page))
    command.wait_for("lsv's web page is on")
    assert asked(page, "Hi") == api.engine.answer
    assert command.stop() == 0
