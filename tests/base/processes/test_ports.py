"""A free port stays free until a server listens on it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from lsv_base.processes import ports


def test_a_port_is_free_and_no_outgoing_connection_gets_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "range").write_text("25000\t60999\n")
    monkeypatch.setattr(ports, "_EPHEMERAL", tmp_path / "range")
    for _ in range(20):
        port = ports.free_port()
        assert 20000 <= port < 25000
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_a_port_that_is_taken_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no port below the ephemeral range is free, the system chooses one."""
    with socket.create_server(("127.0.0.1", ports.free_port())) as taken:
        port = taken.getsockname()[1]
        assert not ports._is_free("127.0.0.1", port)
    monkeypatch.setattr(ports, "_is_free", lambda host, port: False)
    assert ports.free_port() > 0


@pytest.mark.parametrize("said", ["", "nonsense", "1024 65535"])
def test_odd_ranges_leave_some_ports(said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "range").write_text(said)
    monkeypatch.setattr(ports, "_EPHEMERAL", tmp_path / "range")
    assert ports.free_port() >= 20000
