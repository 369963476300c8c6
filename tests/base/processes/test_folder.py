"""Private folders: entered by nobody else, and not left behind by processes that are killed."""

from __future__ import annotations

import fcntl
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from tempfile import mkdtemp

import pytest

from lsv_base.processes.folder import PrivateFolder


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def test_it_is_private_and_gone_when_it_is_removed() -> None:
    folder = PrivateFolder()
    assert folder.path.stat().st_mode & 0o777 == 0o700
    (folder.path / "file").touch()
    folder.remove()
    folder.remove()
    assert not folder.path.exists()


def test_its_path_is_short_enough_for_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 80)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with PrivateFolder() as folder, socket.socket(socket.AF_UNIX) as end:
        end.bind(str(folder.path / "engine.sock"))
        assert folder.path.parent == Path("/tmp")


def test_a_file_system_without_locks_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def make(prefix: str, dir: object) -> str:
        assert not made, "it goes on making folders"
        made.append(mkdtemp(prefix=prefix))
        return made[0]

    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(tempfile, "mkdtemp", make)
    monkeypatch.setattr(fcntl, "flock", refuse)
    with PrivateFolder() as folder:
        assert folder.path.is_dir()
    assert not folder.path.exists()


def test_what_a_killed_process_leaves_goes_with_the_next_one(temporary: Path) -> None:
    code = "from lsv_base.processes import folder; f = folder.PrivateFolder(); print(f.path, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        left = Path(owner.stdout.readline().strip())
        (left / "engine.sock").touch()
        other = temporary / "lsv-of-somebody-else"
        other.mkdir()
        first = PrivateFolder()
        assert left.exists(), "its owner lives"
        owner.kill()
    second = PrivateFolder()
    assert not left.exists()
    assert other.exists()
    assert first.path.exists()
    for folder in (first, second):
        folder.remove()
