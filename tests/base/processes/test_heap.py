"""How much freed memory the allocator keeps, in a separate process, and when garbage is collected."""

import ctypes
import gc
import subprocess
import sys
import textwrap

import pytest

from lsv_base.processes import heap

PROGRAM = textwrap.dedent(
    """
    import sys
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path
    from threading import Barrier

    from lsv_base.processes import heap

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
    if sys.argv[1] == "trimmed":
        small = [bytes(4_000) for _ in range(10_000)]
        kept = small[::10]
        del small
        grown = resident() - before
        heap.trim()
        print(resident() - before, grown)
        sys.exit()
    with ThreadPoolExecutor(THREADS) as threads:
        kept = list(threads.map(work, range(THREADS)))
        print(resident() - before)
    """
)


def run(how):
    return [int(word) for word in subprocess.check_output([sys.executable, "-c", PROGRAM, how], text=True).split()]


def growth(how):
    """Bytes by which a process has grown whose threads have freed all but a little."""
    return run(how)[0]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt")
def test_threads_give_back_what_they_freed():
    assert growth("bounded") < 0.4 * growth("as it is")


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library has no malloc_trim")
def test_free_pages_between_used_ones_are_given_back():
    trimmed, grown = run("trimmed")
    assert trimmed < 0.5 * grown


def test_tuples_that_python_keeps_for_later_are_given_back():
    program = (
        "import gc, sys; from lsv_base.processes import heap; gc.disable(); heap.trim();"
        "before = sys.getallocatedblocks();"
        "tuples = [(n, n, n) for n in range(3000)]; del tuples;"
        "kept = sys.getallocatedblocks() - before; heap.trim(); print(kept, sys.getallocatedblocks() - before)"
    )
    kept, left = map(int, subprocess.check_output([sys.executable, "-c", program], text=True).split())
    assert kept > 1500 > left


def test_no_garbage_is_collected_while_libraries_are_imported():
    with heap.without_collections():
        with heap.without_collections():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), heap.without_collections():
        raise ImportError
    assert gc.isenabled()
