"""The reader of a server's output stops. The server still answers requests and shuts down."""

from __future__ import annotations

import ast
import fcntl
import json
import logging
import os
import pty
import socket
import subprocess
import sys
import termios
import textwrap
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lsv.engine.client import Service
from lsv_api.metrics.registry import Metrics
from lsv_base.processes import outlet
from lsv_base.processes.outlet import Outlet
from lsv_testing.fakes.client import FakeClient
from suite.server import Server
from suite.waiting import wait_until

ROOT = Path(__file__).parents[2]
LINE = b"x" * 99 + b"\n"


class Pipe:
    """A pipe of one page, read only on request."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, 4096)
        os.set_blocking(self.reader, False)

    def read(self) -> bytes:
        found = b""
        with suppress(BlockingIOError):
            while piece := os.read(self.reader, 1 << 16):
                found += piece
        return found

    def close_reader(self) -> None:
        if self.reader >= 0:
            os.close(self.reader)
            self.reader = -1

    def close(self) -> None:
        self.close_reader()
        os.close(self.writer)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


@pytest.mark.skipif("LSV_PLATFORM" in os.environ, reason="processes log alike on every platform")
@pytest.mark.daily(options=((), ("--api-server-count", "2")))
@pytest.mark.parametrize("options", [(), ("--api-server-count", "2"), ("-tp", "2"), ("--data-parallel-size", "2")])
def test_a_server_whose_log_is_not_read_answers_and_ends(tmp_path: Path, pipe: Pipe, options: tuple[str, ...]) -> None:
    """All processes share the pipe, which is full once the server is ready."""
    server = Server(tmp_path / "unused.log", "lsv-demo", *options, output=pipe.writer)
    try:
        wait_until(lambda: _is_ready(server))
        for _ in range(60):  # a line of the access log each
            assert server.get("/live")[0] == 200
        ask = urllib.request.Request(
            f"{server.url}/v1/completions",
            json.dumps({"prompt": "Mira", "max_tokens": 3}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(ask, timeout=10) as answer:
            assert json.load(answer)["choices"]
        assert len(pipe.read()) >= 2048, "the pipe was full"
        assert server.stop(seconds=15) == 0
    finally:
        server.process.kill()
        server.process.wait()


def _is_ready(server: Server) -> bool:
    """Whether all API processes are ready. Which one answers is random."""
    with suppress(OSError):
        return all(server.get("/ready")[0] == 200 for _ in range(16))
    return False


def test_a_slow_reader_gets_all_lines_in_order(pipe: Pipe) -> None:
    stream = Outlet(pipe.writer, "the log")
    sent = b"".join(b"%098d\n" % number for number in range(1000))
    for line in sent.splitlines(keepends=True):
        stream.write(line)
    found = b""
    while len(found) < len(sent):
        found += pipe.read()
    assert found == sent
    assert stream.drain(5)
    assert not stream.dropped
    assert stream._drainer is None


@pytest.mark.parametrize("waits", [False, True])
def test_lines_over_the_limit_are_dropped_and_counted(pipe: Pipe, waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the pipe can't be reopened, so that only a thread can write to it."""
    if waits:
        monkeypatch.setattr(outlet, "_open_without_waiting", lambda _: None)
    stream = Outlet(pipe.writer, "the log", limit=5000)
    began = time.monotonic()
    for _ in range(200):
        assert stream.write(LINE) == 100
    assert time.monotonic() - began < 1.0
    assert not stream.drain(0.05)
    assert 50 <= stream.dropped <= 160
    found = b""
    while b"was not read" not in found:
        found += pipe.read()
    *lines, note = found.splitlines(keepends=True)
    assert lines == [LINE] * (200 - stream.dropped)
    assert note == (
        b"WARNING %d lines were lost here: the log of process %d was not read\n" % (stream.dropped, os.getpid())
    )
    assert stream.drain(5)
    stream.write(LINE)
    assert stream.drain(5)
    assert pipe.read() == LINE


def test_sockets_and_terminals_do_not_block() -> None:
    ours, theirs = socket.socketpair()
    master, slave = pty.openpty()
    termios.tcflow(slave, termios.TCOOFF)  # Ctrl-S
    streams = [Outlet(descriptor, "the log", limit=5000) for descriptor in (theirs.fileno(), slave)]
    for stream in streams:
        for _ in range(20_000):
            stream.write(LINE)
        assert stream.dropped > 100
    assert os.get_blocking(theirs.fileno()), "others that have the socket still wait if they want to"
    for stream in streams:
        forget(stream)
    ours.close()
    os.close(master)
    wait_until(lambda: all(stream._drainer is None for stream in streams))
    theirs.close()
    os.close(slave)


def forget(stream: Outlet) -> None:
    """Empty the queue, because other files reuse the numbers of closed descriptors."""
    with stream._changed:
        stream._queue.clear()
        stream._unreported = 0


def test_a_closed_reader_raises_nothing(pipe: Pipe) -> None:
    stream = Outlet(pipe.writer, "the log")
    pipe.close_reader()
    assert stream.write(LINE) == 100
    assert Outlet(pipe.writer, "the log").write(LINE) == 100


def test_a_full_disk_raises_nothing() -> None:
    with open("/dev/full", "wb") as full:
        assert Outlet(full.fileno(), "the log").write(LINE) == 100


PROCESS = """
    import logging, sys
    logging.basicConfig(level="INFO")
    from lsv_base.processes.outlet import count_dropped, unblock_output
    unblock_output()
    for number in range(30_000):
        logging.info("line %d %s", number, "x" * 60)
    print("printed")
    sys.stdout.buffer.write(b"bytes\\n")
    sys.stderr.flush()
    assert count_dropped() > 1000
    raise ValueError("the end")
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_loggers_prints_and_tracebacks_never_block(
    pipe: Pipe, unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    began = time.monotonic()
    command = [sys.executable, "-c", textwrap.dedent(PROCESS)]
    code = subprocess.run(command, stdout=pipe.writer, stderr=pipe.writer, check=False, timeout=30).returncode
    assert code == 1
    assert b"INFO:root:line 0 x" in pipe.read()
    assert time.monotonic() - began < 20


def test_the_last_output_of_a_process_arrives(pipe: Pipe) -> None:
    """The pipe is smaller than the last output of the process."""
    body = 'from lsv_base.processes.outlet import unblock_output\nunblock_output()\nprint("x" * 50_000)\nprint("last")'
    with subprocess.Popen([sys.executable, "-c", body], stdout=pipe.writer) as process:
        found = b""
        while process.poll() is None or not found.endswith(b"last\n"):
            found += pipe.read()
    assert found == b"x" * 50_000 + b"\nlast\n"


CAPTURED = {"core/lsv/text/convert.py"}
"""Modules that run as separate processes whose output the parent collects."""


def mains() -> list[Path]:
    """Modules of the server and its plugins that run as Python processes."""
    sources = [file for part in ("core", "plugins", "webui") for file in (ROOT / part).rglob("*.py")]
    return [file for file in sources if "\nif __name__ ==" in file.read_text()]


def never_waits(source: str) -> bool:
    """Whether a main module makes its output non-blocking."""
    names = {node.func.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and _is_name(node.func)}
    return bool(names & {"die_with", "connect", "unblock_output"}) or "lsv_base.processes.side.main import" in source


def _is_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Name)


def test_every_process_unblocks_its_output() -> None:
    found = mains()
    assert len(found) > 8
    blocked = {str(file.relative_to(ROOT)) for file in found if not never_waits(file.read_text())}
    assert blocked == CAPTURED | {"core/lsv/__main__.py"} & blocked, "call unblock_output first thing"
    assert not never_waits("import logging\nif __name__ == '__main__':\n    logging.basicConfig()\n")


def test_commands_that_serve_unblock_their_output() -> None:
    for module in ("core/lsv/cli/serve.py", "webui/lsv_webui/command.py", "core/lsv/engine/replicas/nodes/charge.py"):
        assert never_waits((ROOT / module).read_text()), module


def test_existing_log_handlers_are_moved() -> None:
    old, new = open(os.devnull, "w"), open(os.devnull, "w")  # noqa: SIM115
    logger, handler = logging.getLogger("lsv.of.a.test"), logging.StreamHandler(old)
    logger.addHandler(handler)
    try:
        outlet._move_handlers(old, new)
        assert handler.stream is new
    finally:
        logger.removeHandler(handler)
        old.close()
        new.close()


async def test_lost_lines_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Outlet(1, "the log", limit=0)
    monkeypatch.setattr(outlet, "_OUTLETS", [lost])
    lost.dropped = 3
    metrics = Metrics(Service({"fake": FakeClient()}))
    assert b"lsv:log_lines_lost_total 0.0" in metrics.text()
    lost.dropped = 5
    assert b"lsv:log_lines_lost_total 2.0" in metrics.text()
