"""Memory for weights, on huge pages where the system has them, which makes sequential reads much faster."""

from __future__ import annotations

import mmap
from contextlib import suppress

import torch

_HUGE_PAGE = 2 << 20
_CHUNK = 16 * _HUGE_PAGE
_ALIGNED = 4096


class Arena:
    """Hands out tensors from large chunks; a chunk is freed with the last of its tensors."""

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.uint8)

    def take(self, size: int) -> torch.Tensor:
        """uint8 [size], not initialised. What is as large as a chunk is one, and freed by itself."""
        if size >= _CHUNK:
            return _make_chunk(size)
        if size > len(self._left):
            self._left = _make_chunk(_CHUNK)
        taken = self._left[:size]
        self._left = self._left[-(-size // _ALIGNED) * _ALIGNED :]
        return taken


def _make_chunk(size: int) -> torch.Tensor:
    memory = mmap.mmap(-1, size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system without huge pages refuses
            memory.madvise(mmap.MADV_HUGEPAGE)
    chunk = torch.frombuffer(memory, dtype=torch.uint8)
    return chunk[-chunk.data_ptr() % _HUGE_PAGE :][:size]


weights = Arena()
"""The arena of this process. Models are loaded into it tensor by tensor."""
