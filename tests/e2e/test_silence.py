"""A server speaks to its clients alone: it collects no statistics of its use, and asks nobody's address."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lsv.settings.caching import cache_root
from suite.server import Server

NOTE = """
import os, sys
RECORD = os.open({record!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(RECORD, f"started {{os.getpid()}}\\n".encode())

def note(event, arguments):
    if event in ("socket.connect", "socket.sendto"):
        address = arguments[1]
    elif event == "socket.getaddrinfo":
        address = (arguments[0],)
    else:
        return
    near = not isinstance(address, tuple) or address[0] in (None, "", "127.0.0.1", "localhost", "::1")
    if not near:
        os.write(RECORD, f"{{event}} {{address!r}}\\n".encode())

sys.addaudithook(note)
"""
"""Run at the start of each Python process: notes which addresses beyond this machine it asks for or connects to."""


@pytest.mark.row("F-934")
def test_nothing_is_sent_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record, home = tmp_path / "record", tmp_path / "home"
    home.mkdir()
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NOTE.format(record=str(record)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    built = ("--cache-root", str(cache_root()))  # found by HOME; it has the kernels
    monkeypatch.setenv("HOME", str(home))
    server = Server(tmp_path / "log", "lsv-demo", "--max-model-len", "256", *built)
    try:
        server.wait_until_ready()
        answer = server.client().chat.completions.create(
            model="lsv-demo", messages=[{"role": "user", "content": "Hello"}], max_tokens=4
        )
        assert answer.usage.completion_tokens > 0
    finally:
        server.stop()
    lines = record.read_text().splitlines()
    started = [line for line in lines if line.startswith("started ")]
    assert len(started) >= 2, "the server and its engine"
    assert lines == started
    assert not [file for file in home.rglob("*") if "usage" in file.name]
    call = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('203.0.113.1', 9))"
    subprocess.run([sys.executable, "-c", call], check=False, capture_output=True)
    assert "socket.connect ('203.0.113.1', 9)" in record.read_text(), "a process that does is noted"
