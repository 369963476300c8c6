"""Limits how much freed memory allocators keep: glibc's malloc (mallopt(3), malloc_trim(3)) and Python's free lists."""

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

    Otherwise each thread soon has its own arena, and every arena keeps as much memory as it once needed.
    Does nothing without glibc.
    """
    _set(_ARENA_MAX, ARENAS)


def return_large_blocks() -> None:
    """Give blocks of 128 KiB and more back to the system as soon as they are freed.

    glibc starts with this threshold but raises it to the size of the largest block freed so far, up to 32 MiB. After
    one large body, all later bodies would leave holes in the heap. Don't use this in a process that allocates large
    blocks all the time.
    """
    _set(_MMAP_THRESHOLD, MAPPED_BYTES)


@contextmanager
def without_collections() -> Iterator[None]:
    """Turn garbage collection off, for imports of large libraries.

    Nearly all objects that an import creates stay alive. Tracing them repeatedly takes a fifth of the time to import
    torch.
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

    Python keeps up to 2,000 freed tuples of each length until it collects garbage, and a process that makes no garbage
    never collects. Both take a millisecond in an engine whose first objects are frozen. Without glibc, only the free
    lists are emptied.
    """
    gc.collect()
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def _set(parameter: int, value: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(parameter, value)
