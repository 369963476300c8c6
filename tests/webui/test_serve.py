"""``lsv serve --webui`` and ``lsv webui`` as processes."""

from __future__ import annotations

import os
import signal
import socket
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from lsv_webui import orphan
from lsv_webui.orphan import replace_orphans
from suite.processes import children_of, words_of
from suite.waiting import wait_until

from .conftest import Command, ask, free_port

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


def running(server: Command, module: str) -> list[int]:
    """The server's processes that run a module."""
    return children_of(server.process.pid, module)


def test_the_page_comes_and_goes_with_the_server(start) -> None:
    port, page = free_port(), free_port()
    server = start("serve", "--port", str(port), "--webui", "--webui-port", str(page), "--api-key", "secret")
    server.wait_for("lsv is ready on")
    server.wait_for("lsv's web page is on")
    answer = asked(page, "Who are you?", temperature=0)
    assert "lsv-demo" in answer
    left = children_of(server.process.pid)
    assert not any("secret" in " ".join(words_of(child)) for child in left)
    assert server.stop() == 0
    wait_until(lambda: not any(Path(f"/proc/{child}").exists() for child in left))


def test_the_page_outlives_a_server_whose_engine_dies(start, chromium) -> None:
    port, place = free_port(), free_port()
    serve = ("serve", "--port", str(port), "--webui", "--webui-port", str(place))
    server = start(*serve)
    server.wait_for("lsv's web page is on")
    (old,) = running(server, "lsv_webui.page")
    page = chromium.new_page()
    page.goto(f"http://127.0.0.1:{place}")
    page.wait_for_selector("#lsv-status .ready")
    os.kill(*running(server, "lsv.engine.main"), signal.SIGKILL)
    assert server.process.wait(30) != 0
    page.locator("#lsv-status .down", has_text="No server answers at").wait_for()
    ask(page, "Who are you?")
    page.locator("#lsv-chat .lsv-error", has_text="No server answers at").wait_for()
    page.fill("#lsv-box textarea", "And what is 27 + 38?")
    again = start(*serve)
    again.wait_for("lsv's web page is on")
    page.wait_for_selector("#lsv-status .ready")
    assert page.locator("#lsv-chat .user.message").inner_text() == "Who are you?"
    page.wait_for_function("document.querySelector('#lsv-box textarea').value == 'And what is 27 + 38?'")
    page.press("#lsv-box textarea", "Enter")
    page.locator("#lsv-chat .bot.message", has_text="65").wait_for()
    page.close()
    assert not Path(f"/proc/{old}").exists()
    assert again.stop() == 0


def test_a_page_outlives_a_server_that_is_killed_and_gives_up_in_time(start) -> None:
    place = free_port()
    server = start("serve", "--port", str(free_port()), "--webui", "--webui-port", str(place))
    server.wait_for("lsv's web page is on")
    (page,) = running(server, "lsv_webui.page")
    server.process.kill()
    server.process.wait()
    wait_until(lambda: os.readlink(f"/proc/{page}/fd/1") == os.devnull)  # readers of the output need not wait for it
    with urllib.request.urlopen(f"http://127.0.0.1:{place}/", timeout=10) as response:
        assert response.status == 200
    replace_orphans(place + 1)
    assert Path(f"/proc/{page}").exists()
    replace_orphans(place)
    wait_until(lambda: not Path(f"/proc/{page}").exists())


def test_an_orphan_waits_for_a_server_and_not_for_long(monkeypatch) -> None:
    monkeypatch.setattr(orphan, "WAIT_SECONDS", 0.3)
    monkeypatch.setattr(orphan, "_POLL_SECONDS", 0.05)
    monkeypatch.setattr(orphan, "_let_go_of_output", lambda: None)
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        waiting = threading.Thread(target=lambda: (orphan.outlive(0, url, threading.Event()), ended.set()))
        waiting.start()
        assert not ended.wait(1.0)
    assert ended.wait(10)
    waiting.join()


def test_the_api_outlives_its_page(start, chromium) -> None:
    port, page = free_port(), free_port()
    server = start("serve", "--port", str(port), "--webui", "--webui-port", str(page))
    server.wait_for("lsv is ready on")
    server.wait_for("lsv's web page is on")
    (pid,) = running(server, "lsv_webui.page")
    shown = chromium.new_page()
    shown.goto(f"http://127.0.0.1:{page}")
    shown.wait_for_selector("#lsv-status .ready")
    os.kill(pid, signal.SIGKILL)
    server.wait_for("the API keeps running without it")
    shown.locator("#lsv-status .down", has_text="The web page does not answer").wait_for()
    shown.close()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as response:
        assert response.status == 200


def test_a_page_that_can_not_start_ends_the_server(start) -> None:
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
