"""Function calls of lsv and its plugins, written to a file as they happen: its last lines show where a process hangs.

Slow, by a factor of ten to a hundred: for a search, not for service. VizTracer (``--profiler-config``) keeps calls in
memory instead, and is the better tool for a process that ends.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from lsv_base.errors import ConfigError

log = logging.getLogger(__name__)

_EVENTS = ("call", "return")
_recording: Path | None = None


def record() -> Path:
    """Record the calls of this thread, and of all threads that start from now on.

    The file is in a new folder of this user alone, in the system's temporary folder. A second call changes nothing.
    Raises ``ConfigError`` if the folder can't be made.
    """
    global _recording
    if _recording is None:
        try:
            folder = tempfile.mkdtemp(prefix="lsv-calls-")
            file = Path(folder) / f"process-{os.getpid()}.log"
            out = file.open("w", buffering=1, encoding="utf-8")
        except OSError as cause:
            raise ConfigError(
                f"trace_function: no file can be made in {tempfile.gettempdir()} ({cause.strerror}): set TMPDIR to "
                "another folder",
                param="trace_function",
            ) from cause
        _recording = file
        log.warning("function calls are written to %s; unset --trace-function afterwards: it slows every step", file)
        writer = _Writer(out)
        threading.setprofile(writer.note)
        sys.setprofile(writer.note)
        atexit.register(sys.setprofile, None)  # modules lose their names while the interpreter ends
    return _recording


class _Writer:
    """Writes a line for each call and return of a function whose module is lsv's or a plugin's."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def note(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in _EVENTS or not _is_ours(frame):
            return
        now, code = time.time(), frame.f_code
        stamp = f"{time.strftime('%H:%M:%S', time.localtime(now))}.{int(now % 1 * 1e6):06d}"
        line = f"{stamp} {threading.get_native_id()} {event} {code.co_qualname} ({code.co_filename}:{frame.f_lineno})"
        if event == "call" and (caller := frame.f_back) is not None:
            line += f" from {caller.f_code.co_qualname} ({caller.f_code.co_filename}:{caller.f_lineno})"
        self._out.write(line + "\n")


def _is_ours(frame: FrameType) -> bool:
    name: str = frame.f_globals.get("__name__") or ""
    return name.startswith(("lsv.", "lsv_")) and name != __name__
