"""Where Triton can't run, kernels and attention say what is missing and what to do; nothing raises."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import triton

from lsv.offers import OpSpec
from lsv_triton import availability, plugin
from lsv_triton.availability import find_missing, why_not_triton

OPS = ("layer", "rms_norm", "rope", "silu_mul", "relu_mul", "sample", "logprobs")


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A process in which kernels would be compiled."""
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    monkeypatch.delenv("CC", raising=False)
    return monkeypatch


def install(monkeypatch: pytest.MonkeyPatch, *programs: str) -> None:
    """Leave ``programs`` as the only ones of the machine."""
    monkeypatch.setattr(availability.shutil, "which", {name: f"/usr/bin/{name}" for name in programs}.get)


def test_without_a_gpu_and_the_interpreter_kernels_say_why_not(compiling: pytest.MonkeyPatch) -> None:
    install(compiling, "gcc")
    compiling.setattr(availability, "_missing_headers", lambda: None)
    compiling.setattr(triton.backends, "backends", {})
    refusals = {one.supports(OpSpec(one.op, "float32")) for one in plugin.lsv_kernels() if one.op in OPS}
    assert refusals == {"Triton finds no GPU driver, and its interpreter (TRITON_INTERPRET=1) is not on"}


def test_without_triton_kernels_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "find_spec", lambda name: None)
    assert "not installed" in (why_not_triton() or "")


BROKEN = "raise ImportError(\"cannot import name 'intel' from 'triton.backends'\")"
ASK = """
import json
from lsv_triton import plugin
from lsv_triton.availability import find_missing, why_not_triton
(offer,) = [offer for offer in plugin.lsv_attention() if offer.name == "triton-paged"]
print(json.dumps([offer.missing(), why_not_triton()]))
"""


def test_a_broken_triton_is_a_reason(tmp_path: Path) -> None:
    """As two of its builds leave behind that were installed over each other."""
    package = tmp_path / "triton"
    package.mkdir()
    (package / "__init__.py").write_text(BROKEN)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", ASK], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    missing, why = json.loads(done.stdout)
    assert missing.startswith(
        "a Triton that can be imported (ImportError: cannot import name 'intel' from 'triton.backends'): builds for"
    )
    assert why == f"needs {missing}"


@pytest.mark.parametrize(
    ("programs", "named", "missing"),
    [
        (("gcc",), None, None),
        (("clang",), None, None),
        ((), None, "a C compiler: install the package gcc, or name another compiler by CC"),
        (("cc",), None, "a C compiler, which Triton looks for as gcc or clang: set CC=/usr/bin/cc"),
        (("cc",), "cc", None),
        (("gcc",), "icx", "a C compiler, and there is none at CC=icx: correct or unset it"),
    ],
)
def test_a_c_compiler_is_looked_for(
    compiling: pytest.MonkeyPatch, programs: tuple[str, ...], named: str | None, missing: str | None
) -> None:
    install(compiling, *programs)
    compiling.setattr(availability, "_missing_headers", lambda: None)
    if named is not None:
        compiling.setenv("CC", named)
    assert find_missing() == missing
    refusals = {one.supports(OpSpec(one.op, "float32")) for one in plugin.lsv_kernels() if one.op in OPS}
    assert missing is None or refusals == {f"needs {missing}"}


def test_the_headers_of_python_are_looked_for(compiling: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(compiling, "gcc")
    compiling.setattr(availability.sysconfig, "get_paths", lambda scheme: {"include": str(tmp_path)})
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert find_missing() == (
        f"{tmp_path}/Python.h: install the package python{version}-dev (python3-devel where packages are RPMs)"
    )
    (tmp_path / "Python.h").touch()
    assert find_missing() is None


def test_the_interpreter_needs_no_compiler(compiling: pytest.MonkeyPatch) -> None:
    install(compiling)
    compiling.setattr(triton.knobs.runtime, "interpret", True)
    assert find_missing() is None


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(
    ("requires", "extras"),
    [
        ("", "dev,interpreter"),
        ("Requires-Dist: triton==3.7.1; platform_system == 'Linux'", "dev"),
        ("Requires-Dist: triton-xpu==3.7.1", "dev"),
        ("Requires-Dist: pytorch-triton-rocm==3.4.0", "dev"),
    ],
)
def test_tests_install_triton_only_for_a_torch_that_brings_none(tmp_path: Path, requires: str, extras: str) -> None:
    """PyPI's Triton would overwrite the one of a torch for other GPUs."""
    (tmp_path / "bin").mkdir()
    (tmp_path / ".torch").touch()
    python = tmp_path / "bin/python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    metadata = tmp_path / "torch-2.13.0.dist-info/METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0\nRequires-Dist: numpy\n{requires}\n")
    root = Path(__file__).parents[3]
    done = subprocess.run(
        ["make", "-n", f"VENV={tmp_path}", "install-dev"], capture_output=True, text=True, cwd=root, check=True
    )
    assert f'pip install -q -c tests/constraints.txt -e ".[{extras}]"' in done.stdout


def test_no_other_extra_brings_triton() -> None:
    declared = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {"": declared["dependencies"], **declared["optional-dependencies"]}
    assert [name for name, needs in extras.items() if any(one.startswith("triton") for one in needs)] == ["interpreter"]
