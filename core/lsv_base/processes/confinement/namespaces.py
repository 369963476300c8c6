"""A network namespace of a process's own: it has no interface, so nothing outside can be reached."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from lsv_base.processes.confinement.kernel import unshare

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000


def leave_network() -> None:
    """Raises ``OSError``, also for a process with more than one thread.

    The user namespace beside it is what lets a process without privileges do this; its user stays itself in it.
    """
    user, group = os.geteuid(), os.getegid()
    unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with suppress(OSError):  # the process is nobody in its namespace then, which changes nothing else
            Path("/proc/self", name).write_text(text, encoding="ascii")
