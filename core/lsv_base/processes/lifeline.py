"""The child's side of a child process: it ends with its parent and talks to it through a channel."""

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

from lsv_base.processes.outlet import unblock_output
from lsv_base.processes.process import DUMP_SIGNAL
from lsv_base.processes.wire import Channel

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, even by SIGKILL. Also makes output non-blocking.

    The kernel watches the parent's thread that started this process, so that thread must outlive the process.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)  # the parent ended before prctl took effect
    end_without_search()
    unblock_output()


def end_without_search() -> None:
    """Have Python exit without a last garbage collection.

    Among torch's modules that collection takes half a second, and exiting frees the memory anyway.
    """
    atexit.register(gc.freeze)


def dump_stacks_on_request() -> None:
    """Let ``Process.dump_stacks`` print the stacks of this process to stderr, even while Python code can't run."""
    faulthandler.register(DUMP_SIGNAL, all_threads=True)


def connect(descriptor: int, parent: int, receives: object) -> Channel[Any, Any]:
    """The channel to the ``Child`` object in ``parent``. This process ends with ``parent``.

    The two numbers are the module's last arguments; ``receives`` is the union of the parent's messages.
    """
    die_with(parent)
    return Channel(socket.socket(fileno=descriptor), receives)
