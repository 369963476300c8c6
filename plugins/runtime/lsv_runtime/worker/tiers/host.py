"""Host memory for pages of the KV cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lsv_base.errors import EngineDied

_SLAB = 64 << 20
"""Bytes that are allocated at a time: memory is only taken as cells come into use."""


class HostMemory:
    """Cells of one page each, uint8. Cells one after another lie one after another, but for the ends of slabs."""

    def __init__(self, page: int, *, pinned: bool) -> None:
        """``page`` is in bytes; copies from and to ``pinned`` memory run beside a device's work."""
        self._page, self._pinned = page, pinned
        self._per_slab = max(1, _SLAB // page)
        self._slabs: dict[int, Tensor] = {}

    def runs(self, cells: Sequence[int]) -> Iterator[tuple[slice, Tensor]]:
        """Where in ``cells`` some lie one after another, and their memory [cells, page]."""
        first = 0
        for place in range(1, len(cells) + 1):
            if place < len(cells) and cells[place] == cells[place - 1] + 1 and cells[place] % self._per_slab:
                continue
            number, inside = divmod(cells[first], self._per_slab)
            yield slice(first, place), self._slab(number)[inside : inside + place - first]
            first = place

    def _slab(self, number: int) -> Tensor:
        if number not in self._slabs:
            size = (self._per_slab, self._page)
            try:
                self._slabs[number] = torch.empty(size, dtype=torch.uint8, pin_memory=self._pinned)
            except (RuntimeError, MemoryError) as cause:  # what the books say is there must be there
                raise EngineDied("host memory ran out for the KV cache: lower --kv-offload-gib") from cause
        return self._slabs[number]
