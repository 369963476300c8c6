"""Asking a short-lived child process about devices, so that the asking process loads no vendor runtime."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from typing import Any

_SECONDS = 60.0


@cache
def ask_child(script: str) -> Any:
    """What ``script`` prints as JSON on its last line; None when it fails, prints none or takes over a minute.

    An answer is remembered for the life of the process.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    lines = done.stdout.strip().splitlines()
    try:
        return json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
