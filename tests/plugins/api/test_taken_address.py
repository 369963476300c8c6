"""An address in use is detected before a model is loaded."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from lsv.cli import main
from lsv.engine.replicas.supervisors import Supervisors


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: object) -> None:
        raise AssertionError("an engine was started")

    monkeypatch.setattr(Supervisors, "start", start)


@pytest.mark.parametrize("flags", [["--port"], ["--port", "0", "--uds"], ["--port", "1", "--webui", "--webui-port"]])
def test_a_taken_address_stops_the_start(flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket(socket.AF_UNIX) as local:
        local.bind(str(tmp_path / "s"))
        local.listen()
        port = taken.getsockname()[1]
        value = str(tmp_path / "s") if flags[-1] == "--uds" else str(port)
        flags = [str(port + 1 if port < 65535 else port - 1) if flag == "1" else flag for flag in flags]
        assert main.main(["serve", "lsv-demo", *flags, value]) == 2
    error = capsys.readouterr().err
    assert "can't listen on" in error
    assert "Errno" not in error or "--uds" in flags
