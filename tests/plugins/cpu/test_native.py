"""Compiling: once for all processes, anew when anything it depends on changes, and doing without."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lsv.offers import OpSpec
from lsv_cpu import native, plugin
from lsv_cpu.attention import CpuAttention

BUILD = """
import logging, sys
from pathlib import Path
from lsv_cpu import native
logging.basicConfig(level="INFO")
native._SOURCES = Path(sys.argv[1])
assert native.load("generic", Path(sys.argv[2]))
"""


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources with the functions that are looked for, quick to compile."""
    folder = tmp_path / "sources"
    folder.mkdir()
    for name in native.SIGNATURES:
        (folder / f"{name}.cpp").write_text(f'extern "C" void {name}() {{}}\n')
    monkeypatch.setattr(native, "_SOURCES", folder)
    return folder


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """What was said and loaded in one test is not in the next."""
    native._do_without.cache_clear()
    native._load.cache_clear()
    yield
    native._do_without.cache_clear()
    native.select()


def test_two_processes_compile_once(sources: Path, tmp_path: Path) -> None:
    script = f"import sys; sys.path[:0] = {[path for path in sys.path if path]!r}\n{BUILD}"
    command = [sys.executable, "-c", script, str(sources), str(tmp_path)]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=120)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert sum(text.count("compiling the native CPU kernels for generic") for text in said) == 1
    assert len(list(tmp_path.rglob("*.so"))) == 1


def test_changed_sources_are_compiled_anew(sources: Path) -> None:
    before = native._key("avx2")
    assert native._key("avx2") == before != native._key("avx512")
    (sources / "attend.cpp").write_text("// changed\n")
    assert native._key("avx2") != before


def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)


def test_without_a_compiler_torch_runs_and_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    without_compiler(monkeypatch)
    native.select(cache_dir=tmp_path)
    with caplog.at_level(logging.WARNING):
        assert CpuAttention()._library is None
        assert CpuAttention()._library is None
    (line,) = caplog.messages
    assert "no C++ compiler: install g++" in line


def test_what_is_compiled_needs_no_compiler(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert native.load("generic", tmp_path) is not None
    native._load.cache_clear()
    without_compiler(monkeypatch)
    assert native.load("generic", tmp_path) is not None


def test_sources_that_do_not_compile_are_no_end(
    sources: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (sources / "broken.cpp").write_text("int here is = an error;")
    with caplog.at_level(logging.WARNING):
        assert native.load("generic", tmp_path / "cache") is None
    (line,) = caplog.messages
    assert "error: " in line
    assert not list(tmp_path.rglob("*.so"))


def test_kernels_are_not_offered_without_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    native.select(enabled=False)
    for offer in plugin.lsv_kernels():
        refusal = offer.supports(OpSpec(offer.op, "float32"))
        assert refusal is not None, offer.op


def test_a_folder_that_can_not_be_written_is_replaced(sources: Path, tmp_path: Path) -> None:
    (tmp_path / "lsv").write_text("a file where a folder should be")
    assert native.load("generic", tmp_path) is not None
