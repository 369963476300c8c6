"""Requests that engines share. What another one computes of a prompt is brought beside the steps, as it comes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import msgspec

from lsv.config import EngineConfig
from lsv.kv.manager import KVManager
from lsv.request.group import RequestGroup
from lsv.request.request import Request
from lsv.scheduler.outcome import OffloadCounts
from lsv.transports.exchange import Exchange, TransferFailed
from lsv_base.errors import BadRequest

_log = logging.getLogger(__name__)

_THREADS = 64
"""Most of them wait for a prompt that is being computed."""
_MOST = 256
"""Requests that wait at a time; what others' prompts are made of is computed."""
_LATE = "it takes longer than --kv-timeout"


class _Fetch(NamedTuple):
    until: float
    pending: bool
    """Whether it ends by itself once it has begun, when the other engine has no more or says nothing."""
    peer: str
    bytes: Future[int]


class Fetches:
    """Knows request groups by their ids. A group waits at most as long as its fetch may take, whatever becomes of that:
    then it is computed as if there were no other engine. Where the other is still computing, that is its time to take.
    """

    def __init__(self, config: EngineConfig, now: Callable[[], float] = time.monotonic) -> None:
        self._transfers = None if config.offload is None else config.offload.transfers
        self._now = now
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="kv-fetch")
        self._waiting: dict[int, _Fetch] = {}
        self._promised: dict[int, Sequence[bytes]] = {}
        self._told: set[str] = set()
        self._counts = (0, 0, 0)  # transfers, failed, bytes
        self.exchange: Exchange | None = None
        """Set once the model is loaded; None if no other engine is asked for anything."""

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def open(self, group: RequestGroup, kv: KVManager) -> bool:
        """Fetch a group's prompts from the engine that computes them, and promise others what this one computes.

        Returns whether the group waits. Raises ``BadRequest`` for an engine that is not to be fetched from.
        """
        spec = group.spec
        if spec.hand_on and self.exchange is not None and "adapter" not in group.needs:
            self._promised[group.id] = _names(group, kv.names)
            self.exchange.promise(self._promised[group.id])
        if not spec.kv_peer:
            return False
        if self.exchange is None or self._transfers is None or spec.kv_peer not in self._transfers.peers:
            raise BadRequest(
                f"kv_transfer_params: {spec.kv_peer} is not listed in --kv-peers",
                param="kv_transfer_params",
            )
        if "adapter" in group.needs or (spec.sampling is not None and spec.sampling.prompt_logprobs is not None):
            return False  # what the contents are called is not known yet, or nothing can be taken over
        keys = _names(group, kv.missing)
        if not keys or kv.arrivals is None:
            return False
        if len(self._waiting) >= _MOST:
            self._count(spec.kv_peer, 0, "too many requests wait for other engines")
            return False
        until, pending = self._now() + self._transfers.timeout, spec.kv_pending
        ends = None if pending else until
        future = self._threads.submit(self.exchange.fetch, spec.kv_peer, keys, ends, kv.arrivals.note)
        self._waiting[group.id] = _Fetch(until, pending, spec.kv_peer, future)
        return True

    def close(self, id: int) -> None:
        """A group has ended, or was never queued: it waits for nothing, and what it has not computed does not come."""
        if (fetch := self._waiting.get(id)) is not None:
            fetch.bytes.cancel()
        promised = self._promised.pop(id, None)
        if promised is not None and self.exchange is not None:
            self.exchange.withdraw(promised)

    def take(self) -> Iterator[int]:
        """The groups that need not wait any more."""
        if not self._waiting:
            return
        now = self._now()
        for id, fetch in tuple(self._waiting.items()):
            late = now >= fetch.until and not (fetch.pending and fetch.bytes.running())
            if late or fetch.bytes.done():
                del self._waiting[id]
                self._finish(fetch)
                yield id

    def counted(self, counts: OffloadCounts) -> OffloadCounts:
        """The counts of what is behind the cache, with those of transfers."""
        transfers, failed, size = self._counts
        return msgspec.structs.replace(counts, transfers=transfers, failed_transfers=failed, transferred_bytes=size)

    def _finish(self, fetch: _Fetch) -> None:
        if fetch.bytes.cancelled():  # before it has begun
            return
        if not fetch.bytes.done():
            fetch.bytes.cancel()
            self._count(fetch.peer, 0, _LATE)
            return
        try:
            self._count(fetch.peer, fetch.bytes.result())
        except TransferFailed as fault:
            self._count(fetch.peer, 0, str(fault))
        except Exception as fault:
            _log.exception("a part of the KV cache could not be fetched")
            self._count(fetch.peer, 0, type(fault).__name__)

    def _count(self, peer: str, size: int, fault: str | None = None) -> None:
        transfers, failed, bytes = self._counts
        self._counts = (transfers + 1, failed + (fault is not None), bytes + size)
        if fault is not None and (line := f"{peer}: {fault}") not in self._told and len(self._told) < _MOST:
            self._told.add(line)
            _log.warning(
                "KV cache of %s; the prompt is computed here. Further failures of this kind are not logged", line
            )


def _names(group: RequestGroup, names_of: Callable[[Request], Sequence[bytes]]) -> list[bytes]:
    """The names of the contents of all prompts of a group, each once."""
    firsts = (number * group.spec.candidates for number in range(len(group.spec.prompts)))
    return list(dict.fromkeys(key for first in firsts for key in names_of(group.make(first))))
