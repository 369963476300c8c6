"""Private folders: entered by nobody else, and not left behind by processes that are killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lsv.processes.folder import PrivateFolder


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


def test_what_a_killed_process_leaves_goes_with_the_next_one(temporary: Path) -> None:
    code = "from lsv.processes.folder import PrivateFolder; f = PrivateFolder(); print(f.path, flush=True); input()"
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
