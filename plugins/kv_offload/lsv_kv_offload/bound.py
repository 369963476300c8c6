"""Keeps a folder of files below a size.

File times come from the wall clock, which may jump, so they only order files. Ages are measured with the monotonic
clock.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_MOST_UNSEEN = 64 << 20
_LEFT = 0.9
"""What is left of the bound when files go."""
_ABANDONED = 3600.0
"""Seconds after which an unchanged unfinished file counts as abandoned."""
_FUTURE = 60.0
"""Tolerance in seconds for file times in the future, from machines with another clock."""
_IDENTITY = re.compile(r"[0-9a-f]{32}")
_NAME = re.compile(r"[0-9a-f]+-\d+")


class _Kept(NamedTuple):
    used: float
    size: int
    path: str


class SizeBound:
    """Looks through the files whenever this process has written some, since other processes write there, too; between
    two looks the bound may be passed by a twentieth, and by 64 MiB at most.
    """

    def __init__(self, root: Path, most: int, now: Callable[[], float] = time.monotonic) -> None:
        self._root, self._most, self._now = root, most, now
        self._unfinished: dict[str, tuple[tuple[int, int], float]] = {}
        """Unfinished files by path: size, time, and when this state was first seen."""
        self._unseen_most = min(_MOST_UNSEEN, most // 20)
        self._unseen = self._unseen_most  # the first look comes with the first file

    def note(self, size: int) -> None:
        """So many bytes were written."""
        self._unseen += size
        if self._unseen >= self._unseen_most:
            self._unseen = 0
            self.enforce()

    def enforce(self) -> None:
        """Remove the files used least recently, of whichever identity, where there are too many."""
        latest = time.time() + _FUTURE
        # otherwise, after the clock has jumped back, older files would outlive all later ones
        files = [file if file.used <= latest else file._replace(used=0.0) for file in self._files()]
        total = sum(file.size for file in files)
        if total <= self._most:
            return
        for file in sorted(files):
            try:
                os.unlink(file.path)
            except FileNotFoundError:
                pass  # another process has been quicker
            except OSError:
                continue
            total -= file.size
            if total <= self._most * _LEFT:
                return

    def _files(self) -> Iterator[_Kept]:
        """The files with our names. Abandoned unfinished files are removed at once."""
        seen: dict[str, tuple[tuple[int, int], float]] = {}
        for folder in _folders(self._root):
            if not _IDENTITY.fullmatch(folder.name):
                continue
            for part in _folders(folder.path):
                with suppress(OSError), os.scandir(part.path) as entries:
                    for entry in entries:
                        with suppress(OSError):
                            about = entry.stat(follow_symlinks=False)
                            if _NAME.fullmatch(entry.name):
                                yield _Kept(about.st_mtime, about.st_size, entry.path)
                            elif entry.name.endswith(".tmp"):
                                looks = (about.st_size, about.st_mtime_ns)
                                known = self._unfinished.get(entry.path)
                                since = known[1] if known is not None and known[0] == looks else self._now()
                                if self._now() - since >= _ABANDONED:
                                    os.unlink(entry.path)
                                else:
                                    seen[entry.path] = (looks, since)
        self._unfinished = seen


def _folders(path: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
