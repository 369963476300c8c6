"""Asks a transport in a thread what it has, so that a transport that hangs delays the engine only for a moment.

A hanging network file system keeps the calling thread in the kernel, where nothing can interrupt it. While it hangs,
the transport is not asked again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from lsv.transports import Transport

log = logging.getLogger(__name__)

SECONDS = 0.25
"""How long the engine waits for an answer."""
_AHEAD = 32
"""Contents that are looked up at a time."""


class Lookups:
    """A ``Keeper`` (see ``lsv.kv.tiers``) over a transport."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lookups")
        self._work: Future[None] | None = None
        self._told = False

    def has(self, key: bytes) -> bool:
        """Whether the transport can probably load a content; False while it does not answer."""
        return self._ask((key,)).get(key, False)

    def look(self, keys: Sequence[bytes]) -> Callable[[bytes], bool]:
        """``has`` for these contents, which will mostly be asked for in this order."""
        places = {key: place for place, key in enumerate(keys)}
        found: dict[bytes, bool] = {}

        def has(key: bytes) -> bool:
            if key not in found:
                place = places[key]
                found.update(self._ask(keys[place : place + _AHEAD]))
            return found.setdefault(key, False)

        return has

    def _ask(self, keys: Sequence[bytes]) -> dict[bytes, bool]:
        """The answers that arrive within ``SECONDS``."""
        if self._work is not None and not self._work.done():
            return {}
        found: dict[bytes, bool] = {}
        self._work = self._thread.submit(self._look, keys, found)
        try:
            self._work.result(SECONDS)
        except TimeoutError:
            if not self._told:
                self._told = True
                log.warning(
                    "the KV cache's transport has not answered for %g s; no blocks are loaded until it does",
                    SECONDS,
                )
        return dict(found)

    def _look(self, keys: Sequence[bytes], found: dict[bytes, bool]) -> None:
        """Ask in order, up to the first missing content, without which later blocks of a prefix are useless."""
        for key in keys:
            found[key] = self._transport.has(key)
            if not found[key]:
                return
