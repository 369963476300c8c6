"""How much faster waking up is than a cold start, and what memory sleeping gives back.

    python benchmarks/sleep.py MODEL [--option value …]

The cold start is a process of its own, from its first line to the first token, as its user waits for it; then the same
engine sleeps and wakes up at both levels, each time up to its first token. Options are those of ``lsv serve``.
"""

from __future__ import annotations

import gc
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

from lsv import LLM, SamplingParams

TIMES = 3
ONE = SamplingParams(temperature=0.0, max_tokens=1)


def rss() -> float:
    """GiB of this process."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / (1 << 20) if found else 0.0


def first_token(llm: LLM) -> None:
    llm.generate("Hello", ONE, use_tqdm=False)


def start(arguments: list[str]) -> LLM:
    names = (name.removeprefix("--").replace("-", "_") for name in arguments[1::2])
    options = dict(zip(names, arguments[2::2], strict=True))
    llm = LLM(arguments[0], enable_sleep_mode=True, **options)
    first_token(llm)
    return llm


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--once"]:
        start(arguments[1:])
        return
    cold = []
    for _ in range(TIMES):
        began = time.perf_counter()
        subprocess.run([sys.executable, __file__, "--once", *arguments], check=True, capture_output=True)
        cold.append(time.perf_counter() - began)
    seconds = statistics.median(cold)
    print(f"cold start: {seconds:.2f} s")
    llm = start(arguments)
    for level in (1, 2):
        falling, waking, before, asleep = [], [], rss(), 0.0
        for _ in range(TIMES):
            began = time.perf_counter()
            llm.sleep(level)
            falling.append(time.perf_counter() - began)
            gc.collect()
            asleep = rss()
            began = time.perf_counter()
            llm.wake_up()
            first_token(llm)
            waking.append(time.perf_counter() - began)
        up = statistics.median(waking)
        print(
            f"level {level}: falls asleep in {statistics.median(falling):.3f} s, wakes up in {up:.3f} s, "
            f"{seconds / up:.0f} times faster than a cold start; {before:.2f} GiB awake, {asleep:.2f} GiB asleep"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
