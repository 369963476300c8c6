"""Compiling: once for all processes, anew when anything it depends on changes, and doing without."""

from __future__ import annotations

import ctypes
import logging
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lsv.offers import OpSpec
from lsv_base.processes import building
from lsv_base.processes.building import find_compiler, find_compilers
from lsv_cpu import native, plugin
from lsv_cpu.attention import CpuAttention
from lsv_cpu.machine import Machine

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
    (folder / "ready.cpp").write_text('extern "C" int lsv_amx_ready() { return 1; }\n')
    monkeypatch.setattr(native, "_SOURCES", folder)
    return folder


@pytest.fixture(autouse=True)
def forget(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What was said, loaded and kept in one test is not in the next."""
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("temporary")))
    monkeypatch.setattr("tempfile.tempdir", None)
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
    assert "no C++ compiler: install g++ 11 or newer, or clang++ (apt install g++" in line
    assert "plain torch runs instead, which is 5 to 20 times slower" in line


def fake_compiler(folder: Path, name: str, *, refuses: str) -> Path:
    """The compiler of this machine, as one that does not know an option yet."""
    real = find_compiler()
    folder.mkdir(exist_ok=True)
    script = folder / name
    refusal = f'case " $* " in *" {refuses} "*) echo "error: unrecognized option {refuses}" >&2; exit 1;; esac'
    script.write_text(f'#!/bin/sh\n{refusal}\nexec {real} "$@"\n')
    script.chmod(0o755)
    return script


def test_an_older_compiler_builds_for_an_older_instruction_set(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    older = fake_compiler(tmp_path / "bin", "g++", refuses="-mavx512bf16")
    monkeypatch.setattr(native, "find_compilers", lambda: [str(older)])
    with caplog.at_level(logging.WARNING):
        assert native.load("avx512_bf16", tmp_path) is not None
    assert [path.name.split("-")[1] for path in tmp_path.rglob("*.so")] == ["avx512_vnni"]
    (line,) = caplog.messages
    assert "g++ can't compile for avx512_bf16: the kernels for avx512_vnni have to do" in line


def test_a_newer_compiler_is_taken_where_the_usual_one_is_too_old(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    older = str(fake_compiler(tmp_path / "bin", "g++", refuses="-mavx512bf16"))
    newer = str(fake_compiler(tmp_path / "bin", "g++-12", refuses="-mnothing"))
    monkeypatch.setattr(native, "find_compilers", lambda: [older, newer])
    with caplog.at_level(logging.WARNING):
        assert native.load("avx512_bf16", tmp_path) is not None
    assert [path.name.split("-")[1] for path in tmp_path.rglob("*.so")] == ["avx512_bf16"]
    assert not caplog.messages


@pytest.mark.parametrize("compiler", find_compilers() if shutil.which("g++") or shutil.which("clang++") else ())
def test_products_and_sums_of_sampling_are_rounded_one_by_one(
    compiler: str, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "avx2" not in Machine().instruction_sets():
        pytest.skip("no instruction rounds both at once")
    for folder in ("sampling", "elsewhere"):
        (sources / folder).mkdir()
        (sources / folder / "fused.cpp").write_text(
            f'extern "C" float {folder}(float a, float b, float c) {{ float product = a * b; return product + c; }}\n'
        )
    monkeypatch.setattr(native, "find_compilers", lambda: [compiler])
    library = native.load("avx2", tmp_path)
    assert library is not None
    a, b = 1 + 2.0**-13, 1 - 2.0**-13  # the product is 1 - 2^-26, which rounds to 1 by itself
    found = {}
    for folder in ("sampling", "elsewhere"):
        function = library[folder]
        function.argtypes, function.restype = [ctypes.c_float] * 3, ctypes.c_float
        found[folder] = function(a, b, -1.0)
    assert found == {"sampling": 0.0, "elsewhere": -(2.0**-26)}


def test_kernels_ask_the_machine_once(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    native.select(cache_dir=tmp_path)
    asked = []
    flags = Machine.flags
    monkeypatch.setattr(Machine, "flags", lambda self: asked.append(1) or flags(self))
    for _ in range(100):
        assert native.library() is not None
    assert len(asked) <= 1


def test_no_place_for_kernels_is_no_end(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    (tmp_path / "lsv").write_text("a file where a folder should be")
    monkeypatch.setattr("tempfile.gettempdir", refuse)
    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    building._temporary_folder.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert native.load("generic", tmp_path) is None
    assert "No usable temporary directory found" in caplog.text


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
