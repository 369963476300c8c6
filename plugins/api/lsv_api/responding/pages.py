"""Pages of a list of items, as OpenAI's API cuts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from lsv_api.responding.records import ResponseItems
from lsv_api.responding.requests import ResponsesInputItem
from lsv_base.errors import BadRequest

_LIMITS = (1, 100)
_ORDERS = ("asc", "desc")


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Which items are shown: ``limit`` of them, from the one that follows ``after``."""

    after: str | None = None
    limit: int = 20
    order: str = "desc"

    def cut(self, items: Sequence[ResponsesInputItem]) -> ResponseItems:
        """The page. Raises ``BadRequest`` where ``after`` is not among the items."""
        ordered = list(items) if self.order == "asc" else list(reversed(items))
        ids = [item.id or "" for item in ordered]
        if self.after is not None and self.after not in ids:
            raise BadRequest(f"after: the response has no item {self.after[:64]!r}", param="after")
        first = 0 if self.after is None else ids.index(self.after) + 1
        shown = slice(first, first + self.limit)
        return ResponseItems(
            data=ordered[shown],
            first_id=next(iter(ids[shown]), ""),
            last_id=next(reversed(ids[shown]), ""),
            has_more=first + self.limit < len(ordered),
        )


def read_page(given: Mapping[str, str]) -> Page:
    """The page that the query asks for. Raises ``BadRequest``."""
    low, high = _LIMITS
    limit, order, after = (given.get(name) for name in ("limit", "order", "after"))
    if limit is not None and not (limit.isascii() and limit.isdecimal() and low <= int(limit[:9]) <= high):
        raise BadRequest(f"limit must be between {low} and {high}, got {limit[:20]!r}", param="limit")
    if order is not None and order not in _ORDERS:
        raise BadRequest(f"order must be asc or desc, got {order[:20]!r}", param="order")
    return Page(after=after, limit=int(limit or Page().limit), order=order or Page().order)
