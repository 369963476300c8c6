"""Files of contents, handed on to other engines and fetched from them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import msgspec

from lsv.settings.cluster_key import read_cluster_key
from lsv.transports.exchange import Exchange, Seat, TransferFailed
from lsv_kv_offload import form
from lsv_kv_offload.files import FileTransport
from lsv_kv_offload.notices import Watches
from lsv_kv_offload.producers import Producers
from lsv_kv_offload.server import Server
from lsv_kv_offload.wire import OTHER, Ask, Line


class FileExchange(Exchange):
    """What comes is written where workers read it: it is found, checked and given up like any other file."""

    def __init__(self, seat: Seat) -> None:
        super().__init__(seat)
        sites = (msgspec.structs.replace(seat.site, rank=rank) for rank in range(seat.ranks))
        self._parts = tuple(map(FileTransport, sites))
        self._identity, self._secret = bytes.fromhex(seat.site.identity), read_cluster_key()
        self._server = Server(seat, self._parts) if seat.transfers.produces else None
        self._producers = Producers(seat.secret)
        ask = Ask(seat.site.identity, seat.ranks, (), seat.transfers.timeout, pending=True, watches=True)
        self._watches = Watches(self._producers, ask)

    def promise(self, keys: Sequence[bytes]) -> None:
        if self._server is not None:
            self._server.coming.promise(keys)

    def withdraw(self, keys: Sequence[bytes]) -> None:
        if self._server is not None:
            self._server.coming.withdraw(keys)

    def revoke(self, keys: Sequence[bytes]) -> None:
        if self._server is not None:
            self._server.coming.give_up(keys)
            self._server.notices.add(keys)

    def follow(self, note: Callable[[Sequence[bytes]], None]) -> None:
        self._watches.follow(note)

    def expect(self, key: bytes) -> None:
        if self._server is not None:
            self._server.notices.renew(key)
            self._server.coming.expect(key)

    def fetch(self, peer: str, keys: Sequence[bytes], until: float | None, came: Callable[[bytes], None]) -> int:
        wanted = tuple(key for key in keys if not all(part.has(key) for part in self._parts))
        if not wanted:
            return 0
        self._watches.begin(peer)
        silence = self.seat.transfers.timeout
        with self._producers.call(peer, until, silence) as line:
            seconds = silence if until is None else until - time.monotonic()
            line.send_ask(Ask(self.seat.site.identity, self.seat.ranks, wanted, seconds, until is None))
            take, received = self._take if line.near else self._copy, 0
            for key in wanted:
                received += take(line, key)
                came(key)
            return received

    def close(self) -> None:
        self._watches.close()
        self._producers.close()
        if self._server is not None:
            self._server.close()

    def _copy(self, line: Line, key: bytes) -> int:
        """Write a content that comes over the network; returns its bytes."""
        contents, received = [], 0
        for _ in self._parts:
            size = _check(line.read_size())
            contents.append(self._read(line, size, key))
            received += size
        for part, content in zip(reversed(self._parts), reversed(contents), strict=True):
            part.put(key, content)  # rank 0's last: the engine looks for that one
        return received

    def _take(self, line: Line, key: bytes) -> int:
        """Take over the files of a content on this machine. They are checked when they are read, like any other."""
        descriptors, received = list[int](), 0
        try:
            for _ in self._parts:
                size, descriptor = line.read_descriptor()
                received += _check(size)
                assert descriptor is not None, "a file has a descriptor"
                descriptors.append(descriptor)
            for part, descriptor in zip(reversed(self._parts), reversed(descriptors), strict=True):
                part.adopt(key, descriptor)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return received

    def _read(self, line: Line, size: int, key: bytes) -> memoryview:
        """The content of a file that is what was asked for."""
        file = memoryview(line.read(bytearray(size)))
        header, content = file[: form.SIZE], file[form.SIZE :]
        fault = form.find_fault(bytes(header), self._identity, key, content, self._secret)
        if fault is not None:
            raise TransferFailed(f"a file of it is spoilt: {fault}")
        return content


def _check(size: int) -> int:
    """The size that was said of a file. Raises ``TransferFailed`` where there is none."""
    if size == OTHER:
        raise TransferFailed(
            "its contents have a different form: start both with the same model, release and options of the model, the "
            "cache, ranks and plugins"
        )
    if not size:
        raise TransferFailed("it no longer has all of the prompt")
    return size
