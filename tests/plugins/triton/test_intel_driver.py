"""What Intel's Triton builds its driver from: what is missing is named with its package, and so is a failed build."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import triton

from lsv_triton import availability, intel_driver
from lsv_triton.availability import find_missing, why_not_triton

COMPILER = """#!/bin/sh
case "$*" in
  *print-file-name*) {library} ;;
  *-E*) {header} ;;
esac
"""
MakeCompiler = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeCompiler:
    """Makes the only compiler of the machine, which finds Level Zero's header and library or not."""
    for name in ("CC", "CXX", "ZE_PATH", "LEVEL_ZERO_V1_SDK_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    monkeypatch.setattr(triton.backends, "backends", {"intel": None})
    monkeypatch.setattr(availability, "_missing_compiler", lambda: None)
    monkeypatch.setattr(availability, "_missing_headers", lambda: None)
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", os.pathsep.join([str(folder), "/bin"]))

    def make(name: str = "g++", *, header: bool = True, library: bool = True) -> Path:
        shown = "echo /usr/lib/libze_loader.so" if library else "echo libze_loader.so"
        file = folder / name
        file.write_text(COMPILER.format(library=shown, header="exit 0" if header else "exit 1"))
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        return file

    monkeypatch.setattr(
        intel_driver.shutil, "which", lambda name: str(folder / name) if (folder / name).exists() else None
    )
    return make


def test_all_is_there(make: MakeCompiler) -> None:
    make()
    assert find_missing() is None


def test_a_cpp_compiler_is_missing(make: MakeCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_missing() == "a C++ compiler: install the package g++"
    monkeypatch.setenv("CXX", "icpx")
    assert find_missing() == "a C++ compiler, and there is none at CXX=icpx: correct or unset it"
    make("icpx")
    assert find_missing() is None


@pytest.mark.parametrize(
    ("has", "missing"), [({"header": False}, "level_zero/ze_api.h"), ({"library": False}, "libze_loader.so")]
)
def test_a_package_of_level_zero_is_missing(make: MakeCompiler, has: dict[str, bool], missing: str) -> None:
    make(**has)
    assert find_missing() == f"{missing}: install the package libze-dev (level-zero-devel where packages are RPMs)"
    assert why_not_triton() == f"needs {find_missing()}"


def test_the_header_is_looked_for_where_a_variable_says(make: MakeCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def run(command: list[str], seconds: float, text: str = "") -> subprocess.CompletedProcess[str]:
        seen.append(command)
        return subprocess.CompletedProcess(command, 0, "/usr/lib/libze_loader.so", "")

    make()
    monkeypatch.setattr(intel_driver, "_run", run)
    for variable in ("ZE_PATH", "LEVEL_ZERO_V1_SDK_PATH"):
        monkeypatch.setenv(variable, f"/opt/{variable}")
        assert find_missing() is None
        assert f"-I/opt/{variable}/include" in seen[-2]


@pytest.mark.skipif(not Path("/usr/bin/g++").exists(), reason="needs g++")
def test_a_real_compiler_is_asked_in_its_own_words() -> None:
    assert intel_driver._has_header("/usr/bin/g++") is Path("/usr/include/level_zero/ze_api.h").exists()
    assert not intel_driver._has_library("/nowhere/g++")


@pytest.fixture
def active(make: MakeCompiler, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An Intel GPU with its driver."""
    make()
    backend = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))
    monkeypatch.setattr(triton.backends, "backends", {"intel": backend})
    intel_driver.why_not_built.cache_clear()
    yield
    intel_driver.why_not_built.cache_clear()


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("pass", None),
        ("raise RuntimeError('driver.c:16: fatal error: no such file')", "driver.c:16: fatal error: no such file"),
        ("raise SystemExit(3)", "exit code 3"),
    ],
)
@pytest.mark.usefixtures("active")
def test_the_driver_is_built_by_a_child_process(program: str, why: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intel_driver, "_BUILD", program)
    found = why_not_triton()
    assert (found is None) is (why is None)
    if found is not None and why is not None:
        assert found.startswith("the driver module of Intel's Triton can't be built (")
        assert why in found
    monkeypatch.setattr(intel_driver, "_BUILD", "raise SystemExit(1)")
    assert why_not_triton() == found, "it is tried once"


@pytest.mark.usefixtures("active")
def test_a_build_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intel_driver, "_BUILD", "import time; time.sleep(60)")
    monkeypatch.setattr(intel_driver, "_BUILD_SECONDS", 0.2)
    assert why_not_triton() == "building the driver module of Intel's Triton took over 0.2 s"
