"""Compiled code is built once, kept where it can be kept, and never taken from where strangers could have put it."""

from __future__ import annotations

import fcntl
import logging
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lsv_base.processes import building
from lsv_base.processes.building import BuildCache, find_compilers

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


class Builds:
    """Builds a file and counts how often."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, path: Path) -> None:
        self.count += 1
        path.write_text("built")


@pytest.fixture
def build() -> Builds:
    return Builds()


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    building._warn_once.cache_clear()
    building._temporary_folder.cache_clear()
    yield folder
    building._temporary_folder.cache_clear()


def take(root: Path, build: Callable[[Path], None]) -> Path:
    return BuildCache("things", lambda: root).take("thing.so", "a thing", build)


def deny_writing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that is mounted read-only, root or not."""
    access, mkdir = os.access, Path.mkdir

    def look(path: Path, mode: int) -> bool:
        return not (mode & os.W_OK and Path(path).is_relative_to(folder)) and access(path, mode)

    def make(path: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if path.is_relative_to(folder):
            raise OSError(30, "Read-only file system")
        mkdir(path, mode, parents, exist_ok)

    monkeypatch.setattr(os, "access", look)
    monkeypatch.setattr(Path, "mkdir", make)


def test_it_is_built_once_and_others_can_read_it(tmp_path: Path, build: Builds) -> None:
    before = os.umask(0)
    try:
        path = take(tmp_path / "cache", build)
    finally:
        os.umask(before)
    assert take(tmp_path / "cache", build) == path
    assert (build.count, path.read_text()) == (1, "built")
    modes = {
        stat.S_IMODE(place.stat().st_mode) for place in (path, path.parent, path.parent.parent, tmp_path / "cache")
    }
    assert modes == {0o755}, "nobody else may write there, whatever the umask"


def test_what_is_there_is_used_though_the_folder_can_not_be_written(
    tmp_path: Path, build: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = take(tmp_path / "image", build)
    deny_writing(tmp_path / "image", monkeypatch)
    assert take(tmp_path / "image", build) == path
    assert build.count == 1


def test_where_the_folder_can_not_be_written_all_processes_share_another(
    tmp_path: Path, temporary: Path, build: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    deny_writing(tmp_path / "image", monkeypatch)
    path = take(tmp_path / "image", build)
    assert path.is_relative_to(temporary)
    assert take(tmp_path / "image", build) == path
    assert build.count == 1


def test_a_user_without_a_home_has_a_cache(build: Builds, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    assert BuildCache("things", no_home).take("thing.so", "a thing", build).is_relative_to(temporary)


def test_a_file_system_without_locks_will_do(tmp_path: Path, build: Builds, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert take(tmp_path, build).read_text() == "built"


def plant(root: Path) -> Path:
    """What somebody else might have put where it is looked for."""
    planted = root / "lsv/things/thing.so"
    planted.parent.mkdir(parents=True)
    planted.write_text("planted")
    return planted


@pytest.mark.parametrize("place", ["thing.so", "things", "lsv", "root"])
def test_what_everybody_could_have_written_is_not_used(
    place: str, tmp_path: Path, build: Builds, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "shared"
    planted = plant(root)
    found = next(path for path in (planted, *planted.parents) if path.name == place or path == root)
    found.chmod(0o777)
    with caplog.at_level(logging.WARNING):
        assert take(root, build).read_text() == "built"
    assert f"everybody may write to {found}" in caplog.text


@as_root
@pytest.mark.parametrize("owned", ["thing.so", "things"])
def test_what_belongs_to_somebody_else_is_not_used(
    owned: str, tmp_path: Path, build: Builds, caplog: pytest.LogCaptureFixture
) -> None:
    planted = plant(tmp_path)
    found = planted if planted.name == owned else planted.parent
    os.chown(found, NOBODY, 0)
    with caplog.at_level(logging.WARNING):
        assert take(tmp_path, build).read_text() == "built"
    assert f"{found} belongs to" in caplog.text


@as_root
def test_what_a_group_of_others_could_have_written_is_not_used(tmp_path: Path, build: Builds) -> None:
    planted = plant(tmp_path)
    planted.parent.chmod(0o775)
    assert take(tmp_path, build).read_text() == "planted", "root's own group"
    os.chown(planted.parent, 0, NOBODY)
    assert take(tmp_path, build).read_text() == "built"


def test_nothing_is_followed_or_left_behind_in_the_folder(tmp_path: Path, build: Builds) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "lsv/things"
    folder.mkdir(parents=True)
    (folder / f"thing.{os.getpid()}").symlink_to(victim)
    (folder / "thing.killed.part").touch()
    path = take(tmp_path, build)
    assert victim.read_text() == "precious"
    assert not path.is_symlink()
    assert not list(folder.glob("*.part"))


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError("the disk is full")

    with suppress(OSError):
        take(tmp_path, fail)
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} <= {"thing.lock"}


def test_compilers_under_any_name_are_found_the_usual_one_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("clang++-14", "g++-9", "g++-11", "clang++", "g++-11-suffix"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [Path(path).name for path in find_compilers()] == ["clang++", "clang++-14", "g++-11", "g++-9"]
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(FileNotFoundError, match="install g\\+\\+ 11 or newer"):
        find_compilers()
