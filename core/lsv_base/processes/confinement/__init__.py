"""What a process gives up before it works on what strangers send: the network, files, rights, memory without end.

Each measure is tried, and one that the system does not have is reported with what is left in its place
(``Measure``); nothing here needs a privilege. A process calls ``leave_network`` while it has one thread, loads what it
needs, and calls ``confine``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from lsv_base.processes.confinement import landlock, limits, namespaces, privileges, seccomp
from lsv_base.processes.confinement.terms import Measure, Terms, Unavailable

_NO_PRIVILEGES = "none, nor new ones; its memory is closed to other processes"
_FEW_FILES = "reads what Python imports and the model's folder, writes none"
_FEW_CALLS = "those of an allow-list; starting a program or tracing a process ends it"


def leave_network() -> list[Measure]:
    """Give up the network. The process must have one thread."""
    instead = "the filter of system calls refuses sockets"
    return [_take("network", "one of its own, without any interface", instead, namespaces.leave_network)]


def confine(terms: Terms, readable: Sequence[str] = ()) -> list[Measure]:
    """Give up privileges, all files but ``readable`` and what Python imports, and what is over ``terms``.

    To be called once everything is loaded, because the memory in use by then counts for nothing.
    """
    paths = [*importable(), *readable]
    limited = (
        f"{terms.memory >> 20} MiB beyond what it has loaded, {terms.files} open files, processor time, no core files"
    )
    measures = [
        _take("limits", limited, "the parent's time limit alone", lambda: limits.set_limits(terms)),
        _take("privileges", _NO_PRIVILEGES, "those of the account stay", privileges.drop),
        _take("files", _FEW_FILES, "the account's rights bound reading, and the filter writing",
              lambda: landlock.read_only(paths)),
    ]  # fmt: skip
    filtered = _take(
        "system calls", _FEW_CALLS, "no new processes unless it is root's, no files that grow", seccomp.install
    )
    if not filtered.held and sys.platform == "linux":
        limits.forbid_processes_and_files()
    return [*measures, filtered]


def importable() -> list[str]:
    """The folders that imports, shared libraries and the time zone come from; not the working directory."""
    here = os.getcwd()
    imports = [path for path in sys.path if path and os.path.realpath(path) not in (here, "/")]
    return [*imports, sys.prefix, sys.base_prefix, *_SYSTEM]


_SYSTEM = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/usr/share/zoneinfo",
    "/etc/localtime", "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu", "/dev/null", "/dev/urandom",
)  # fmt: skip


def _take(name: str, described: str, instead: str, act: Callable[[], None]) -> Measure:
    try:
        if sys.platform != "linux":
            raise Unavailable(f"{sys.platform} does not have it")
        act()
    except (OSError, Unavailable) as cause:
        return Measure(
            name, False, f"not in force, {cause.strerror if isinstance(cause, OSError) else cause}: {instead}"
        )
    return Measure(name, True, described)
