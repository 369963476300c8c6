"""What the allocator keeps of freed memory, in a process of its own."""

import ctypes
import subprocess
import sys
import textwrap

import pytest

PROGRAM = textwrap.dedent(
    """
    import sys
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path
    from threading import Barrier

    from lsv.processes import heap

    THREADS = 8

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    def work(_):
        together.wait()
        for _ in range(3):
            small, large = [bytes(40_000) for _ in range(100)], bytes(6_000_000)
            del small, large
        return bytes(40_000)

    if sys.argv[1] == "bounded":
        heap.share_arenas()
        heap.return_large_blocks()
    together = Barrier(THREADS)
    before = resident()
    with ThreadPoolExecutor(THREADS) as threads:
        kept = list(threads.map(work, range(THREADS)))
        print(resident() - before)
    """
)


def growth(how):
    """Bytes by which a process has grown whose threads have freed all but a little."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt")
def test_threads_give_back_what_they_freed():
    assert growth("bounded") < 0.4 * growth("as it is")
