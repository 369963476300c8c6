"""Files of contents, handed on to other engines and fetched from them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lsv.transports.exchange import Exchange, Seat, TransferFailed
from lsv_kv_offload import form
from lsv_kv_offload.files import FileTransport
from lsv_kv_offload.producers import Producers
from lsv_kv_offload.server import Server
from lsv_kv_offload.wire import OTHER, Ask, Line


class FileExchange(Exchange):
    """What comes is written where workers read it: it is found, checked and given up like any other file."""

    def __init__(self, seat: Seat) -> None:
        super().__init__(seat)
        sites = (msgspec.structs.replace(seat.site, rank=rank) for rank in range(seat.ranks))
        self._parts = tuple(map(FileTransport, sites))
        self._identity = bytes.fromhex(seat.site.identity)
        self._server = Server(seat, self._parts) if seat.transfers.produces else None
        self._producers = Producers(seat.secret)

    def expect(self, key: bytes) -> None:
        if self._server is not None:
            self._server.coming.add(key)

    def fetch(self, peer: str, keys: Sequence[bytes], until: float) -> int:
        wanted = tuple(key for key in keys if not all(part.has(key) for part in self._parts))
        if not wanted:
            return 0
        with self._producers.call(peer, until) as line:
            return self._receive(line, wanted)

    def close(self) -> None:
        self._producers.close()
        if self._server is not None:
            self._server.close()

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
