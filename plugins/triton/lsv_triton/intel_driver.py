"""Checks what Intel's Triton needs besides a C compiler: it builds its driver module at the first launch of a kernel.

Its ``backend/driver.py`` compiles ``driver.c`` as C++ with SYCL's headers, which come with torch, and Level Zero's,
which do not (triton-xpu 3.7: ``CompilationHelper`` and ``runtime/build.py``).
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lsv.settings import environment_with

_COMPILERS = ("icpx", "clang++", "g++")
"""Compilers in order of preference, unless ``CXX`` names another."""
_ROOTS = ("LEVEL_ZERO_V1_SDK_PATH", "ZE_PATH")
"""Variables that name the folder with Level Zero's ``include``; the first one counts."""
_HEADER, _LIBRARY = "level_zero/ze_api.h", "libze_loader.so"
_LOOK_SECONDS, _BUILD_SECONDS = 20.0, 300.0
_BUILD = "import triton; triton.runtime.driver.active.utils"


def find_missing() -> str | None:
    """None, or what is missing for building the driver module of Intel's Triton."""
    named = environment_with({}).get("CXX")
    found = [path for path in map(shutil.which, (named,) if named else _COMPILERS) if path]
    if not found:
        where = f", and there is none at CXX={named}: correct or unset it" if named else ": install the package g++"
        return f"a C++ compiler{where}"
    if not _has_header(found[0]):
        return f"{_HEADER}: install the package libze-dev (level-zero-devel where packages are RPMs)"
    if not _has_library(found[0]):
        return f"{_LIBRARY}: install the package libze-dev (level-zero-devel where packages are RPMs)"
    return None


@functools.cache
def why_not_built() -> str | None:
    """None, or why the driver module can't be built and loaded.

    A child process tries it once, so that a failure does not end this one. Triton caches the result.
    """
    done = _run([sys.executable, "-c", _BUILD], _BUILD_SECONDS)
    if done is None:
        return f"building the driver module of Intel's Triton took over {_BUILD_SECONDS:g} s"
    if done.returncode == 0:
        return None
    lines = [line for line in (*done.stdout.splitlines(), *done.stderr.splitlines()) if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    told = (errors or lines or [f"exit code {done.returncode}"])[-1 if not errors else 0]
    return f"the driver module of Intel's Triton can't be built ({told.strip()[:200]})"


def _has_header(compiler: str) -> bool:
    given = environment_with({})
    root = next((given[name] for name in _ROOTS if name in given), "/usr/local")
    done = _run(
        [compiler, "-x", "c++", "-E", f"-I{root}/include", "-"], _LOOK_SECONDS, f"#include <{_HEADER}>\n"
    )  # fmt: skip
    return done is not None and done.returncode == 0


def _has_library(compiler: str) -> bool:
    """A compiler prints the path of a library that it finds, else only its name."""
    done = _run([compiler, f"-print-file-name={_LIBRARY}"], _LOOK_SECONDS)
    return done is not None and Path(done.stdout.strip()).is_absolute()


def _run(command: Sequence[str], seconds: float, text: str = "") -> subprocess.CompletedProcess[str] | None:
    """The finished process; None if it did not end in time or could not be started."""
    try:
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
