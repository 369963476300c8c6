"""Additions to Sanic's HTTP/1: answers to HTTP/1.0, trailers of requests, and clients that leave."""

from __future__ import annotations

from sanic.exceptions import BadRequest
from sanic.headers import format_http1_response
from sanic.helpers import has_message_body
from sanic.http import Http, Stage

MAX_TRAILERS = 8 << 10
"""Bytes of the trailers of a request."""
_LAST_CHUNK = 64
"""Bytes within which the size of a chunk ends."""


class Http1(Http):
    """One connection's requests. Sources: RFC 9112, 6.1 (no chunks in HTTP/1.0) and 7.1.2 (trailers)."""

    __slots__ = ()

    async def http1_request_header(self) -> None:
        """Read the head of a request. From the end of the request on, the connection watches its client."""
        await super().http1_request_header()
        if not self.request_body:
            self.protocol.watch_client()

    async def http1_response_header(self, data: bytes, end_stream: bool) -> None:
        """Send the head of an answer. A stream to an HTTP/1.0 client has no chunks: its end closes the connection."""
        answer = self.response
        plain = self.request is not None and self.request.version == "1.0"
        if not plain or end_stream or "content-length" in answer.headers or getattr(answer, "body", None):
            await super().http1_response_header(data, end_stream)
            return
        if self.head_only or not has_message_body(answer.status):
            await super().http1_response_header(data, end_stream)
            return
        self.keep_alive = False
        answer.headers["connection"] = "close"
        await self._send(format_http1_response(answer.status, answer.processed_headers) + data)
        self.response_func = self._send_plainly
        self.stage = Stage.RESPONSE

    async def _send_plainly(self, data: bytes, end_stream: bool) -> None:
        if data:
            await self._send(data)
        if end_stream:
            self.response_func = None
            self.stage = Stage.IDLE

    async def read(self) -> bytes | None:
        """Read some bytes of a request's body. Trailers are passed over: nothing here needs them."""
        if self.request_body == "chunked" and self.request_bytes_left == 0:
            await self._pass_trailers_over()
        data: bytes | None = await super().read()
        if not self.request_body:
            self.protocol.watch_client()
        return data

    async def _pass_trailers_over(self) -> None:
        """Where the last chunk comes next, wait for the end of the trailers and remove them from what was received."""
        buffer = self.recv_buffer
        while (end := buffer.find(b"\r\n", 3)) < 0 and len(buffer) <= _LAST_CHUNK:
            if self.expecting_continue:
                return  # the client waits for it, and Sanic's own reading sends it
            await self._receive_more()
        chunk = bytes(buffer[2:end]).split(b";", 1)[0].strip() if end >= 0 else b""
        if not chunk or chunk.strip(b"0"):
            return
        trailers, passed = end + 2, 0
        while (last := buffer.find(b"\r\n", trailers)) != trailers:
            size = (len(buffer) if last < 0 else last + 2) - trailers
            if passed + size > MAX_TRAILERS:
                raise self._refuse("The trailers of the request are too long")
            if last < 0:
                await self._receive_more()
            elif b":" not in buffer[trailers:last]:
                raise self._refuse("The request has a trailer without a name")
            else:
                passed += size
                del buffer[trailers : last + 2]

    def _refuse(self, why: str) -> BadRequest:
        """The error for trailers after which nothing more can be read from the connection."""
        self.keep_alive = False
        return BadRequest(why)
