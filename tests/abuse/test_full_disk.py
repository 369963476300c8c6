"""A full disk, as after many uploads or logs: the server goes on, and reports what it can't write."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from lsv.engine.supervision import state
from lsv.engine.supervision.state import Supervision
from lsv_api.accounts.buckets import Buckets
from lsv_api.metrics import room
from lsv_base.errors import EngineDied, LsvError
from lsv_base.processes.folder import PrivateFolder
from lsv_base.processes.output import print_line
from suite.processes import children_of

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch):
    """New files can't be written; existing data may be overwritten."""

    def refuse(self, *_):
        Path(self).touch()
        raise FULL

    return lambda: monkeypatch.setattr(Path, "write_bytes", refuse)


@pytest.mark.parametrize("message", ["it was killed", "e" * 9000, "é" * 9000], ids=["short", "long", "wide"])
def test_clients_learn_why_an_engine_died(tmp_path: Path, full, message: str) -> None:
    state.publish(tmp_path, Supervision("running", 1))
    full()
    died = Supervision("down", 1, EngineDied(message).record())
    state.publish(tmp_path, died)
    found = state.read(tmp_path / "engine.sock")
    assert (found.state, found.run, found.error.code) == ("down", 1, died.error.code)
    assert message.startswith(found.error.message)
    assert len(found.error.message) > min(len(message) - 1, 1000)
    state.publish(tmp_path, Supervision("running", 2))
    assert state.read(tmp_path / "engine.sock") == Supervision("running", 2)
    assert {path.name for path in tmp_path.iterdir()} == {"supervision.json"}


def test_a_state_that_is_being_overwritten_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state.publish(tmp_path, Supervision("running", 1))
    whole, reads = (tmp_path / "supervision.json").read_bytes(), []

    def read(self: Path) -> bytes:
        reads.append(self)
        return whole if len(reads) > 3 else whole[:9]

    monkeypatch.setattr(Path, "read_bytes", read)
    assert state.read(tmp_path / "engine.sock") == Supervision("running", 1)


def test_mapped_pages_are_allocated() -> None:
    """Without disk space, a write to a mapped page would kill the process."""
    buckets = Buckets.make(2000)
    about = os.fstat(buckets.fileno())
    assert about.st_blocks * 512 >= about.st_size == 2000 * 16
    buckets.close()


METRICS = """
import asyncio, sys
from lsv.engine.client import Service
from lsv_testing.fakes.client import FakeClient
from lsv_api.metrics.registry import Metrics
async def main():
    metrics = Metrics(Service({"fake": FakeClient()}), sys.argv[1])
    metrics.count_http("/v1/completions", 200)
    assert b"lsv:http_requests_total" in metrics.text()
asyncio.run(main())
"""


def test_shared_metrics_are_allocated_at_the_start(tmp_path: Path) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", METRICS, str(tmp_path)], env=environment, check=True, timeout=60)
    kinds = {path.name.partition("_")[0] for path in tmp_path.iterdir()}
    assert kinds == set(room._KINDS), "each kind of metric has a file of its own"
    for path in tmp_path.iterdir():
        about = path.stat()
        assert about.st_blocks * 512 >= about.st_size == room._SIZE


def test_an_error_explains_that_metrics_have_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise FULL

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(LsvError, match=r"no room for metrics .*No space left on device.*needs 2 MiB"):
        room.reserve_room(str(tmp_path))


def test_private_folders_may_be_in_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("lsv_base.processes.folder._MEMORY", tmp_path)
    with PrivateFolder(in_memory=True) as folder:
        assert folder.path.parent == tmp_path
        assert folder.path.stat().st_mode & 0o777 == 0o700
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr("lsv_base.processes.folder._MEMORY_ROOM", 1 << 62)
    with PrivateFolder(in_memory=True) as folder:
        assert folder.path.parent != tmp_path, "there is too little room"


def test_a_failed_print_ends_no_server(capsys: pytest.CaptureFixture[str], caplog) -> None:
    print_line("lsv is ready")
    assert capsys.readouterr().out == "lsv is ready\n"
    script = (
        "import os; from lsv_base.processes.output import print_line; "
        "print_line('ready'); print_line('again'); os._exit(7)"
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", script], stdout=full, stderr=subprocess.PIPE, timeout=60, check=False
        )
    assert done.returncode == 7, done.stderr


MOUNTED = """
set -e
mount -t tmpfs -o size=24m tmpfs "$1"
mkdir "$1/tmp"
export TMPDIR="$1/tmp"
shift
exec "$@"
"""


def fill(path: Path) -> None:
    """Write until the disk is full. Raises ``OSError``."""
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def can_mount(folder: Path) -> bool:
    probe = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", str(folder)]
    try:
        return subprocess.run(probe, capture_output=True, timeout=20, check=False).returncode == 0
    except OSError:
        return False


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder with a short name, since the names of sockets in it are limited."""
    with tempfile.TemporaryDirectory(prefix="disk-") as folder:
        yield Path(folder)


@pytest.mark.slow
def test_a_server_outlives_a_full_disk(tmp_path: Path, disk: Path) -> None:
    """Several API processes, a key with a quota, and an engine that is killed while the disk is full."""
    import signal
    import time
    import urllib.request

    from lsv_base.processes.ports import free_port

    if not can_mount(disk):
        pytest.skip("no file system can be mounted here")
    accounts, port = tmp_path / "accounts.toml", free_port()
    accounts.write_text('[a]\nkeys = ["key"]\ntokens_per_minute = 100000\n')
    command = [
        "unshare", "-rm", "sh", "-c", MOUNTED, "sh", str(disk), sys.executable, "-m", "lsv", "serve", "lsv-demo",
        "--port", str(port), "--api-server-count", "2", "--restart-engine", "--api-accounts", str(accounts),
    ]  # fmt: skip
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)

    def ask(path: str, body: dict | None = None) -> int:
        data = None if body is None else msgspec.json.encode(body)
        headers = {"authorization": "Bearer key", "content-type": "application/json"}
        try:
            with urllib.request.urlopen(
                urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers), timeout=20
            ) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def wait_for(status: int, seconds: float = 120) -> None:
        ends = time.monotonic() + seconds
        while ask("/ready") != status and time.monotonic() < ends:
            assert server.poll() is None, (tmp_path / "log").read_text()[-3000:]
            time.sleep(0.1)

    try:
        wait_for(200)
        filled = Path(f"/proc/{server.pid}/root{disk}/fill")
        with pytest.raises(OSError, match="No space"):
            fill(filled)
        asked = {"prompt": "a", "max_tokens": 3}
        assert {ask("/v1/completions", asked) for _ in range(10)} == {200}
        assert {ask("/metrics") for _ in range(4)} == {200}
        for engine in children_of(server.pid, "lsv.engine.main"):
            os.kill(engine, signal.SIGKILL)
        wait_for(503, 20)
        wait_for(200)
        assert ask("/v1/completions", asked) == 200
        assert "killed by signal 7" not in (tmp_path / "log").read_text()
    finally:
        server.terminate()
        server.wait(30)
