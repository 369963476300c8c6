"""Files of contents, handed on to other engines and fetched from them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence

import msgspec

from lsv.transports.exchange import Exchange, Seat, TransferFailed, split_address
from lsv.worker.nodes.handshake import FETCHING, OtherKey, OtherProtocol, introduce
from lsv_kv_offload import form
from lsv_kv_offload.files import FileTransport
from lsv_kv_offload.server import Server
from lsv_kv_offload.wire import OTHER, Ask, Late, Line

_CONNECT_SECONDS = 2.0
_REST_SECONDS = 5.0
"""Who could not be reached is left alone for so long: nobody waits for it meanwhile."""


class FileExchange(Exchange):
    """What comes is written where workers read it: it is found, checked and given up like any other file."""

    def __init__(self, seat: Seat) -> None:
        super().__init__(seat)
        sites = (msgspec.structs.replace(seat.site, rank=rank) for rank in range(seat.ranks))
        self._parts = tuple(map(FileTransport, sites))
        self._identity = bytes.fromhex(seat.site.identity)
        self._server = Server(seat, self._parts) if seat.transfers.produces else None
        self._resting: dict[str, tuple[float, str]] = {}
        self._lock = threading.Lock()

    def expect(self, key: bytes) -> None:
        if self._server is not None:
            self._server.coming.add(key)

    def fetch(self, peer: str, keys: Sequence[bytes], until: float) -> int:
        wanted = tuple(key for key in keys if not all(part.has(key) for part in self._parts))
        if not wanted:
            return 0
        try:
            with self._connect(peer, until) as end:
                return self._receive(Line(end, until), wanted)
        except (TimeoutError, Late):
            raise TransferFailed("it takes longer than --kv-timeout") from None
        except (OSError, ValueError) as fault:
            raise TransferFailed(f"the transfer broke off: {fault}") from None

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def _connect(self, peer: str, until: float) -> socket.socket:
        """A connection to an engine that has shown that it has the secret."""
        with self._lock:
            rests, why = self._resting.get(peer, (0.0, ""))
        if time.monotonic() < rests:
            raise TransferFailed(why)
        patience = min(_CONNECT_SECONDS, max(0.01, until - time.monotonic()))
        try:
            end = socket.create_connection(split_address(peer), patience)
        except OSError as fault:
            raise self._leave_alone(peer, f"it can't be reached: {fault.strerror or fault}") from None
        try:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            introduce(end, self.seat.secret, FETCHING)
        except BaseException as fault:
            end.close()
            if isinstance(fault, OtherKey):
                raise TransferFailed("it has another LSV_CLUSTER_KEY") from None
            if isinstance(fault, OtherProtocol):
                raise TransferFailed("what is there hands on no KV cache") from None
            if isinstance(fault, OSError):
                raise self._leave_alone(peer, f"it does not answer: {fault.strerror or fault}") from None
            raise
        return end

    def _leave_alone(self, peer: str, why: str) -> TransferFailed:
        with self._lock:
            self._resting[peer] = (time.monotonic() + _REST_SECONDS, why)
        return TransferFailed(why)

    def _receive(self, line: Line, keys: tuple[bytes, ...]) -> int:
        """Write what comes into files; returns how many bytes that were."""
        line.send_ask(Ask(self.seat.site.identity, self.seat.ranks, keys))
        received = 0
        for key in keys:
            contents = []
            for _ in self._parts:
                size = line.read_size()
                if size == OTHER:
                    raise TransferFailed(
                        "what it keeps is of another form: start both with the same model, release and options of the "
                        "model, the cache, ranks and plugins"
                    )
                if not size:
                    raise TransferFailed("it does not have all of the prompt any more")
                contents.append(self._read(line, size, key))
                received += size
            for part, content in zip(reversed(self._parts), reversed(contents), strict=True):
                part.put(key, content)  # rank 0's last: the engine looks for that one
        return received

    def _read(self, line: Line, size: int, key: bytes) -> memoryview:
        """The content of a file that is what was asked for."""
        file = memoryview(line.read(bytearray(size)))
        header, content = file[: form.SIZE], file[form.SIZE :]
        fault = form.find_fault(bytes(header), self._identity, key, content)
        if fault is not None:
            raise TransferFailed(f"a file of it is spoilt: {fault}")
        return content
