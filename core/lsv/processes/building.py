"""Native code that is compiled on the user's machine: the compiler, the cache, and one build whoever comes first."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from lsv.processes.folder import PrivateFolder, cache_root

log = logging.getLogger(__name__)


def find_compiler() -> str:
    """The C++ compiler. Raises ``FileNotFoundError``."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise FileNotFoundError("no C++ compiler: install g++")
    return compiler


def cache_folder(name: str, root: Path | None = None) -> Path:
    """``lsv/<name>`` below ``root`` or the user's cache; a private folder if that can't be written."""
    folder = (root or cache_root()) / "lsv" / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return _temporary_folder()
    return folder if os.access(folder, os.W_OK) else _temporary_folder()


def build_once(path: Path, what: str, build: Callable[[Path], None]) -> None:
    """Have ``build`` make the file at ``path``, unless it is there or another process is making it.

    Raises ``OSError``, or ``SubprocessError`` if the compiler fails.
    """
    if path.exists():
        return
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return
        log.info("compiling %s (once, some seconds)", what)
        began = time.monotonic()
        unfinished = path.with_suffix(f".{os.getpid()}")
        build(unfinished)
        unfinished.replace(path)
        log.info("compiled %s in %.1f s", what, time.monotonic() - began)


def run(command: Sequence[str]) -> None:
    """Run a compiler. Raises ``CalledProcessError``, whose ``stderr`` says what is wrong."""
    subprocess.run(command, check=True, capture_output=True, text=True)


def explain(problem: Exception) -> str:
    """Why a build failed, in one line."""
    if isinstance(problem, subprocess.CalledProcessError):
        lines = problem.stderr.strip().splitlines()
        return next((line for line in lines if "error" in line), lines[-1] if lines else str(problem))
    return str(problem)


@lru_cache(maxsize=1)
def _temporary_folder() -> Path:
    return PrivateFolder().path
