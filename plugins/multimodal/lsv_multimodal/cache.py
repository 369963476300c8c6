"""Prepared items that are kept, so that one sent again is neither decoded nor processed again."""

from __future__ import annotations

from collections import OrderedDict

from lsv.media.items import Prepared

_BYTES = 256 << 20


class PreparedCache:
    """Prepared items by what they were made from, up to a number of bytes; the least recently used are evicted."""

    def __init__(self, limit: int = _BYTES) -> None:
        self._limit = limit
        self._size = 0
        self._items: OrderedDict[bytes, Prepared] = OrderedDict()

    def get(self, key: bytes) -> Prepared | None:
        found = self._items.get(key)
        if found is not None:
            self._items.move_to_end(key)
        return found

    def put(self, key: bytes, item: Prepared) -> None:
        if key in self._items:
            return
        self._items[key] = item
        self._size += _size(item)
        while self._size > self._limit:
            _, evicted = self._items.popitem(last=False)
            self._size -= _size(evicted)


def _size(item: Prepared) -> int:
    parts = item.processed.parts
    return sum(array.size for part in parts for array in part.inputs.values()) + 8 * sum(len(p.tokens) for p in parts)
