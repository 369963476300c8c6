"""Keeps a folder of files below a size."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_MOST_UNSEEN = 64 << 20
_LEFT = 0.9
"""What is left of the bound when files go."""
_ABANDONED = 3600.0
"""Seconds after which a file that was not finished is nobody's."""
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

    def __init__(self, root: Path, most: int) -> None:
        self._root, self._most = root, most
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
        files = list(self._files())
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
        """Those that are ours by their names; what was not finished goes at once."""
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
                            elif entry.name.endswith(".tmp") and about.st_mtime < time.time() - _ABANDONED:
                                os.unlink(entry.path)


def _folders(path: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
