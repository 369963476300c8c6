"""Decides what of the prefix cache is copied behind the device, and what comes back from there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from lsv.kv.tiers.cells import HostCells
from lsv.kv.tiers.records import Load, Save

_REMEMBERED = 1 << 16
"""Names of contents that are remembered at most: 2 MiB of hashes."""


Has = Callable[[bytes], bool]
"""Whether a content can probably be had."""


class Keeper(Protocol):
    """What keeps contents elsewhere; see ``lsv.transports.lookups``."""

    def has(self, key: bytes) -> bool:
        """Whether a content can probably be had there."""
        ...

    def look(self, keys: Sequence[bytes]) -> Has:
        """``has`` for these contents, which will mostly be asked for in this order."""
        ...


class Tiers:
    """Follows the pool: a content that others can find is saved once, by the plan after the step that computed it.

    Workers only copy, as plans say, so all ranks have the same contents in the same cells. What a transport keeps may
    be gone by the time it is wanted, or unreadable: then the plan's result says so, and its request is computed.
    """

    def __init__(
        self,
        cells: int,
        keeper: Keeper | None = None,
        expect: Callable[[bytes], None] = lambda key: None,
        revoke: Callable[[Sequence[bytes]], None] = lambda keys: None,
    ) -> None:
        """``cells`` is how many blocks host memory has room for. ``expect`` is called with what the keeper is about to
        get, ``revoke`` with what of it is wrong.
        """
        self._cells = HostCells(cells)
        self._keeper = keeper
        self._expect, self._revoke = expect, revoke
        self._given: OrderedDict[bytes, None] = OrderedDict()  # to the keeper, of late
        self._lost: OrderedDict[bytes, None] = OrderedDict()
        self.unsaved: list[Save] = []
        """What the next plan saves."""
        self.unrevoked: list[bytes] = []
        """What the next plan has the keeper remove."""
        self.queries = 0
        """Prompt tokens that the device did not hold, which were looked for, since the start."""
        self.hits = 0
        """How many of these were found."""

    @property
    def usage(self) -> float:
        """Share of host memory in use, 0 … 1."""
        return self._cells.usage

    @property
    def pending(self) -> bool:
        """Whether the next plan has anything to copy or to remove."""
        return bool(self.unsaved or self.unrevoked)

    def has(self, key: bytes) -> bool:
        """Whether a content is in host memory or can probably be had from the keeper."""
        return key in self._cells or (self._keeper is not None and key not in self._lost and self._keeper.has(key))

    def look(self, keys: Sequence[bytes]) -> Has:
        """``has`` for these contents, which will mostly be asked for in this order."""
        if self._keeper is None:
            return self.has
        kept = self._keeper.look(keys)
        return lambda key: key in self._cells or (key not in self._lost and kept(key))

    def save(self, key: bytes, blocks: Sequence[int]) -> None:
        """A content is complete, in these blocks until the next plan has been carried out."""
        cells = () if self._cells.touch(key) else self._cells.take(key, len(blocks))
        keep = self._keeper is not None and (key not in self._given or not self._keeper.has(key))
        if keep:
            _remember(self._given, key)
            self._lost.pop(key, None)
            self._expect(key)
        if cells or keep:
            self.unsaved.append(Save(key, tuple(blocks), cells, keep))

    def keep(self, key: bytes, blocks: Sequence[int]) -> None:
        """A content that is on the device will be asked for by others: save it, where the keeper has lost it since."""
        if self._keeper is not None and not self._keeper.has(key):
            self.save(key, blocks)

    def load(self, key: bytes, blocks: Sequence[int]) -> Load:
        """A content that ``has`` has found is to be copied to ``blocks``, by the plan that is being made."""
        return Load(key, tuple(blocks), -1, self._cells.touch(key))

    def revoke(self, keys: Collection[bytes]) -> None:
        """Contents are not what their names say: forget them, wherever they are kept or on their way to.

        The keeper removes them by the next plan, after what it was given before. Other engines hear of those that the
        keeper may have, so two engines that fetch from each other do not go on revoking the same.
        """
        self.unsaved = [save for save in self.unsaved if save.key not in keys]
        for key in keys:
            self._cells.forget(key)
        if self._keeper is None:
            return
        kept = [key for key in keys if key in self._given or (key not in self._lost and self._keeper.has(key))]
        for key in keys:
            self.lose(key)
        self.unrevoked += kept
        if kept:
            self._revoke(kept)

    def take_revoked(self) -> tuple[bytes, ...]:
        """What the keeper removes by the plan that is being made."""
        keys, self.unrevoked = tuple(self.unrevoked), []
        return keys

    def take_saves(self) -> tuple[Save, ...]:
        """What is saved by the plan that is being made."""
        saves, self.unsaved = tuple(self.unsaved), []
        return saves

    def count(self, wanted: int, found: int) -> None:
        """A request is admitted, of whose prompt so many tokens were wanted from here, and found."""
        self.queries += wanted
        self.hits += found

    def lose(self, key: bytes) -> None:
        """The keeper could not bring a content: it is not looked for there again before it has been saved anew."""
        self._given.pop(key, None)
        _remember(self._lost, key)

    def clear(self) -> None:
        """Forget what host memory holds; blocks hold nothing any more that could be saved."""
        self._cells.clear()
        self.unsaved.clear()


def _remember(names: OrderedDict[bytes, None], key: bytes) -> None:
    names[key] = None
    names.move_to_end(key)
    if len(names) > _REMEMBERED:
        names.popitem(last=False)
