"""What ties a child process to its parent, as the child sees it: a common end, and a channel."""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import os
import signal
import socket
import sys
from typing import Any

from lsv.processes.outlet import unblock_output
from lsv.processes.process import DUMP_SIGNAL
from lsv.processes.wire import Channel

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, even by SIGKILL; have its output never block it.

    The kernel watches the parent's thread that started this process, so that thread must live as long.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)  # it ended before the kernel was told
    end_without_search()
    unblock_output()


def end_without_search() -> None:
    """Have Python end without a search for cycles: among torch's modules it takes half a second, and frees nothing
    that the end of the process does not.
    """
    atexit.register(gc.freeze)


def dump_stacks_on_request() -> None:
    """Have ``Process.dump_stacks`` show on stderr where this process stands, even while Python can't run."""
    faulthandler.register(DUMP_SIGNAL, all_threads=True)


def connect(descriptor: int, parent: int, receives: object) -> Channel[Any, Any]:
    """The channel to the ``Child`` that ``parent`` made, with which this process ends.

    The two numbers are the last arguments of the module; ``receives`` is the union of what the parent sends.
    """
    die_with(parent)
    return Channel(socket.socket(fileno=descriptor), receives)
