"""Files behind the KV cache: whole, private, of one identity, and no more than fit."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from lsv.transports import Site
from lsv_base.errors import ConfigError
from lsv_kv_offload import form
from lsv_kv_offload.bound import SizeBound
from lsv_kv_offload.files import FileTransport
from lsv_testing.fakes.clock import FakeClock

IDENTITY = "0123456789abcdef" * 2
KEY = b"\0\0" + bytes(range(32))
CONTENT = bytes(range(256)) * 8


def open_files(folder: Path, *, identity: str = IDENTITY, rank: int = 0, gib: float = 1.0) -> FileTransport:
    options = {"kv_offload.path": str(folder), "kv_offload.path_gib": gib}
    return FileTransport(Site(identity=identity, rank=rank, options=options))


def put(files: FileTransport, key: bytes = KEY, content: bytes = CONTENT) -> None:
    files.put(key, memoryview(content))


def get(files: FileTransport, key: bytes = KEY, size: int = len(CONTENT)) -> bytes | None:
    into = bytearray(size)
    return bytes(into) if files.get(key, memoryview(into)) else None


def kept(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_what_is_put_is_had_by_others_too(tmp_path):
    put(open_files(tmp_path))
    other = open_files(tmp_path)
    assert other.has(KEY)
    assert get(other) == CONTENT
    assert not other.has(KEY[::-1])
    assert get(other, KEY[::-1]) is None


def test_files_are_for_their_owner_alone(tmp_path):
    put(open_files(tmp_path))
    (file,) = kept(tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / IDENTITY).stat().st_mode) == 0o700


@pytest.mark.parametrize("about", [{"identity": "f" * 32}, {"rank": 1}])
def test_others_have_files_of_their_own(about, tmp_path):
    put(open_files(tmp_path))
    other = open_files(tmp_path, **about)
    assert not other.has(KEY)
    assert get(other) is None


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (0, b"other!", "another kind"),
        (6, b"\x09", "form 9"),
        (8, b"\xff", "something else"),
        (24 + 40, b"\x01", "something else"),
        (88, b"\x01", "bytes follow"),
        (form.SIZE + 7, b"\xee", "checksum"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_goes(place, value, said, tmp_path, caplog):
    files = open_files(tmp_path)
    put(files)
    (file,) = kept(tmp_path)
    content = bytearray(file.read_bytes())
    content[place : place + len(value)] = value
    file.write_bytes(content)
    assert get(files) is None
    assert said in caplog.text
    assert not files.has(KEY)
    put(files)
    assert get(files) == CONTENT


def test_sizes_must_be_those_wanted(tmp_path):
    files = open_files(tmp_path)
    put(files)
    assert get(files, size=len(CONTENT) + 1) is None


def test_links_and_pipes_are_not_read(tmp_path):
    files = open_files(tmp_path)
    put(files)
    (file,) = kept(tmp_path)
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert get(files) is None
    os.mkfifo(file)
    assert get(files) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_files_of_others_are_not_read(tmp_path):
    files = open_files(tmp_path)
    put(files)
    os.chown(kept(tmp_path)[0], 12345, 12345)
    assert get(files) is None


def test_a_folder_that_others_write_to_is_refused(tmp_path):
    (tmp_path / IDENTITY).mkdir()
    (tmp_path / IDENTITY).chmod(0o777)
    with pytest.raises(ConfigError, match="is not writable by others"):
        open_files(tmp_path)


def test_the_files_used_least_recently_make_room(tmp_path):
    most = 40 * (form.SIZE + len(CONTENT))
    files = open_files(tmp_path, gib=most / (1 << 30))
    keys = [bytes([number]) * 34 for number in range(60)]
    for age, key in enumerate(keys):
        put(files, key)
        for file in kept(tmp_path):
            if file.name.startswith(key.hex()):
                os.utime(file, (1000 + age, 1000 + age))
        if age == 30:
            assert get(files, keys[0]) == CONTENT  # which is used now
    total = sum(file.stat().st_size for file in kept(tmp_path))
    assert total <= most * 1.1
    assert files.has(keys[0])
    assert files.has(keys[-1])
    assert not files.has(keys[1])


def test_only_files_of_ours_are_counted_and_removed(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "holiday").write_bytes(bytes(100_000))
    put(open_files(tmp_path, gib=50_000 / (1 << 30)))
    assert (tmp_path / "photos" / "holiday").exists()
    assert len(kept(tmp_path)) == 2


def test_what_was_not_finished_goes_in_time(tmp_path):
    put(open_files(tmp_path))
    folder, clock = kept(tmp_path)[0].parent, FakeClock()
    bound = SizeBound(tmp_path, 1 << 30, clock)
    for name in ("left.tmp", "growing.tmp"):
        (folder / name).write_bytes(b"")
    bound.enforce()
    clock.advance(3599)
    (folder / "growing.tmp").write_bytes(b"more")
    bound.enforce()
    clock.advance(2)
    bound.enforce()
    assert [file.name for file in kept(tmp_path) if file.suffix == ".tmp"] == ["growing.tmp"]


@pytest.mark.parametrize("years", [-10, 10])
def test_a_clock_that_jumps_removes_nothing_that_is_written(tmp_path, monkeypatch, years):
    put(open_files(tmp_path))
    folder = kept(tmp_path)[0].parent
    (folder / "now.tmp").write_bytes(b"")
    jumped = time.time() + years * 365 * 86400
    monkeypatch.setattr(time, "time", lambda: jumped)
    SizeBound(tmp_path, 1 << 30).enforce()
    assert (folder / "now.tmp").exists()


def test_files_of_a_clock_that_was_ahead_go_first(tmp_path):
    files = open_files(tmp_path)
    for key in (KEY, KEY[::-1]):
        put(files, key)
    ahead, other = kept(tmp_path)
    later = time.time() + 86400
    os.utime(ahead, (later, later))
    SizeBound(tmp_path, ahead.stat().st_size * 3 // 2).enforce()
    assert kept(tmp_path) == [other]


def test_two_that_write_the_same_at_once_keep_it(tmp_path, monkeypatch):
    """In containers that share a folder, both are process 1 and have written as many files."""
    here, there = open_files(tmp_path), open_files(tmp_path)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    write = here._write

    def write_while_the_other_does(path, parts):
        write(path, parts)
        put(there)
        assert Path(path).exists(), "the other has let it be"

    monkeypatch.setattr(here, "_write", write_while_the_other_does)
    put(here)
    assert get(here) == CONTENT
    assert len(kept(tmp_path)) == 1


def test_a_folder_may_be_read_only(tmp_path, monkeypatch):
    files = open_files(tmp_path)
    put(files)

    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "utime", refuse)
    assert get(files) == CONTENT
    assert get(files) == CONTENT


def test_a_full_disk_costs_no_more_than_the_file(tmp_path, monkeypatch, caplog):
    files = open_files(tmp_path)

    def fail(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", fail)
    put(files)
    put(files)
    monkeypatch.undo()
    assert not kept(tmp_path)
    assert caplog.text.count("No space left") == 1
    put(files)
    assert get(files) == CONTENT


def test_only_machines_with_the_secret_make_valid_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If anyone could compute the checksum, any writer to the folder could forge the model's output."""
    monkeypatch.setenv("LSV_CLUSTER_KEY", "a secret of some length")
    put(open_files(tmp_path))
    assert get(open_files(tmp_path)) == CONTENT
    (file,) = kept(tmp_path)
    for secret in (b"", b"another secret of some length"):
        files, wrong = open_files(tmp_path), memoryview(bytes(len(CONTENT)))
        file.write_bytes(form.pack(bytes.fromhex(IDENTITY), KEY, wrong, secret) + wrong)
        assert get(files) is None
        assert "checksum" in caplog.text
        assert not files.has(KEY)
        put(files)
        caplog.clear()
    assert get(files) == CONTENT


@pytest.mark.parametrize("place", [0, 6, 8, 24, 88])
def test_a_checksum_covers_the_header_too(place: int) -> None:
    identity, content = bytes.fromhex(IDENTITY), memoryview(CONTENT)
    header = bytearray(form.pack(identity, KEY, content, b""))
    assert form.find_fault(bytes(header), identity, KEY, content, b"") is None
    header[place] ^= 1
    assert form.find_fault(bytes(header), identity, KEY, content, b"") is not None


def test_what_is_removed_is_gone_until_it_is_put_anew(tmp_path):
    files, other = open_files(tmp_path), open_files(tmp_path)
    put(files, content=b"wrong")
    files.remove(KEY)
    files.remove(KEY)
    assert not other.has(KEY)
    put(files)
    assert get(other) == CONTENT
