"""Additions to Sanic's HTTP/1: answers to HTTP/1.0, trailers of requests, and clients that leave."""

from __future__ import annotations

from sanic.exceptions import BadRequest
from sanic.headers import format_http1_response
from sanic.helpers import has_message_body
from sanic.http import Http, Stage

MAX_TRAILERS = 8 << 10
"""Limit on the trailers of a request in bytes."""
_LAST_CHUNK = 64
"""Limit on the size line of a chunk in bytes."""


class Http1(Http):
    """One connection's requests. Sources: RFC 9112, 6.1 (no chunks in HTTP/1.0) and 7.1.2 (trailers)."""

    __slots__ = ()

    async def http1_request_header(self) -> None:
        """Read the head of a request. From the end of the request on, the connection watches its client."""
        await super().http1_request_header()
        if not self.request_body:
            self.protocol.watch_client()

    async def http1_response_header(self, data: bytes, end_stream: bool) -> None:
        """Send the head of an answer. A stream to an HTTP/1.0 client is not chunked; closing the connection ends it."""
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
        """Read some bytes of a request's body, and discard trailers."""
        if self.request_body == "chunked" and self.request_bytes_left == 0:
            await self._pass_trailers_over()
        data: bytes | None = await super().read()
        if not self.request_body:
            self.protocol.watch_client()
        return data

    async def _pass_trailers_over(self) -> None:
        """If the last chunk is next, wait for the end of the trailers and remove them from the buffer."""
        buffer = self.recv_buffer
        while (end := buffer.find(b"\r\n", 3)) < 0 and len(buffer) <= _LAST_CHUNK:
            if self.expecting_continue:
                return  # the client waits for 100 Continue, which Sanic's own reading sends
            await self._receive_more()
        chunk = bytes(buffer[2:end]).split(b";", 1)[0].strip() if end >= 0 else b""
        if not chunk or chunk.strip(b"0"):
            return
        trailers, passed = end + 2, 0
        while (last := buffer.find(b"\r\n", trailers)) != trailers:
            size = (len(buffer) if last < 0 else last + 2) - trailers
            if passed + size > MAX_TRAILERS:
                raise self._refuse(
                    f"The trailers of the request are over the limit of {MAX_TRAILERS} bytes; send fewer or none"
                )
            if last < 0:
                await self._receive_more()
            elif b":" not in buffer[trailers:last]:
                raise self._refuse("A trailer of the request has no name; send each as Name: value")
            else:
                passed += size
                del buffer[trailers : last + 2]

    def _refuse(self, why: str) -> BadRequest:
        """The error for invalid trailers. The connection can't be used any further."""
        self.keep_alive = False
        return BadRequest(why)
