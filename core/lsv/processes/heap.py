"""What allocators keep of freed memory: glibc's malloc, by mallopt(3) and malloc_trim(3), and Python's free lists."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

_ARENA_MAX, _MMAP_THRESHOLD = -8, -3
"""Parameters of mallopt, as malloc.h numbers them."""
ARENAS = 2
MAPPED_BYTES = 128 << 10


def share_arenas() -> None:
    """Let all threads of this process allocate from two arenas; to be called before they start.

    Otherwise each thread soon has an arena of its own, and every one of them keeps as much as it once needed.
    Does nothing where the C library is another one.
    """
    _set(_ARENA_MAX, ARENAS)


def return_large_blocks() -> None:
    """Give blocks of 128 KiB and more back to the system as soon as they are freed.

    It is what glibc begins with, but it raises this size to that of the largest block freed so far, up to 32 MiB: after
    one large body, all later ones leave holes in the heap. Not for processes that allocate such blocks all the time.
    """
    _set(_MMAP_THRESHOLD, MAPPED_BYTES)


@contextmanager
def without_collections() -> Iterator[None]:
    """Collect no garbage meanwhile, for imports of large libraries.

    Nearly all objects that they make stay, and tracing them again and again takes a fifth of the time to import torch.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def trim() -> None:
    """Give free memory back to the system: what Python's free lists hold, then the free pages of the heap.

    Python keeps up to 2,000 freed tuples of each length until it collects garbage, which a process that makes none
    never does. Both take a millisecond in an engine whose first objects are frozen. Without glibc the heap stays as
    it is.
    """
    gc.collect()
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def _set(parameter: int, value: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(parameter, value)
