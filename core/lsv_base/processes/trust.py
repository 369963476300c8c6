"""Whether a file is this user's alone to change, as one must be that is about to be run."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

_ROOT = 0


def find_stranger(path: Path) -> str | None:
    """None, or who beside this user and root could change what is at ``path``, an existing file or folder.

    Nobody can on a file system that is mounted read-only. ``path`` must be resolved: who can change a link on the way
    is not looked at. Raises ``OSError``.
    """
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return None
    for place in (path, *path.parents):
        found = place.stat()
        if found.st_uid not in (_ROOT, os.geteuid()) and _is_known(found.st_uid):
            return f"{place} belongs to {_name(found.st_uid)}"
        if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX:
            continue  # others may add files there, and change none of ours
        if found.st_mode & stat.S_IWOTH:
            return f"everybody may write to {place}"
        if found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid):
            return f"the group {found.st_gid} may write to {place}"
    return None


def _is_private(group: int) -> bool:
    """Whether a group is root's, or this user's alone: many systems make one for each user, with the user's name."""
    if group == _ROOT:
        return True
    try:
        user, named = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return named.gr_name == user.pw_name and set(named.gr_mem) <= {user.pw_name}


def _is_known(user: int) -> bool:
    """Whether a user's number means somebody: in a container of this user's, what others own has one that does not."""
    try:
        ranges = [list(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    except (OSError, ValueError):
        return True
    return any(first <= user < first + count for first, _, count in ranges)


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"
