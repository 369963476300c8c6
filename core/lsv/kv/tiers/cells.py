"""Bookkeeping of host memory: which cells hold which contents."""

from __future__ import annotations

from collections import OrderedDict


class HostCells:
    """Cells 0 … ``size - 1``, each as large as a block. The least recently used contents are evicted."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = list(range(size - 1, -1, -1))
        self._held: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()

    @property
    def usage(self) -> float:
        """Share of the cells that hold something, 0 … 1."""
        return 1.0 - len(self._free) / self.size if self.size else 0.0

    def __contains__(self, key: bytes) -> bool:
        return key in self._held

    def touch(self, key: bytes) -> tuple[int, ...]:
        """The cells of a content, marked as used now; empty if it is not held."""
        cells = self._held.get(key, ())
        if cells:
            self._held.move_to_end(key)
        return cells

    def take(self, key: bytes, width: int) -> tuple[int, ...]:
        """Allocate ``width`` cells for a content that is not held; empty if it is larger than all cells together."""
        if width > self.size:
            return ()
        while len(self._free) < width:
            _, cells = self._held.popitem(last=False)
            self._free += reversed(cells)
        taken = tuple(self._free.pop() for _ in range(width))
        self._held[key] = taken
        return taken

    def forget(self, key: bytes) -> None:
        """Free the cells of a content, if it is held."""
        self._free += reversed(self._held.pop(key, ()))

    def clear(self) -> None:
        """Free all cells."""
        self._held.clear()
        self._free = list(range(self.size - 1, -1, -1))
