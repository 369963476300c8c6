"""How long ``lsv serve`` takes from its start to the first answer, and what memory it takes, in fresh processes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lsv_base.processes.ports import free_port
from lsv_bench.figures import Figures
from lsv_bench.memory import measure_memory
from lsv_bench.openai_api import ApiClient
from lsv_bench.server import OwnServer


def measure_start(arguments: Sequence[str], *, timeout: float, api_key: str | None = None) -> Figures:
    """Start ``lsv serve`` with these arguments, wait until it is ready, ask for one token, and end it.

    ``ready_s`` counts from the start of the process until ``/health`` says ready, ``stage_*_s`` are its parts (to some
    25 ms), ``first_answer_ms`` is the one token's time after that. Raises ``LsvError`` when it does not start.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1"
    command = [sys.executable, "-m", "lsv", "serve", *arguments, "--host", "127.0.0.1", "--port", str(port)]
    with OwnServer(command, url) as server:
        stages = server.wait_until_ready(timeout)
        memory = measure_memory(server.pid)
        client = ApiClient(url, api_key)
        model = client.models()[0]
        began = time.perf_counter()
        for _ in client.stream("completions", {"model": model, "prompt": [10], "max_tokens": 1}):
            pass
        answered = time.perf_counter() - began
    return {
        "ready_s": sum(stages.values()),
        **{f"stage_{stage}_s": seconds for stage, seconds in stages.items()},
        "first_answer_ms": answered * 1e3,
        **memory,
    }


def drop_from_page_cache(folder: str) -> int:
    """Let the system forget a checkpoint's files, so that they are read from the disk again. Returns their bytes.

    Files that other processes have mapped, or that lie in memory anyway (tmpfs), stay. Does nothing where the system
    has no such call.
    """
    total = 0
    if not hasattr(os, "posix_fadvise"):
        return total
    for file in sorted(Path(folder).rglob("*")):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)  # only clean pages can be dropped
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                total += os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
    return total
