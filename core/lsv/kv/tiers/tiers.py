"""Decides which contents of the prefix cache are copied to lower tiers, and which are loaded back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from lsv.kv.tiers.cells import HostCells
from lsv.kv.tiers.records import Load, Save

_REMEMBERED = 1 << 16
"""Limit on remembered names of contents: 2 MiB of hashes."""


Has = Callable[[bytes], bool]
"""Whether a content can probably be loaded."""


class Keeper(Protocol):
    """A store outside this engine; see ``lsv.transports.lookups``."""

    def has(self, key: bytes) -> bool:
        """Whether the store can probably load a content."""
        ...

    def look(self, keys: Sequence[bytes]) -> Has:
        """``has`` for these contents, which will mostly be asked for in this order."""
        ...


class Tiers:
    """Lower tiers of the cache. Each cached content is saved once, by the plan after the step that computed it.

    Workers only copy as plans say, so all ranks have the same contents in the same cells. A content in a transport may
    be gone or unreadable when it is needed. The plan's result says so, and the request computes the content itself.
    """

    def __init__(
        self,
        cells: int,
        keeper: Keeper | None = None,
        expect: Callable[[bytes], None] = lambda key: None,
        revoke: Callable[[Sequence[bytes]], None] = lambda keys: None,
    ) -> None:
        """``cells`` is the capacity of host memory in blocks. ``expect`` is called with each content that the keeper is
        about to get, ``revoke`` with contents of the keeper that are wrong.
        """
        self._cells = HostCells(cells)
        self._keeper = keeper
        self._expect, self._revoke = expect, revoke
        self._given: OrderedDict[bytes, None] = OrderedDict()  # recently given to the keeper
        self._lost: OrderedDict[bytes, None] = OrderedDict()
        self.unsaved: list[Save] = []
        """Contents that the next plan saves."""
        self.unrevoked: list[bytes] = []
        """Contents that the next plan removes from the keeper."""
        self.queries = 0
        """Prompt tokens looked up here since the start, because the device did not have them."""
        self.hits = 0
        """How many of these tokens were found."""

    @property
    def usage(self) -> float:
        """Share of host memory in use, 0 … 1."""
        return self._cells.usage

    @property
    def pending(self) -> bool:
        """Whether the next plan has anything to copy or to remove."""
        return bool(self.unsaved or self.unrevoked)

    def has(self, key: bytes) -> bool:
        """Whether a content is in host memory, or the keeper can probably load it."""
        return key in self._cells or (self._keeper is not None and key not in self._lost and self._keeper.has(key))

    def look(self, keys: Sequence[bytes]) -> Has:
        """``has`` for these contents, which will mostly be asked for in this order."""
        if self._keeper is None:
            return self.has
        kept = self._keeper.look(keys)
        return lambda key: key in self._cells or (key not in self._lost and kept(key))

    def save(self, key: bytes, blocks: Sequence[int]) -> None:
        """Save a complete content, which stays in these blocks until the next plan has run."""
        cells = () if self._cells.touch(key) else self._cells.take(key, len(blocks))
        keep = self._keeper is not None and (key not in self._given or not self._keeper.has(key))
        if keep:
            _remember(self._given, key)
            self._lost.pop(key, None)
            self._expect(key)
        if cells or keep:
            self.unsaved.append(Save(key, tuple(blocks), cells, keep))

    def keep(self, key: bytes, blocks: Sequence[int]) -> None:
        """Save a content on the device again if the keeper has lost it, because others will ask for it."""
        if self._keeper is not None and not self._keeper.has(key):
            self.save(key, blocks)

    def load(self, key: bytes, blocks: Sequence[int]) -> Load:
        """Load a content that ``has`` found into ``blocks``, by the plan that is being built."""
        return Load(key, tuple(blocks), -1, self._cells.touch(key))

    def revoke(self, keys: Collection[bytes]) -> None:
        """Forget wrong contents everywhere, also those on their way to a tier.

        The next plan removes them from the keeper, after all earlier puts. Other engines are notified only of contents
        that the keeper may have, so two engines that fetch from each other do not revoke the same contents forever.
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
        """The contents that the plan being built removes from the keeper."""
        keys, self.unrevoked = tuple(self.unrevoked), []
        return keys

    def take_saves(self) -> tuple[Save, ...]:
        """The contents that the plan being built saves."""
        saves, self.unsaved = tuple(self.unsaved), []
        return saves

    def count(self, wanted: int, found: int) -> None:
        """Count an admitted request: ``wanted`` tokens of its prompt were looked up here, ``found`` were found."""
        self.queries += wanted
        self.hits += found

    def lose(self, key: bytes) -> None:
        """Record that the keeper could not load a content. It is not looked up again until it is saved anew."""
        self._given.pop(key, None)
        _remember(self._lost, key)

    def clear(self) -> None:
        """Forget the contents of host memory, and the saves of blocks, which are gone."""
        self._cells.clear()
        self.unsaved.clear()


def _remember(names: OrderedDict[bytes, None], key: bytes) -> None:
    names[key] = None
    names.move_to_end(key)
    if len(names) > _REMEMBERED:
        names.popitem(last=False)
