"""What a process may use at most, by ``setrlimit(2)``."""

from __future__ import annotations

import os
import resource
import stat
import sys
from pathlib import Path

from lsv_base.processes.confinement.terms import Terms


def set_limits(terms: Terms) -> None:
    """Memory beyond what is mapped now, open files, no core files, no locked memory. Raises ``OSError``."""
    _limit(resource.RLIMIT_AS, _mapped() + terms.memory)
    _limit(resource.RLIMIT_NOFILE, terms.files)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_MEMLOCK, 0)


def forbid_processes_and_files() -> None:
    """No processes, no threads and no files that grow; a log that output goes to is spared."""
    _limit(resource.RLIMIT_NPROC, 0)
    if not any(_is_file(descriptor) for descriptor in (1, 2)):
        _limit(resource.RLIMIT_FSIZE, 0)


def limit_processor_time(seconds: float) -> None:
    """Processor seconds from now on, of all threads together; the process is killed after that. Raises ``OSError``."""
    if sys.platform != "linux":
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + seconds) + 1, most))


def _limit(kind: int, most: int) -> None:
    _, allowed = resource.getrlimit(kind)
    if allowed != resource.RLIM_INFINITY:
        most = min(most, allowed)
    resource.setrlimit(kind, (most, most))


def _mapped() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _is_file(descriptor: int) -> bool:
    try:
        return stat.S_ISREG(os.fstat(descriptor).st_mode)
    except OSError:
        return False
