"""Native code that is compiled on the user's machine: the compiler, the cache, and one build whoever comes first."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from lsv_base.processes.folder import PrivateFolder
from lsv_base.processes.trust import find_stranger

log = logging.getLogger(__name__)

Build = Callable[[Path], None]
"""Makes the file at a path."""

_NUMBERED = re.compile(r"(?:clan)?g\+\+-(\d+)")


class BuildCache:
    """Compiled files of one kind, in ``lsv/<name>`` below the folder that ``root`` returns.

    ``root`` is called for each file, and may raise ``RuntimeError`` if this user has no folder for caches.

    A file that is there is used, whether the folder can be written or not. What somebody else could have put there is
    not: to load it is to run it. Where the folder can't be used, there is one for this user among the temporary files.
    """

    def __init__(self, name: str, root: Callable[[], Path]) -> None:
        self._name, self._root = name, root

    def take(self, file: str, what: str, build: Build) -> Path:
        """The path of ``file``, which is built unless it is there or another process is building it.

        Raises what ``build`` raises, and ``OSError`` where there is no place for it.
        """
        folders = [folder.resolve() for folder in self._folders()]
        for folder in folders:
            if os.path.exists(folder / file) and _is_ours((folder / file).resolve()):
                return (folder / file).resolve()
        folder = next(filter(_is_writable, folders), None) or _temporary_folder()
        _build_once(folder / file, what, build)
        return folder / file

    def _folders(self) -> Iterator[Path]:
        with suppress(RuntimeError):  # this user has no home
            yield self._root() / "lsv" / self._name
        with suppress(OSError):  # there is no place for temporary files
            yield Path(tempfile.gettempdir()) / f"lsv-{os.geteuid()}" / self._name


def find_compilers() -> Sequence[str]:
    """The C++ compilers of this machine, the usual one first. Raises ``FileNotFoundError``."""
    names = ["g++", "c++", "clang++", *_numbered_compilers()]
    found = list(dict.fromkeys(path for path in map(shutil.which, names) if path))
    if not found:
        raise FileNotFoundError(
            "no C++ compiler: install g++ 11 or newer, or clang++ "
            "(apt install g++, dnf install gcc-c++, apk add g++, conda install gxx)"
        )
    return found


def find_compiler() -> str:
    """The C++ compiler. Raises ``FileNotFoundError``."""
    return find_compilers()[0]


def run(command: Sequence[str]) -> None:
    """Run a compiler. Raises ``CalledProcessError``, whose ``stderr`` says what is wrong."""
    subprocess.run(command, check=True, capture_output=True, text=True)


def takes_flags(compiler: str, flags: Sequence[str]) -> bool:
    """Whether a compiler knows all of ``flags``. Raises ``OSError`` where it can't be run."""
    try:
        run([compiler, *flags, "-fsyntax-only", "-x", "c++", os.devnull])
    except subprocess.CalledProcessError:
        return False
    return True


def explain(problem: Exception) -> str:
    """Why a build failed, in one line."""
    if isinstance(problem, subprocess.CalledProcessError):
        lines = problem.stderr.strip().splitlines()
        return next((line for line in lines if "error" in line), lines[-1] if lines else str(problem))
    return str(problem)


def _numbered_compilers() -> Sequence[str]:
    """The names of those that are installed under one with their version alone, the newest first."""
    found: dict[str, int] = {}
    for folder in os.get_exec_path():
        with suppress(OSError):
            found |= {name: int(match[1]) for name in os.listdir(folder) if (match := _NUMBERED.fullmatch(name))}
    return sorted(found, key=lambda name: found[name], reverse=True)


def _is_ours(path: Path) -> bool:
    """Whether this user and root alone can have made what is at ``path``; a warning says who else."""
    with suppress(OSError):
        stranger = find_stranger(path)
        if stranger is None:
            return True
        _warn_once(f"compiled code at {path} is not used, for others could have put it there: {stranger}")
    return False


def _is_writable(folder: Path) -> bool:
    """Whether files can be made in ``folder``, which is made if need be, and by no others."""
    try:
        _make(folder)
    except OSError:
        return False
    return os.access(folder, os.W_OK) and _is_ours(folder)


def _make(folder: Path) -> None:
    """Make a folder and those above it so that others can read them at most, whatever the umask is."""
    if not folder.exists():
        _make(folder.parent)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o755)


def _build_once(path: Path, what: str, build: Build) -> None:
    with _lock(path.with_suffix(".lock")) as alone:
        if path.exists() and _is_ours(path.resolve()):
            return
        if alone:
            for left in path.parent.glob(f"{path.stem}.*.part"):
                left.unlink(missing_ok=True)
        log.info("compiling %s (once, up to a minute)", what)
        began = time.monotonic()
        descriptor, name = tempfile.mkstemp(".part", f"{path.stem}.", path.parent)
        os.close(descriptor)
        unfinished = Path(name)
        try:
            build(unfinished)
            unfinished.chmod(0o755)  # for whoever runs an image that somebody else has made
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
        log.info("compiled %s in %.1f s", what, time.monotonic() - began)


@contextmanager
def _lock(path: Path) -> Iterator[bool]:
    """Wait until nobody else has the lock; False on a file system without locks, where two may build the same thing."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        alone = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            alone = False
        yield alone
    finally:
        os.close(descriptor)


@lru_cache
def _warn_once(text: str) -> None:
    log.warning(text)


@lru_cache(maxsize=1)
def _temporary_folder() -> Path:
    return PrivateFolder().path
