"""The folder for caches: where variables say, or below the user's home."""

from __future__ import annotations

from pathlib import Path

import pytest

from lsv.settings.caching import cache_root
from lsv_base.processes.building import BuildCache

VARIABLES = ("XDG_CACHE_HOME", "VLLM_CACHE_ROOT", "LSV_CACHE_ROOT")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.row("F-805")
def test_caches_are_where_variables_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_root() == Path.home() / ".cache"
    for variable in VARIABLES:
        monkeypatch.setenv(variable, str(tmp_path / variable))
        assert cache_root() == tmp_path / variable
        built = BuildCache("gguf", cache_root).take("file", "a file", lambda path: path.write_bytes(b""))
        assert built == tmp_path / variable / "lsv" / "gguf" / "file"


def test_code_is_built_for_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    built = BuildCache("things", cache_root).take("file", "a file", lambda path: path.write_bytes(b""))
    assert built.is_relative_to(tmp_path)
